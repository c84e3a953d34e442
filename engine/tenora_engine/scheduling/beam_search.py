"""BeamGroup: one request's beam search as numbers: which texts are open, which have ended, and what
the next tokens go on with. It knows log probabilities by token; no pages, no queue."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tenora_engine.errors import InvalidRequestError
from tenora_engine.events import FinishReason, TokenLogprob
from tenora_engine.request import (
    BEAM_WIDTH_MAX,
    LENGTH_PENALTY_MAX,
    BeamSearch,
    SamplingParams,
)

Candidates = list[tuple[int, float]]
"""The likeliest next tokens of one beam with their log probabilities, the best first."""


def check_beams(sampling: SamplingParams, vocab: int, stop_ids: frozenset[int]) -> None:
    """Raises InvalidRequestError that names what does not go together with a beam search, which
    goes by the model's own distribution."""
    beams = sampling.beams
    if beams is None:
        return
    most = min(BEAM_WIDTH_MAX, vocab - len(stop_ids))
    if sampling.n > most:
        raise InvalidRequestError(
            f"a beam search can have at most {most} beams on this engine", "n"
        )
    if not abs(beams.length_penalty) <= LENGTH_PENALTY_MAX:  # as NaN is not
        raise InvalidRequestError(
            f"length_penalty must be between {-LENGTH_PENALTY_MAX:g} and {LENGTH_PENALTY_MAX:g}",
            "length_penalty",
        )
    grammar = sampling.grammar
    for name, is_neutral in (
        ("temperature", sampling.temperature == 0),
        ("top_p", sampling.top_p == 1),
        ("top_k", sampling.top_k == 0),
        ("min_p", sampling.min_p == 0),
        ("seed", sampling.seed is None),
        ("presence_penalty", sampling.presence_penalty == 0),
        ("frequency_penalty", sampling.frequency_penalty == 0),
        ("repetition_penalty", sampling.repetition_penalty == 1),
        ("logit_bias", not sampling.logit_bias),
        ("bad_words", not sampling.bad_words),
        ("allowed_token_ids", sampling.allowed_token_ids is None),
        ("prompt_logprobs", sampling.prompt_logprobs is None),
        ("embeds", not sampling.embeds),
        ("grammar" if grammar is None else grammar.param, grammar is None),
    ):
        if not is_neutral:
            raise InvalidRequestError(
                f"{name} cannot be combined with a beam search; leave it out", name
            )


@dataclass(frozen=True, eq=False, slots=True)
class Beam:
    """A text, by its last token and what is before it."""

    before: Beam | None = None
    token_id: int = -1  # none of the first, which is empty
    total: float = 0.0  # log probability of all of it
    found: TokenLogprob | None = None  # of its last token, where logprobs are wanted

    def path(self) -> list[Beam]:
        """One for each token, in order."""
        return list(reversed(list(self._back())))

    def _back(self) -> Iterator[Beam]:
        beam = self
        while beam.before is not None:
            yield beam
            beam = beam.before


class Hypothesis(NamedTuple):
    """A text that has ended, or is all there is of one."""

    score: float
    beam: Beam
    reason: FinishReason
    stop_token_id: int | None  # the last token, which is not to be shown


class _Candidate(NamedTuple):
    total: float
    place: int
    token_id: int


