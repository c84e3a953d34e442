"""What is gained by keeping a block or an adapter: what it takes to have it again (`CostModel`,
learnt from the steps, loads and fetches that were run), how much it is used (*heat*), and how many
adapters a batch needs (`AdapterDemand`). Plain arithmetic; it owns no memory."""

from __future__ import annotations

import math
from collections import Counter

from tenora_engine.config import ResolvedConfig
from tenora_engine.events import Residency
from tenora_engine.request import Tenant

FADE_S = 60.0
"""Time in which a use loses 63% of its weight."""

_MEMORY = 0.9  # weight of the past in the moving averages
_PREFILL_TOKENS = 8  # tokens a sequence from which a step counts as prefill

_TTFT_MS = 1000.0  # a target with the weight of none
_URGENCY = 10.0  # bounds of what a target alone can make of a weight
_BATCH_S = 5.0  # ELORA averages the batch size over the last 5 s
_REFRESH_S = 0.5  # an estimate costs O(adapters)
_FORGOTTEN = 1e-3  # heat below which an adapter is no longer counted


def fade(seconds: float) -> float:
    """How much of a use is left after `seconds`. Heat is a count of uses that fades so (LRFU: Lee
    et al., 2001); nodes of the prefix tree and adapters carry it, policies read it."""
    return math.exp(-seconds / FADE_S)


def slo_weight(tenant: Tenant) -> float:
    """What a millisecond of a tenant's time to first token counts: its weight, and the more the
    tighter its target."""
    target_ms = tenant.ttft_ms or _TTFT_MS
    return tenant.weight * min(max(_TTFT_MS / target_ms, 1 / _URGENCY), _URGENCY)


class CostModel:
    """Seconds to recompute a KV block, to fetch one from the host, and to load an adapter's pages
    from each tier.

    A block's recomputation grows with its depth: the matrix products cost the same for every
    token, attention costs as much again at `2 * hidden * layers` parameters' worth of context.
    """

    def __init__(self, config: ResolvedConfig) -> None:
        model = config.model
        item = 2 if config.engine.dtype == "bfloat16" else 4
        parameters = max(model.weight_bytes // item, 1)
        self._block_tokens = config.engine.block_tokens
        self._even_tokens = max(parameters / (2 * model.hidden * model.num_layers), 1.0)
        self._token_s = 1e-3
        self._fetched_byte_s = 1e-10  # low: what is taken to be too slow is never tried
        self._fetches = 0
        self._step_s = 0.0
        self._byte_s: dict[Residency, float] = {"host": 1e-10, "store": 1e-9}
        self._loads: Counter[Residency] = Counter()

    @property
    def token_s(self) -> float:
        """Seconds a prefilled token takes."""
        return self._token_s

    @property
    def even_tokens(self) -> float:
        """Context at which attention costs a token as much as the matrix products."""
        return self._even_tokens

    @property
    def step_s(self) -> float:
        """Seconds of a step, of late."""
        return self._step_s

    def observe_step(self, num_tokens: int, num_sequences: int, step_s: float) -> None:
        """A step that was mostly prefill says what a prefilled token takes."""
        self._step_s += (1 - _MEMORY) * (step_s - self._step_s)
        if num_tokens >= _PREFILL_TOKENS * num_sequences:
            self._token_s = _MEMORY * self._token_s + (1 - _MEMORY) * step_s / num_tokens

    def observe_load(self, num_bytes: int, load_s: float, tier: Residency = "store") -> None:
        """An adapter has come from a tier into host memory, or from there to the device."""
        self._loads[tier] += 1
        new = max(1 - _MEMORY, 1 / self._loads[tier])  # the first replaces the guess
        before = self._byte_s.get(tier, 0.0)
        self._byte_s[tier] = before + new * (load_s / num_bytes - before)

    def observe_fetch(self, num_bytes: int, fetch_s: float) -> None:
        """KV pages have come from host memory."""
        self._fetches += 1
        new = max(1 - _MEMORY, 1 / self._fetches)  # the first replaces the guess
        self._fetched_byte_s += new * (fetch_s / num_bytes - self._fetched_byte_s)

    def block_s(self, depth: int) -> float:
        """Recomputation of the block with `depth` blocks before it."""
        return self.blocks_s(depth, 1)

    def blocks_s(self, depth: int, count: int) -> float:
        """Recomputation of `count` blocks in a row, with `depth` blocks before them."""
        context = (depth + 0.5 * count) * self._block_tokens
        return self._token_s * self._block_tokens * count * (1.0 + context / self._even_tokens)

    def fetch_s(self, num_bytes: int) -> float:
        """KV pages from host memory."""
        return self._fetched_byte_s * num_bytes

    def adapter_s(self, num_bytes: int, tier: Residency = "store") -> float:
        """The load of an adapter from a tier; from Redis as from the store until one has been
        seen."""
        return self._byte_s.get(tier, self._byte_s["store"]) * num_bytes

    def adapter_again_s(self, num_bytes: int, tier: Residency) -> float:
        """To have an adapter on the device again that would be found in a tier: its load, and from
        below the host the copy from there as well."""
        load_s = self.adapter_s(num_bytes, tier)
        return load_s if tier == "host" else load_s + self.adapter_s(num_bytes, "host")


class AdapterDemand:
    """How many distinct adapters a batch is expected to need, by which sequences start and how many
    run: ELORA's `Low_lora = sum_i [1 - (1 - prob_i)^BS]` (Shi et al., HPCA 2026), and its sigma.

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
