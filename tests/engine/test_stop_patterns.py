"""Patterns that end a text: they match as Python's `re` does, as early as that, and in time that
grows with the text alone."""

from __future__ import annotations

import random
import re
import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.text.detokenizer import IncrementalDetokenizer
from tenora_engine.text.stop_patterns import STATES_MAX, PatternError, StopPattern

PATTERNS = [
    "ab",
    "a|bc",
    "a+b",
    "a{2,3}",
    "a{2,}c",
    "(a|b)*c",
    "[^ab]",
    "[a-c]b",
    "(?:ab)+c?c",
    r"\d\d",
    r"a.c",
    r"[\da]\w",
    "a??b",
    r"\.|\[",
    "(|a)b",
    "a{0,2}b",
    "[]b]c",
    "[]a]",
    "[^]]",
    "[^]b-]",
    "[^a-bb-c1]",
    r"[^\W1]c",
    r"[\S\d\n]b",
    "a$",
    r"[b.]\s*$",
    "bb$|a.$|c",
]


def first_end(pattern: str, text: str) -> int | None:
    """By trying every text that ends earlier."""
    found = re.compile(pattern)
    ends = (end for end in range(len(text) + 1) if found.search(text[:end]))
    return next(ends, None)


@given(st.sampled_from(PATTERNS), st.text("abc 1.[]-\n", max_size=12), st.integers(0, 12))
def test_a_match_ends_where_it_first_can(pattern: str, text: str, cut: int) -> None:
    expected = first_end(pattern, text)
    assert StopPattern(pattern).begin().end(text) == expected
    search = StopPattern(pattern).begin()
    before = search.end(text[:cut])
    after = search.end(text[cut:]) if before is None else None
    found = before if before is not None else None if after is None else cut + after
    if len(text) >= cut:
        assert found == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a*", "a|", "(a", "a)", "[a", "*a", "a**", "^a", "$", "a$b", "(a$)", "a$$", "a*$",
        r"\bword", r"(a)\1", "(?=a)", "(?i)a", r"\p{L}", "a{", "a{3,1}", "a{999}",
        "((a{50}){50}){50}", "a" * 300, "(" * 90,
        "[b-a]", "\\", r"\x41", "[a-", "a{0}",
    ],
)  # fmt: skip
def test_what_is_not_followed_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        StopPattern(pattern)


@pytest.mark.parametrize("pattern", ["(a|a)*b", "(a*)*b", "(a?){30}a{30}b", "(.*)(.*)(.*)x"])
def test_what_others_take_for_ever_over_has_few_states(pattern: str) -> None:
    made = StopPattern(pattern)
    assert made.begin().end("a" * 5_000) is None
    states = made.beginning
    for character in "aaaa":
        states = made.after(states, character)
        assert len(states) <= STATES_MAX


RARE = "".join(map(chr, range(0x4E00, 0x4E00 + 200)))


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-m].{100}§",
        f"[a-m](?:[^{RARE}]){{100}}§",
        f"[a-m](?:[^{''.join(f'{each}-{each}' for each in RARE[:66])}]){{100}}§",
        "[a-m](?:[^" + r"\D\S\W" * 30 + "]|[^§]){40}§",
    ],
)
def test_a_character_takes_steps_by_the_states_not_by_what_classes_hold(pattern: str) -> None:
    steps = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    search, rng = StopPattern(pattern).begin(), random.Random(1)
    text = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ETAOIN.,") for _ in range(1200))
    assert search.end(text[:1000]) is None  # now all states are in use, and no step is known
    sys.setprofile(counted)
    try:
        search.end(text[1000:])
    finally:
        sys.setprofile(None)
    assert steps < 200 * 5 * STATES_MAX


def detokenizer(pattern: str, **options: object) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(
        lambda token: bytes([token]),
        patterns=[StopPattern(pattern)],
        **options,  # type: ignore[arg-type]
    )


def test_a_text_ends_with_what_matched() -> None:
    made = detokenizer(r"\d+;")
    assert made.push(list(b"ab 1")).text == "ab 1"
    last = made.push(list(b"2;c"))
    assert (last.text, last.stopped, last.consumed_tokens) == ("2;", r"\d+;", 6)


def test_what_comes_first_ends_it() -> None:
    for text, shown, stopped in ((b"x1;", "x1", "1"), (b"x;1", "x", ";")):
        made = IncrementalDetokenizer(
            lambda token: bytes([token]), stop=[";"], patterns=[StopPattern("1")]
        )
        last = made.push(list(text))
        assert (last.text, last.stopped) == (shown, stopped)


def test_a_match_within_the_first_tokens_does_not_count() -> None:
    made = detokenizer("a", min_tokens=2)
    last = made.push(list(b"abca"))
    assert (last.text, last.consumed_tokens) == ("abca", 4)


def test_many_long_stop_strings_take_steps_by_their_number_not_by_their_length() -> None:
    """Of which every beginning's end begins them, too."""
    calls = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    stop = [("a" * (128 + each) + "b" + "a" * 127)[:256] for each in range(32)]
    made = IncrementalDetokenizer(lambda token: bytes([token]), stop=stop)
    made.push(list(b"a" * 300))
    sys.setprofile(counted)
    try:
        for _ in range(100):
            made.push(list(b"a"))
    finally:
        sys.setprofile(None)
    assert calls < 100 * 20 * len(stop)


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3), st.text("abc"))
def test_nothing_is_held_back_that_begins_no_stop_string(stop: list[str], text: str) -> None:
    made = IncrementalDetokenizer(lambda token: bytes([token]), stop=stop)
    shown = ""
    for place, character in enumerate(text, 1):
        delta = made.push(list(character.encode()))
        shown += delta.text
        if delta.stopped is not None:
            return
        held = max(
            length
            for each in stop
            for length in range(len(each))
            if text[:place].endswith(each[:length])
        )
        assert shown == text[: place - held]
