"""Calls of tools in text: against a reader of whole texts, and the same however the text is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.text.tool_formats import FORMATS, ToolFormat
from tenora_engine.text.tool_parser import ToolCallText, ToolParser, _JsonEnd

TOOLS = ("add", "get_weather")
Said = list[str | tuple[str, str]]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
arguments = st.dictionaries(st.sampled_from(["a", "ö", '}"', "<tool_call>", "\\"]), json_values)


@st.composite
def calls(draw: st.DrawFn, form: ToolFormat) -> str:
    """One or two, mostly good: as they are written, with the form's marks about them."""
    made = [
        {
            "name": draw(st.sampled_from([*TOOLS, *TOOLS, "nobody"])),
            draw(st.sampled_from(["arguments", "parameters", "args"])): draw(
                arguments | arguments | json_values
            ),
        }
        for _ in range(draw(st.integers(0, 2)))
    ]
    indent = draw(st.sampled_from([None, 1]))
    given: Any = made[0] if len(made) == 1 and draw(st.booleans()) else made
    text = json.dumps(given, ensure_ascii=draw(st.booleans()), indent=indent)
    if draw(st.integers(0, 3)) == 0:  # broken
        cut = draw(st.integers(0, len(text)))
        text = text[:cut] + draw(st.sampled_from(["", "}", '"', "<tool_call>", "!"])) + text[cut:]
        text = text[: draw(st.integers(0, len(text)))]
    spaces = st.sampled_from(["", "\n", " ; "])
    opening = draw(st.sampled_from([form.opening, form.opening, form.opening, ""]))
    closing = draw(st.sampled_from([form.closing, form.closing, "", "</tool_"]))
    return opening + draw(spaces) + text + draw(spaces) + closing


