"""Appraiser: what an eviction policy is told of a candidate, and what it takes to have it again."""

from __future__ import annotations

import math
from collections.abc import Callable

from tenora_engine.config import ResolvedConfig
from tenora_engine.memory.adapter_cache import AdapterCache, ResidentAdapter
from tenora_engine.memory.costs import CostModel
from tenora_engine.memory.host_kv import HostKV
from tenora_engine.memory.policies import Candidate
from tenora_engine.memory.prefix import PrefixNode


class Appraiser:
    """`bears_kv` says whether an adapter has cached KV."""

    def __init__(
        self,
        config: ResolvedConfig,
        costs: CostModel,
        adapters: AdapterCache,
        host: HostKV,
        bears_kv: Callable[[ResidentAdapter], bool],
    ) -> None:
        self._page_bytes = config.page_bytes
        self._costs = costs
        self._adapters = adapters
        self._host = host
        self._bears_kv = bears_kv

    def is_wanted(self, item: PrefixNode | ResidentAdapter) -> bool:
        """Whether a waiting request needs it."""
        if isinstance(item, PrefixNode):
            return item.wanted > 0
        return self._adapters.is_wanted(item.digest, item.scope)

    def describe(self, item: PrefixNode | ResidentAdapter, without: int = 0) -> Candidate:
        """A run of KV blocks is what its last is, which goes first; `without`: so many of them are
        taken to be gone."""
        if isinstance(item, PrefixNode):
            root = item.root
            return Candidate(
                kind="kv",
                namespace=root.namespace,
                num_bytes=self._page_bytes,
                last_used_s=item.last_used_s,
                heat=item.heat,
                visits=item.visits,
                fetch_s=self._fetch_s(item, without),
                recompute_s=self._costs.block_s(item.end - 1 - without),
                weight=root.weight,
                returns=item.returns,
                wanted=item.wanted > 0,
            )
        num_bytes = len(item.pages) * self._page_bytes
        return Candidate(
            kind="adapter",
            namespace=item.namespace,
            num_bytes=num_bytes,
            last_used_s=item.last_used_s,
            heat=item.heat,
            visits=item.visits,
            fetch_s=self._costs.adapter_again_s(num_bytes),
            weight=item.weight,
            bears_kv=self._bears_kv(item),
            wanted=self.is_wanted(item),
        )

    def _fetch_s(self, node: PrefixNode, without: int) -> float:
        """From the host; what does not lie there yet must be written first."""
        if not self._host.total:
            return math.inf
        return self._costs.fetch_s(self._page_bytes) * (1 if self._host.holds(node, without) else 2)
