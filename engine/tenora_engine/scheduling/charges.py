"""Charges: what work costs the tenant that caused it, all in one unit: tokens prefilled by the base
model. It keeps no accounts, only how dear it has become to hold a page."""

from __future__ import annotations

from tenora_engine.config import ResolvedConfig
from tenora_engine.memory.costs import CostModel
from tenora_engine.request import AdapterRef

DECODE_COST = 2.0
"""A decoded token costs as much as two prefilled ones, as in VTC (Sheng et al., OSDI 2024)."""


class Charges:
    """Prices by what a step and a load were seen to take, so that they hold on any machine."""

    def __init__(self, config: ResolvedConfig, costs: CostModel) -> None:
        model = config.model
        item = 2 if config.engine.dtype == "bfloat16" else 4
        features = sum(n_in + n_out for n_in, n_out in model.modules.values())
        self._rank_cost = features * model.num_layers * item / max(model.weight_bytes, 1)
        self._row_bytes = features * model.num_layers * item
        self._num_pages = config.num_pages
        self._page_bytes = config.page_bytes
        self._costs = costs
        self.kv_price = 0.0  # of a page held since the engine started

    def token(self, adapter: AdapterRef | None) -> float:
        """A prefilled token: 1, and the adapter's multiplications over the base model's."""
        return 1.0 if adapter is None else 1.0 + adapter.rank * self._rank_cost

    def adapter_bytes(self, adapter: AdapterRef) -> int:
        """At most, before it has been seen: every module at full rank."""
        return adapter.rank * self._row_bytes

    def load(self, num_bytes: int) -> float:
        """What could have been prefilled while the bytes of an adapter came up."""
        return self._costs.adapter_s(num_bytes) / self._costs.token_s

    def fetch(self, num_pages: int) -> float:
        """What could have been prefilled while so many pages of KV came from the host."""
        return self._costs.fetch_s(num_pages * self._page_bytes) / self._costs.token_s

    def observe_step(self, step_s: float) -> None:
        """All pages in use were held for `step_s` seconds. One costs its part of the arena of what
        could have been prefilled meanwhile."""
        self.kv_price += step_s / self._costs.token_s / self._num_pages
