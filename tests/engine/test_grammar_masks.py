"""Masks against a reference that enumerates: a token may come where it, behind what was written,
begins one of the texts that a grammar has. On the whole vocabulary of the default model's
tokenizer, with logits wider than it."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tenora_engine.executor.sampling import MASKED, mask_on_device, mask_on_host
from tenora_engine.grammar.checker import compile_text
from tenora_engine.grammar.guide import (
    ALLOWANCE_S,
    ALLOWANCE_SHARE,
    SLOW_S,
    TENANT_ALLOWANCES,
    USUAL_S,
    Allowance,
    Guide,
    StepTimes,
    Vocabulary,
    masks_by_row,
    next_masks,
)
from tenora_engine.step import (
    Bits,
    LogitChanges,
    Masks,
    Rows,
    Sampling,
    StepPlan,
    decode_plan,
    encode,
)
from tenora_engine.text.processor import TextProcessor

EOS = 2
WIDER = 40  # logits beyond the tokenizer's own


@pytest.fixture(scope="module")
def text(base_model_dir: Path) -> TextProcessor:
    return TextProcessor(base_model_dir)


@pytest.fixture(scope="module")
def vocabulary(base_model_dir: Path, text: TextProcessor) -> Vocabulary:
    return Vocabulary(base_model_dir, text.vocab_size + WIDER, [EOS], threads=2)


def guide(vocabulary: Vocabulary, kind: str, content: str) -> Guide:
    return Guide(vocabulary, vocabulary.matcher(compile_text(kind, content)))


def allowed(bits: npt.NDArray[np.int32]) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def reference(text: TextProcessor, texts: set[bytes], written: bytes) -> set[int]:
    found = {EOS} if written in texts else set()
    rests = [each[len(written) :] for each in texts if each.startswith(written)]
    for token in range(text.vocab_size):
        piece = text.token_bytes(token)
        if piece and token > 16 and any(rest.startswith(piece) for rest in rests):
            found.add(token)  # below are control tokens, which grammars never allow
    return found


WORDS = ["yes", "yesterday", "no", "no way", "größer", "日本 go", 'a "b"\n']
LANGUAGES: dict[str, tuple[str, str, set[bytes]]] = {
    "choice": ("choice", json.dumps(WORDS), {word.encode() for word in WORDS}),
    "regex": (
        "regex",
        "(red|green)-[ab]{2}(,x)?",
        {
            f"{color}-{a}{b}{rest}".encode()
            for color, a, b, rest in product(("red", "green"), "ab", "ab", ("", ",x"))
        },
    ),
    "schema": (
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "properties": {"on": {"type": "boolean"}, "of": {"enum": ["a b", None, 12]}},
                "required": ["on", "of"],
                "additionalProperties": False,
            }
        ),
        {
            f'{{"on":{a}{json.dumps(on)},{b}"of":{c}{json.dumps(of)}}}'.encode()
            for on, of in product((True, False), ("a b", None, 12))
            for a, b, c in product(("", " "), repeat=3)
        },
    ),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_masks_are_the_texts_that_may_come(
    vocabulary: Vocabulary, text: TextProcessor, name: str
) -> None:
    kind, content, texts = LANGUAGES[name]
    first = guide(vocabulary, kind, content)
    for whole in sorted(texts)[::2]:
        one, written = first.copy(), b""
        for token in text.encode(whole.decode(), add_special_tokens=False):
            found, expected = allowed(next_masks([one])[0]), reference(text, texts, written)
            if found != expected:  # what must come is allowed as the tokenizer would write it alone
                assert found == {one.forced_tokens()[0]}
                assert found < expected
            assert one.advance(token) or written + text.token_bytes(token) == whole
            written += text.token_bytes(token)
        assert one.error is None


def test_rows_of_one_call_are_each_their_own(vocabulary: Vocabulary) -> None:
    guides = [guide(vocabulary, kind, content) for kind, content, _ in LANGUAGES.values()]
    together = next_masks(guides)
    for each, bits in zip(guides, together, strict=True):
        assert np.array_equal(next_masks([each])[0], bits)


def test_drafts_are_validated_and_taken_back(vocabulary: Vocabulary, text: TextProcessor) -> None:
    one = guide(vocabulary, "choice", '["one two three", "one two four"]')
    draft = text.encode("one two five", add_special_tokens=False)
    before = next_masks([one]).copy()
    right = one.validate(draft)
    assert 0 < right < len(draft)
    for token in draft[:right]:
        assert one.advance(token)
    one.rollback(right)
    assert np.array_equal(next_masks([one]), before)
    with pytest.raises(ValueError, match="5 tokens"):
        one.rollback(5)


def test_forced_tokens_are_what_must_come(vocabulary: Vocabulary, text: TextProcessor) -> None:
    one = guide(
        vocabulary,
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "properties": {"answer": {"type": "boolean"}},
                "required": ["answer"],
            }
        ),
    )
    forced = one.forced_tokens()
    assert forced
    assert b'{"answer":'.startswith(b"".join(text.token_bytes(token) for token in forced))
    for token in forced:
        assert one.advance(token)


def test_what_is_not_allowed_is_an_error(vocabulary: Vocabulary, text: TextProcessor) -> None:
    one = guide(vocabulary, "choice", '["yes"]')
    assert not one.advance(text.encode("no", add_special_tokens=False)[0])
    assert one.error is not None
    assert "cannot be followed" in one.error


def rows_take(grammars: dict[Allowance, list[float]]) -> None:
    """In a step, each row of each of them."""
    times = StepTimes()
    for allowance, rows in grammars.items():
        for seconds in rows:
            guide = object()
            times.note(guide, allowance, seconds / 4)
            times.note(guide, allowance, 3 * seconds / 4)
    times.settle()
    times.settle()


def test_slow_masks_are_paid_for() -> None:
    clock = [0.0]
    allowance = Allowance(lambda: clock[0])

    def is_spent(*steps: float) -> bool:
        for seconds in steps:
            rows_take({allowance: [seconds]})
        return allowance.is_spent

    assert not is_spent(*[SLOW_S / 2] * 1000)
    assert is_spent(ALLOWANCE_S, 0.01)
    clock[0] = 0.011 / ALLOWANCE_SHARE
    assert not is_spent()


def test_a_tenant_has_one_allowance_however_many_grammars_it_writes() -> None:
    """Those of its grammars that were never slow go on."""
    clock = [0.0]
    tenant = Allowance(lambda: clock[0], times=TENANT_ALLOWANCES)
    grammars = [Allowance(lambda: clock[0], tenant=tenant) for _ in range(50)]
    quick = Allowance(lambda: clock[0], tenant=tenant)
    taken_s = 0.0
    for grammar in grammars:
        while not grammar.is_spent and taken_s < 10:
            rows_take({grammar: [0.01], quick: [USUAL_S / 2]})
            taken_s += 0.01
    # Of each a first mask, before it is known to be slow: no more are compiled by then.
    assert taken_s < TENANT_ALLOWANCES * ALLOWANCE_S + 0.02 + 0.01 * len(grammars)
    assert not quick.is_spent
    assert tenant.is_spent
    clock[0] = tenant.spent_for_s + 0.1
    assert not tenant.is_spent


def test_many_rows_of_which_none_is_slow_are_paid_for_together() -> None:
    """However many grammars they are of; ordinary ones, and another tenant's, are not."""
    tenant = Allowance(lambda: 0.0, times=TENANT_ALLOWANCES)
    grammars = [Allowance(lambda: 0.0, tenant=tenant) for _ in range(60)]
    other = Allowance(lambda: 0.0, tenant=Allowance(lambda: 0.0, times=TENANT_ALLOWANCES))
    steps = 0
    while not grammars[0].is_spent and steps < 1000:
        rows_take({**{each: [SLOW_S / 2] for each in grammars}, other: [USUAL_S] * 60})
        steps += 1
    assert steps <= TENANT_ALLOWANCES * ALLOWANCE_S / (60 * SLOW_S / 2) + 1
    assert tenant.is_spent
    assert not other.is_spent


