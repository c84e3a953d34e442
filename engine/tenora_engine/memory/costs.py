"""CostModel: what it takes to have a block or an adapter again, learnt from the steps, loads and
fetches that were run. Plain arithmetic; it owns no memory."""

from __future__ import annotations

from tenora_engine.config import ResolvedConfig
from tenora_engine.request import Tenant

_MEMORY = 0.9  # weight of the past in the moving averages
_PREFILL_TOKENS = 8  # tokens a sequence from which a step counts as prefill

_TTFT_MS = 1000.0  # a target with the weight of none
_URGENCY = 10.0  # bounds of what a target alone can make of a weight


def slo_weight(tenant: Tenant) -> float:
    """What a millisecond of a tenant's time to first token counts: its weight, and the more the
    tighter its target."""
    target_ms = tenant.ttft_ms or _TTFT_MS
    return tenant.weight * min(max(_TTFT_MS / target_ms, 1 / _URGENCY), _URGENCY)


class CostModel:
    """Seconds to recompute a KV block, to fetch one from the host, and to load an adapter's pages.

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
        self._byte_s = 1e-9
        self._fetched_byte_s = 1e-10  # low: what is taken to be too slow is never tried
        self._fetches = 0
        self._step_s = 0.0
        self._host_byte_s = 1e-10
        self._has_host = config.engine.host_adapter_bytes > 0
        self._host_loads = 0

    @property
    def token_s(self) -> float:
        """Seconds a prefilled token takes."""
        return self._token_s

    @property
    def step_s(self) -> float:
        """Seconds of a step, of late."""
        return self._step_s

    def observe_step(self, num_tokens: int, num_sequences: int, step_s: float) -> None:
        """A step that was mostly prefill says what a prefilled token takes."""
        self._step_s += (1 - _MEMORY) * (step_s - self._step_s)
        if num_tokens >= _PREFILL_TOKENS * num_sequences:
            self._token_s = _MEMORY * self._token_s + (1 - _MEMORY) * step_s / num_tokens

    def observe_load(self, num_bytes: int, load_s: float, from_host: bool = False) -> None:
        self._byte_s = _MEMORY * self._byte_s + (1 - _MEMORY) * load_s / num_bytes
        if from_host:
            self._host_loads += 1
            new = max(1 - _MEMORY, 1 / self._host_loads)  # the first replaces the guess
            self._host_byte_s += new * (load_s / num_bytes - self._host_byte_s)

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

    def adapter_s(self, num_bytes: int) -> float:
        """The load of an adapter, from whichever tier."""
        return self._byte_s * num_bytes

    def adapter_again_s(self, num_bytes: int) -> float:
        """The load of an adapter that was on the device before: host memory has kept it, as a rule.
        As any load where there is none."""
        return (self._host_byte_s if self._has_host else self._byte_s) * num_bytes
