"""The selection of a beam search against one written down anew: texts as lists, every continuation
of every text, sorted. Which texts come of transformers itself, test_beam_search asks."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_engine.errors import InvalidRequestError
from tenora_engine.request import BEAM_WIDTH_MAX, BeamSearch, Grammar, SamplingParams
from tenora_engine.scheduling.beam_search import BeamGroup, check_beams

Text = tuple[int, ...]


@dataclass
class Model:
    """Log probabilities of what follows a text; the same each time."""

    seed: int
    vocab: int
    known: dict[Text, list[float]] = field(default_factory=dict)

    def after(self, text: Text) -> list[float]:
        if text not in self.known:
            chance = random.Random(f"{self.seed}/{text}")
            weights = [math.exp(chance.gauss(0, 2)) for _ in range(self.vocab)]
            self.known[text] = [math.log(weight / sum(weights)) for weight in weights]
        return self.known[text]


@dataclass(frozen=True)
class Case:
    model: Model
    width: int
    ends: frozenset[int]
    max_tokens: int
    min_tokens: int
    penalty: float
    early: bool | Literal["never"]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    width = draw(st.integers(2, 5))
    vocab = draw(st.integers(width + 3, 16))
    ends = draw(st.sets(st.integers(0, vocab - 1), max_size=3))
    max_tokens = draw(st.integers(1, 9))
    return Case(
        Model(draw(st.integers(0, 2**32)), vocab),
        width,
        frozenset(ends),
        max_tokens,
        draw(st.integers(0, max_tokens)),
        draw(st.sampled_from([1.0, 0.0, 0.5, 2.0, -1.0])),
        draw(st.sampled_from([False, True, "never"])),
    )


def reference(case: Case) -> list[Text]:
    """The best texts, each with what ended it."""
    running: list[tuple[float, Text]] = [(0.0, ())]
    finished: list[tuple[float, Text]] = []
    for length in range(1, case.max_tokens + 1):
        every = [
            (total + logprob, (*text, token))
            for total, text in running
            for token, logprob in enumerate(case.model.after(text))
            if length > case.min_tokens or token not in case.ends
        ]
        every.sort(reverse=True)
        is_last = length == case.max_tokens
        for total, text in every[: case.width]:
            if is_last or text[-1] in case.ends:
                finished.append((total / length**case.penalty, text))
        finished = sorted(finished, reverse=True)[: case.width]
        running = [each for each in every if each[1][-1] not in case.ends][: case.width]
        if len(finished) == case.width:
            ahead = case.early == "never" and case.penalty > 0
            best = running[0][0] / (case.max_tokens if ahead else length) ** case.penalty
            if case.early is True or best <= finished[-1][0]:
                break
    return [text for _, text in finished]


@settings(deadline=None, max_examples=300)
@given(cases())
def test_the_texts_are_those_of_a_plain_search(case: Case) -> None:
    group = BeamGroup(
        BeamSearch(length_penalty=case.penalty, early_stopping=case.early),
        case.width,
        case.max_tokens,
        case.min_tokens,
        case.ends,
        num_logprobs=2,
    )
    texts: list[Text] = [()]
    while not group.is_over:
        for place, text in enumerate(texts):
            assert not group.is_complete
            ranked = sorted(enumerate(case.model.after(text)), key=lambda each: -each[1])
            group.found[place] = ranked[: group.num_candidates]
        assert group.is_complete
        parents = group.select()
        for parent in set(parents):
            assert parents[parent] == parent, "who is gone on with has lost its place"
        if not group.is_over:
            texts = [
                (*texts[parent], beam.token_id)
                for parent, beam in zip(parents, group.beams, strict=True)
            ]
            assert texts == [tuple(each.token_id for each in b.path()) for b in group.beams]
    best = group.best()
    found = [tuple(each.token_id for each in one.beam.path()) for one in best]
    assert found == reference(case)
    for text, one in zip(found, best, strict=True):
        assert one.reason == ("stop" if text[-1] in case.ends else "length")
        assert one.stop_token_id == (text[-1] if text[-1] in case.ends else None)
        logprobs = [case.model.after(text[:at])[token] for at, token in enumerate(text)]
        scored = [each.found for each in one.beam.path()]
        assert all(each is not None and len(each.top) == 2 for each in scored)
        # Totals are sums of sums: each difference has their rounding.
        assert [each.logprob for each in scored if each] == pytest.approx(logprobs, abs=1e-9)


def test_what_is_open_counts_where_a_search_is_cut_off() -> None:
    group = BeamGroup(BeamSearch(), 2, 8, stop_ids=frozenset({9}))
    assert group.best() == []
    group.found[0] = [(4, -0.5), (9, -1.0), (5, -2.0)]
    group.select()
    assert [(one.reason, one.score) for one in group.best()] == [("length", -0.5), ("stop", -1.0)]


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(temperature=0.5, n=2), "temperature"),
        (SamplingParams(temperature=0, n=2, top_k=3), "top_k"),
        (SamplingParams(temperature=0, n=2, repetition_penalty=1.1), "repetition_penalty"),
        (SamplingParams(temperature=0, n=2, seed=0), "seed"),
        (SamplingParams(temperature=0, n=2, prompt_logprobs=0), "prompt_logprobs"),
        (SamplingParams(temperature=0, n=BEAM_WIDTH_MAX + 1), "n"),
        (SamplingParams(temperature=0, n=2, allowed_token_ids=(1,)), "allowed_token_ids"),
        (SamplingParams(temperature=0, grammar=Grammar("regex", "a", "guided_regex")), "guided_"),
    ],
)
def test_what_has_no_meaning_is_refused(params: SamplingParams, name: str) -> None:
    asked = msgspec.structs.replace(params, beams=BeamSearch())
    with pytest.raises(InvalidRequestError) as caught:
        check_beams(asked, 100, frozenset({1}))
    assert str(caught.value.param).startswith(name)


@pytest.mark.parametrize("penalty", [11.0, math.nan, -math.inf])
def test_length_penalties_have_bounds(penalty: float) -> None:
    asked = SamplingParams(temperature=0, n=2, beams=BeamSearch(length_penalty=penalty))
    with pytest.raises(InvalidRequestError, match="length_penalty"):
        check_beams(asked, 100, frozenset())