class Slow:
    """A matcher all of whose answers take long."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            until_s = time.thread_time() + 2 * SLOW_S
            while time.thread_time() < until_s:
                pass
            return getattr(self._real, name)(*arguments)

        return answer


ASKED: dict[str, Callable[[Guide, int], object]] = {
    "forced tokens": lambda one, token: one.forced_tokens(),
    "drafts": lambda one, token: one.validate([token]),
    "look-ahead": lambda one, token: one.ahead([token]),
    "advance": lambda one, token: one.advance(token),
}


@pytest.mark.parametrize("name", ASKED)
def test_whatever_is_asked_of_a_guide_is_paid_for(
    vocabulary: Vocabulary, text: TextProcessor, name: str
) -> None:
    [token, *_] = text.encode("one two", add_special_tokens=False)
    one = guide(vocabulary, "choice", '["one two three", "one two four"]')
    slow = Guide(vocabulary, Slow(one.matcher), Allowance(lambda: 0.0))
    left_s = slow.allowance._left_s
    ASKED[name](slow, token)
    next_masks([one])
    assert slow.allowance._left_s < left_s - 2 * SLOW_S


@pytest.mark.parametrize("mask", [mask_on_host, mask_on_device])
def test_what_is_masked_stands_below_everything(mask: object) -> None:
    assert callable(mask)
    generator = np.random.default_rng(4)
    vocab, rows = 77, torch.tensor([0, 3])
    logits = torch.from_numpy(generator.standard_normal((5, vocab), np.float32))
    logits[3, 5] = -3e38
    keep = generator.random((2, vocab)) < 0.4
    padded = np.zeros((2, 96), bool)
    padded[:, :vocab] = keep
    bits = torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))
    expected = logits.numpy().copy()
    for place, row in enumerate(rows.tolist()):
        expected[row][~keep[place]] = MASKED
    mask(logits, rows, bits)
    assert np.array_equal(logits.numpy(), expected.astype(np.float32))


def test_masks_cross_to_an_executor(vocabulary: Vocabulary) -> None:
    masks = next_masks([guide(vocabulary, "regex", "[a-z]+")]).reshape(-1)
    changes = LogitChanges(None, None, None, None, None, None, np.array([4]), Masks(masks))
    plan = StepPlan(1, Rows([], *[_ints() for _ in range(6)]), Sampling(changes, None, {}))
    found = decode_plan(encode(plan)).sampling
    assert found is not None
    assert found.changes is not None
    assert found.changes.masks is not None
    assert found.changes.mask_rows is not None
    assert np.array_equal(found.changes.masks.bits, masks)
    assert np.array_equal(found.changes.mask_rows, [4])


def _ints() -> array[int]:
    return array("i")


def test_masks_are_made_beside_what_follows(vocabulary: Vocabulary) -> None:
    """In the order of their rows, those of one token alone among them; what fails says so to who
    reads them."""
    guides = [guide(vocabulary, "regex", text) for text in ("[a-z]+", "[0-9]+", "[a-z]+")]
    rows, masks = masks_by_row([(5, guides[0]), (1, guides[1]), (3, guides[2])], [(2, 40)])
    assert rows.tolist() == [1, 2, 3, 5]
    made = masks.bits  # a guide is asked by one at a time
    letters, digits = next_masks(guides[:1])[0], next_masks(guides[1:2])[0]
    only = np.zeros_like(letters)
    only[1] = 1 << 8
    assert np.array_equal(made, np.concatenate([digits, only, letters, letters]))

    def fail() -> Bits:
        raise ValueError("no masks today")

    with pytest.raises(ValueError, match="no masks today"):
        _ = Masks(vocabulary.beside(fail)).bits
