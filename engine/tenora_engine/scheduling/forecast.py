"""StepForecast: what the next step will take, and how many tokens fit a time, learnt from
the steps that were run. Plain arithmetic; it plans nothing."""

from __future__ import annotations

import math
from typing import NamedTuple

from tenora_engine.memory.costs import CostModel
from tenora_engine.scheduling.plan import ScheduledStep
from tenora_engine.sequence import Sequence

RATE, RATE_DOWN = 0.1, 0.2
"""Of each step's error, so much is corrected; more of one that took less time than predicted, which
no pause of the machine explains."""

FIRST_STEPS = 8
"""Until then an error is taken to be of the machine as a whole."""

ERROR_MAX = 1.0
"""A step that took far longer than predicted counts as twice as long."""

TOKEN_S_MIN = 1e-9
"""No machine is as fast: what is less is an error of the clock."""

BOUND = 16.0
"""Each cost stays within this factor of what it should be beside a token's: what was not seen for
long may not drift away."""

_CPU_RATIOS = (12.0, 0.25)
_CUDA_RATIOS = (128.0, 0.0625)
"""What a step itself and a row that decodes cost, in prefilled tokens: until it has been seen."""

_CPU_READ, _CUDA_READ = 2.0, 26.0
"""A position that a decoding row attends to, over one that a prefilled token does: the first is
read for one query, the second for a chunk of them."""


_SCORED = 1.0
"""A token of a prompt whose logprobs are wanted, in prefilled tokens beside its own: it takes a row
of the vocabulary, as an output token does."""


class StepLoad(NamedTuple):
    """What the time of a step depends on."""

    rows: float = 0.0  # that decode
    positions: float = 0.0  # which these attend to, all together
    tokens: float = 0.0  # of prefill and drafts, each as dear as its adapter makes it
    pairs: float = 0.0  # of such a token and a position that it attends to
    scored: float = 0.0  # tokens of prompts whose logprobs are wanted


def load_of(step: ScheduledStep) -> StepLoad:
    """Of a step that has not been committed. O(rows)."""
    if step.is_decode and not step.num_drafts:
        rows = len(step)
        return StepLoad(rows, rows + sum([item.sequence.num_computed for item in step.items]))
    rows = positions = scored = 0
    tokens = pairs = 0.0
    for item in step.items:
        sequence, count = item.sequence, item.num_tokens + len(item.drafts)
        if count == 1:
            rows += 1
            positions += sequence.num_computed + 1
        else:
            tokens += count * sequence.service.token_cost
            pairs += _pairs(count, sequence.num_computed)
        scored += item.num_scored
    return StepLoad(rows, positions, tokens, pairs, scored)


def _pairs(count: float, start: int) -> float:
    """Of `count` tokens in a row and all up to and with themselves, after `start` others."""
    return count * (start + 0.5 * (count + 1))


class StepForecast:
    """The time of a step as a sum: a part for the step, for each row that decodes and each position
    that it attends to, for each prefilled token and each position that it attends to, and for each
    token whose logprobs are wanted.

    Learnt by a normalised gradient: of a step's relative error, each cost is blamed by its share
    of what was predicted (Kaczmarz' projection in logarithmic steps), so that none is ever
    negative and steps of one kind leave what they do not show as it was.
    """

    def __init__(self, costs: CostModel, is_cuda: bool = False) -> None:
        self._costs = costs
        step, row = _CUDA_RATIOS if is_cuda else _CPU_RATIOS
        pair = 1.0 / costs.even_tokens
        read = _CUDA_READ if is_cuda else _CPU_READ
        self._priors = (step, row, pair * read, 1.0, pair, _SCORED)
        self._seconds = [costs.token_s * each for each in self._priors]
        self._num_seen = 0
        self._context = 0.0  # positions of a row that decodes, of late

    @property
    def token_s(self) -> float:
        """Seconds a prefilled token takes, without its context."""
        return self._seconds[3]

    def observe(self, load: StepLoad, step_s: float) -> None:
        """A step with this load took so long."""
        if step_s <= 0:
            return
        if load.rows:
            self._context += RATE * (load.positions / load.rows - self._context)
        parts = [cost * count for cost, count in zip(self._seconds, (1.0, *load), strict=True)]
        predicted_s = sum(parts)
        error = step_s / predicted_s - 1
        self._num_seen += 1
        if self._num_seen <= FIRST_STEPS:
            factors = [1 + error / self._num_seen] * len(parts)
        else:
            error *= RATE_DOWN if error < 0 else RATE
            error = min(error, RATE * ERROR_MAX)
            squares = sum(part * part for part in parts)
            factors = [1 + error * part * predicted_s / squares for part in parts]
        scaled = [s * factor for s, factor in zip(self._seconds, factors, strict=True)]
        token_s = max(scaled[3], TOKEN_S_MIN)
        self._seconds = [
            min(max(s, token_s * prior / BOUND), token_s * prior * BOUND)
            for s, prior in zip(scaled, self._priors, strict=True)
        ]

    def decode_s(self, rows: float) -> float:
        """Seconds of a step in which so many rows decode and nothing else is done."""
        step_s, row_s, position_s, *_ = self._seconds
        return step_s + rows * (row_s + position_s * self._context)

    def row_s(self, positions: int) -> float:
        """Seconds that a row takes which attends to so many positions."""
        return self._seconds[1] + self._seconds[2] * positions

    def work_s(self, load: StepLoad) -> float:
        """Seconds of a step's prefills and drafts."""
        _, _, _, token_s, pair_s, scored_s = self._seconds
        return token_s * load.tokens + pair_s * load.pairs + scored_s * load.scored

    def token_cost(self, sequence: Sequence) -> float:
        """What a token of its prompt costs, in those of the base model: more by its adapter, and
        where its logprobs are wanted."""
        cost = sequence.service.token_cost
        return cost + self._seconds[5] / self._seconds[3] if sequence.num_unscored else cost

    def prefill_s(self, tokens: float, start: int = 0, token_cost: float = 1.0) -> float:
        """Seconds that `tokens` more take, of a sequence that has computed `start` already."""
        return self._seconds[3] * token_cost * tokens + self._seconds[4] * _pairs(tokens, start)

    def tokens_within(self, seconds: float, start: int = 0, token_cost: float = 1.0) -> int:
        """The most tokens with a `prefill_s` of no more than that."""
        if seconds <= 0:
            return 0
        pair_s = self._seconds[4]
        linear_s = self._seconds[3] * token_cost + pair_s * (start + 0.5)
        # The root of pair_s / 2 n^2 + linear_s n = seconds, without cancellation.
        tokens = 2 * seconds / (linear_s + math.sqrt(linear_s * linear_s + 2 * pair_s * seconds))
        return int(tokens * (1 + 1e-9))

    def prompt_s(self, sequence: Sequence) -> float:
        """Seconds that the whole prompt of a sequence takes, but for what was cached of it."""
        start = sequence.usage.cached_tokens
        tokens = max(sequence.num_prompt - start, 0)
        return self.prefill_s(tokens, start, self.token_cost(sequence))