@dataclass(eq=False, slots=True)
class BeamGroup:
    """The beams of one request, each at a place of its own from 0 on: beam search as transformers
    5 has it (`GenerationMixin._beam_search`), with the same order of scores and the same ends."""

    params: BeamSearch
    width: int
    max_tokens: int
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None  # alternatives that are reported with each token
    num_steps: int = 0  # tokens that each beam has got
    is_over: bool = False
    beams: list[Beam] = field(default_factory=lambda: [Beam()])  # by place; one before all others
    ended: list[Hypothesis] = field(default_factory=list)  # the best `width`, the best first
    found: dict[int, Candidates] = field(default_factory=dict)  # by place, of the present step

    @property
    def num_candidates(self) -> int:
        """Of each beam: what ends a text leaves `width` tokens to go on with."""
        return max(self.width + len(self.stop_ids), self.num_logprobs or 0)

    @property
    def is_complete(self) -> bool:
        """Whether all beams have their candidates."""
        return len(self.found) == len(self.beams)

    def select(self) -> list[int]:
        """The next token of each beam, chosen among the candidates of all. Returns by place the
        beam, by its place, that is gone on with; one that is at all is at its own place. The beams
        stay as they are when the search is over. O(width * candidates)."""
        first_end = self.min_tokens <= self.num_steps
        self.num_steps += 1
        is_last = self.num_steps >= self.max_tokens
        ranked = sorted(
            (
                _Candidate(self.beams[place].total + logprob, place, token_id)
                for place, found in sorted(self.found.items())
                for token_id, logprob in found
                if first_end or token_id not in self.stop_ids
            ),
            key=lambda candidate: -candidate.total,
        )
        open_ones: list[_Candidate] = []
        for rank, candidate in enumerate(ranked):
            is_end = candidate.token_id in self.stop_ids
            if is_last or is_end:
                if rank < self.width:
                    self.ended.append(self._hypothesis(self._beam(candidate), is_end))
            elif len(open_ones) < self.width:
                open_ones.append(candidate)
            if rank >= self.width and (is_last or len(open_ones) == self.width):
                break
        self.ended.sort(key=lambda hypothesis: -hypothesis.score)
        del self.ended[self.width :]
        self.is_over = is_last or self._is_decided(open_ones[0].total)
        parents: list[int] = []
        if not self.is_over:
            placed = _placed(open_ones)
            parents = [candidate.place for candidate in placed]
            self.beams = [self._beam(candidate) for candidate in placed]
        self.found.clear()
        return parents

    def best(self) -> list[Hypothesis]:
        """The best first; of a search that is not over, open texts among them."""
        found = list(self.ended)
        if not self.is_over and self.num_steps:
            found += [self._hypothesis(beam, by_stop=False) for beam in self.beams]
        return sorted(found, key=lambda hypothesis: -hypothesis.score)[: self.width]

    def _is_decided(self, best_open: float) -> bool:
        """Whether no open text, the best of which has this log probability, is to be gone on
        with."""
        if len(self.ended) < self.width:
            return False
        if self.params.early_stopping is True or self.width == 1:
            return True  # one beam is the greedy text
        looks_ahead = self.params.early_stopping == "never" and self.params.length_penalty > 0
        length = self.max_tokens if looks_ahead else self.num_steps
        return _score(best_open, length, self.params.length_penalty) <= self.ended[-1].score

    def _hypothesis(self, beam: Beam, by_stop: bool) -> Hypothesis:
        score = _score(beam.total, self.num_steps, self.params.length_penalty)
        if by_stop:
            return Hypothesis(score, beam, "stop", beam.token_id)
        return Hypothesis(score, beam, "length", None)

    def _beam(self, candidate: _Candidate) -> Beam:
        total, place, token_id = candidate
        scored = None
        if self.num_logprobs is not None:
            top = self.found[place]
            logprob = total - self.beams[place].total
            scored = TokenLogprob(token_id, logprob, top[: self.num_logprobs])
        return Beam(self.beams[place], token_id, total, scored)


def _score(total: float, length: int, penalty: float) -> float:
    return total / math.pow(length, penalty)


def _placed(chosen: list[_Candidate]) -> list[_Candidate]:
    """By the place that each gets: the first that goes on with a beam keeps its place, so that as
    little KV as can be has to be copied."""
    kept: dict[int, _Candidate] = {}
    moved: list[_Candidate] = []
    for candidate in chosen:
        if kept.setdefault(candidate.place, candidate) is not candidate:
            moved.append(candidate)
    others = iter(moved)
    return [kept[place] if place in kept else next(others) for place in range(len(chosen))]
