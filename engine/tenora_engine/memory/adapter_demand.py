"""AdapterDemand: how many distinct adapters a batch is expected to need. It sees which sequences
start and how many run."""

from __future__ import annotations

import math

from tenora_engine.memory.heat import fade

_BATCH_S = 5.0  # ELORA averages the batch size over the last 5 s
_REFRESH_S = 0.5  # an estimate costs O(adapters)
_FORGOTTEN = 1e-3  # heat below which an adapter is no longer counted


class AdapterDemand:
    """ELORA's `Low_lora = sum_i [1 - (1 - prob_i)^BS]` (Shi et al., HPCA 2026), and its sigma.

    `prob_i` is adapter i's part of the starts, each fading with time; BS the mean number of
    running sequences. Whether i is in the batch is a Bernoulli variable; taken as independent, the
    variances `q_i (1 - q_i)` add up.
    """

    def __init__(self) -> None:
        self._heat: dict[str, tuple[float, float]] = {}  # digest -> (heat, when)
        self._total = (0.0, 0.0)
        self._running = 0
        self._mean_running = 0.0
        self._changed_s = 0.0
        self._estimate = (0.0, 0.0)
        self._estimated_s = -math.inf

    def started(self, digest: str | None, now_s: float) -> None:
        """A sequence starts to run; with None, on the base model alone."""
        self._advance(now_s)
        self._running += 1
        self._total = (1.0 + _faded(self._total, now_s), now_s)
        if digest is not None:
            self._heat[digest] = (1.0 + _faded(self._heat.get(digest, (0.0, now_s)), now_s), now_s)

    def stopped(self, now_s: float) -> None:
        self._advance(now_s)
        self._running -= 1

    def expected(self, now_s: float) -> tuple[float, float]:
        """Distinct adapters in a batch: their expected number and its standard deviation. At most
        half a second old."""
        if now_s - self._estimated_s >= _REFRESH_S:
            self._advance(now_s)
            self._estimate = self._compute(now_s)
            self._estimated_s = now_s
        return self._estimate

    def _compute(self, now_s: float) -> tuple[float, float]:
        heats = {digest: _faded(entry, now_s) for digest, entry in self._heat.items()}
        for digest, heat in heats.items():
            if heat < _FORGOTTEN:
                del self._heat[digest]
        total = max(_faded(self._total, now_s), 1e-12)
        low = variance = 0.0
        for heat in heats.values():
            present = 1.0 - (1.0 - min(heat / total, 1.0)) ** self._mean_running
            low += present
            variance += present * (1.0 - present)
        return low, math.sqrt(variance)

    def _advance(self, now_s: float) -> None:
        passed = max(now_s - self._changed_s, 0.0)
        weight = 1.0 - math.exp(-passed / _BATCH_S)
        self._mean_running += weight * (self._running - self._mean_running)
        self._changed_s = now_s


def _faded(entry: tuple[float, float], now_s: float) -> float:
    heat, when_s = entry
    return heat * fade(now_s - when_s)
