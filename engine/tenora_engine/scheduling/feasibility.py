"""Feasibility: when a request's first token is to be expected, and how long until what is refused
now would be taken. It knows work by its size, not whose it is."""

from __future__ import annotations

import math

from tenora_engine.memory.costs import CostModel

_MEMORY_S = 10.0  # time in which an observation loses 63% of its weight
_RETRY_MS_MAX = 60_000


class Feasibility:
    """Predictions from the rate at which work (in tokens, see `charges`) has lately left the queue
    while something waited. That rate falls whatever the queue waits for: compute, pages, places in
    the batch."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._started = 0.0  # faded sum of work that left the queue
        self._seconds = 0.0  # in this faded time

    def observe_drain(self, work: float, seconds: float) -> None:
        """`work` has left the queue in `seconds` in which the queue was never empty."""
        past = math.exp(-seconds / _MEMORY_S)
        self._started = past * self._started + work
        self._seconds = past * self._seconds + seconds

    @property
    def work_per_s(self) -> float:
        """As observed; what has been seen for less than a second counts in part, the rate at which
        prompts are prefilled in its stead."""
        unseen_s = max(1.0 - self._seconds, 0.0)
        seen = self._started + unseen_s / self._costs.token_s
        return max(seen / (self._seconds + unseen_s), 1e-3)

    def ttft_s(self, work_before: float, load_s: float, work: float) -> float:
        """Seconds until the first token of a request of `work`: it waits for the work before it
        and, at the same time, for its adapter; then it is prefilled."""
        return max(work_before / self.work_per_s, load_s) + work * self._costs.token_s

    def retry_after_ms(self, seconds: float) -> int:
        return min(max(math.ceil(seconds * 1000), 1), _RETRY_MS_MAX)

    def drain_ms(self, work: float) -> int:
        """Until this much work has left the queue."""
        return self.retry_after_ms(work / self.work_per_s)