@st.composite
def answers(draw: st.DrawFn) -> tuple[ToolFormat, str, list[str]]:
    """A form, an answer, and the answer in pieces."""
    form = draw(st.sampled_from(list(FORMATS.values())))
    words = st.sampled_from(
        ["", " ", "Hi, ", "日本 👩‍🚀\n", "<tool", "{", "[TOOL_", "<|", "; ", '"']
    )
    text = "".join(draw(st.lists(words | calls(form), max_size=5)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    return form, text, pieces


def read(form: ToolFormat, pieces: Sequence[str], parallel: bool = True) -> Said:
    """What comes, adjacent texts put together."""
    parser = ToolParser(form, TOOLS, parallel)
    made = [each for piece in pieces for each in parser.push(piece)] + parser.finish()
    said: Said = []
    for each in made:
        if isinstance(each, ToolCallText):
            said.append((each.name, each.arguments))
        elif said and isinstance(said[-1], str):
            said[-1] += each
        else:
            said.append(each)
    return said


@given(answers())
def test_a_stream_is_what_the_whole_is(answer: tuple[ToolFormat, str, list[str]]) -> None:
    form, text, pieces = answer
    whole = read(form, [text])
    assert read(form, pieces) == whole
    assert read(form, list(text)) == whole
    if all(isinstance(each, str) for each in whole) and "[" not in text:
        assert "".join(map(str, whole)) == text  # nothing was taken for a call: nothing is missing


def reference(form: ToolFormat, text: str) -> Iterator[str | tuple[str, Any]]:
    """Of a whole text, with the standard library's reader of JSON."""
    said = False
    behind = 0
    while text:
        lead = text.lstrip(" \t\r\n" + (form.separator if behind else ""))
        if form.bare and not said and lead.startswith("{"):
            before, mark, rest = text[: len(text) - len(lead)], "{", lead[1:]
            found = _calls(lead)
        else:
            before, mark, rest = text.partition(form.opening)
            found = _calls(rest) if mark else None
        said = said or bool(before.strip(" \t\r\n" + (form.separator if behind else "")))
        yield before
        if found is None:
            yield mark
            text, said, behind = rest, said or bool(mark), 0
            continue
        made, text = found
        yield from made
        closed = text.lstrip(" \t\r\n")
        if form.closing and closed.startswith(form.closing):
            text = closed[len(form.closing) :]
        behind = 0 if said else 1


def _calls(text: str) -> tuple[list[tuple[str, Any]], str] | None:
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    if not isinstance(value, list | dict):
        return None
    made = []
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, dict):
            return None
        values = [call[key] for key in ("arguments", "parameters") if key in call]
        if call.get("name") not in TOOLS or len(values) != 1 or not isinstance(values[0], dict):
            return None
        made.append((call["name"], values[0]))
    return made, text[end:]


@given(answers())
def test_calls_are_those_of_a_reader_of_whole_texts(
    answer: tuple[ToolFormat, str, list[str]],
) -> None:
    form, text, pieces = answer
    expected = list(reference(form, text))
    got = read(form, pieces)
    calls = [(name, json.loads(given)) for name, given in (e for e in got if isinstance(e, tuple))]
    assert calls == [each for each in expected if isinstance(each, tuple)]
    content = "".join(each for each in got if isinstance(each, str))
    wanted = "".join(each for each in expected if isinstance(each, str))
    assert _bare(content, form) == _bare(wanted, form)


def _bare(text: str, form: ToolFormat) -> str:
    """Without what may stand about calls."""
    return "".join(letter for letter in text if letter not in " \t\r\n" + form.separator)


CALL = '{"name": "add", "arguments": {"a": 1.50, "b": "}<tool_call>"}}'
MADE = ("add", '{"a": 1.50, "b": "}<tool_call>"}')


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", [MADE]),
        ("hermes", f"Let me.\n<tool_call>{CALL}</tool_call>\n", ["Let me.", MADE]),
        ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}", [MADE, MADE]),
        ("hermes", f"<tool_call>{CALL}</tool_call> Done. ", [MADE, " Done. "]),
        ("hermes", "<tool_call>{oops</tool_call>", ["<tool_call>{oops</tool_call>"]),
        ("hermes", CALL, [CALL]),
        ("smollm", f"<tool_call>[{CALL}, {CALL}]</tool_call>", [MADE, MADE]),
        ("smollm", "<tool_call>[]</tool_call>", []),
        ("mistral", f"[TOOL_CALLS] [{CALL}]", [MADE]),
        ("llama3", CALL.replace("arguments", "parameters"), [MADE]),
        ("llama3", f"<|python_tag|>{CALL}; {CALL}", [MADE, MADE]),
        ("llama3", f"It is {CALL}", [f"It is {CALL}"]),
        ("llama3", '{"name": "nobody"} ', ['{"name": "nobody"} ']),
    ],
)
def test_forms(form: str, text: str, said: Said) -> None:
    assert read(FORMATS[form], [text]) == said
    assert read(FORMATS[form], list(text)) == said


def test_where_calls_are_not_parallel_the_first_is_all() -> None:
    text = f"Well. <tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call> Done."
    assert read(FORMATS["hermes"], [text], parallel=False) == ["Well.", MADE]
    assert read(FORMATS["smollm"], [f"<tool_call>[{CALL},{CALL}]"], parallel=False) == [MADE]


@pytest.mark.parametrize("text", ['<tool_call>{"', "<tool_call>[", '<tool_call>["\\"', "{[" * 9])
def test_openings_without_end_take_time_by_their_length(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    find = _JsonEnd.find

    def counted(self: _JsonEnd, rest: str) -> int | None:
        nonlocal looked_at
        before = self._at
        found = find(self, rest)
        looked_at += self._at - before
        return found

    monkeypatch.setattr(_JsonEnd, "find", counted)
    parser = ToolParser(FORMATS["hermes"], TOOLS)
    long = text * 2000
    assert "".join(map(str, parser.push(long) + parser.finish())) == long
    assert looked_at <= 3 * len(long)
