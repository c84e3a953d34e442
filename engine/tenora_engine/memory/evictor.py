"""Evictor: the candidates for eviction in their partitions, valued by the policy, and which of them
goes next. Trees and caches tell it what could be given up; what that means, they know."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from tenora_engine.config import ResolvedConfig
from tenora_engine.memory.adapter_cache import Key, ResidentAdapter
from tenora_engine.memory.costs import AdapterDemand, CostModel
from tenora_engine.memory.host_kv import HostKV
from tenora_engine.memory.partitions import Partition, Partitions
from tenora_engine.memory.policies import Candidate, EvictionPolicy, Kind, MemoryState
from tenora_engine.memory.pool import ADAPTER, CACHED_KV, LIVE_KV, IntegrityError, PagePool
from tenora_engine.memory.prefix import BASE, PrefixNode

Item = PrefixNode | ResidentAdapter

KEPT_SHARE = 0.25
"""Of the arena at most: what tenants' shares leave for a sequence of whoever has none."""


class Evictor:
    """The `Candidates` of the prefix tree and of the adapter cache. What it takes to have one again
    `costs` says, and for KV `host`. The clock gives seconds."""

    def __init__(
        self,
        config: ResolvedConfig,
        policy: EvictionPolicy,
        pool: PagePool,
        costs: CostModel,
        host: HostKV,
        clock: Callable[[], float],
    ) -> None:
        strict = config.engine.strict_isolation
        if strict and policy.partitioning == "kind":
            raise ValueError(f"the eviction policy {policy.name} does not support strict isolation")
        self._page_bytes = config.page_bytes
        self._policy = policy
        self._pool = pool
        self._costs = costs
        self._host = host
        self._clock = clock
        self._leaves: Counter[Key] = Counter()  # KV candidates by their adapter
        self._num_adapters = 0
        self.demand = AdapterDemand()
        self.partitions: Partitions[Item] = Partitions(
            "strict" if strict else policy.partitioning,
            pool,
            config.engine.max_adapters,
            kept=_kept_pages(config),
        )

    @property
    def num_candidates(self) -> int:
        return sum(len(queue) for part in self.partitions for queue in part.queues.values())

    def scope(self, namespace: str) -> str:
        """Under which an adapter of the namespace is kept: see `adapter_cache.Key`."""
        return "" if self.partitions.adapters_are_shared else namespace

    def offer(self, item: Item) -> None:
        """It could be given up from now on, or is to be valued anew."""
        partition = self.partitions.holding(item)
        if not item.ticket:
            if isinstance(item, ResidentAdapter):
                self._count_idle(partition, len(item.pages))
            elif item.root.digest != BASE:
                self._leaves[self._adapter_of(item)] += 1
        self._enqueue(partition, item)

    def withdraw(self, item: Item) -> None:
        """It is needed, or gone."""
        if not item.ticket:
            return
        partition = self.partitions.holding(item)
        partition.queues[kind_of(item)].withdraw(item)
        self.partitions.note_candidates(partition)
        if isinstance(item, ResidentAdapter):
            self._count_idle(partition, -len(item.pages))
        elif item.root.digest != BASE:
            self._forget_leaf(item)

    def add_adapter(self, resident: ResidentAdapter) -> None:
        """It is on the device from now on."""
        partition = self.partitions.holding(resident)
        partition.adapters += 1
        partition.adapter_pages += len(resident.pages)
        self._num_adapters += 1

    def remove_adapter(self, resident: ResidentAdapter, partition: Partition[Item]) -> None:
        """It was given up."""
        partition.adapters -= 1
        partition.adapter_pages -= len(resident.pages)
        self._num_adapters -= 1

    def victims(
        self,
        partition: Partition[Item],
        count: int,
        demand: Kind,
        kept: Collection[Item] = (),
        spares_wanted: bool = False,
    ) -> Iterator[tuple[Item, int]]:
        """What to give up, and of a run of KV blocks how many at most, one after another, until
        `count` pages of `partition` can be allocated; the caller evicts each before it asks for the
        next. The blocks of a run were used alike, and each costs less to compute again than the one
        after it, so they go together, from the run's end. O(what has changed since the last call),
        and for each victim the logarithm of the partitions. Ends where the next one is `kept`, or
        where it `spares_wanted` and the next one is wanted by a waiting sequence.
        Raises IntegrityError when there is nothing."""
        ranks: list[list[Kind]] = []
        while self.partitions.lacking(partition, count):
            if not ranks:
                self.revalue(self.partitions.sources(partition, count) or self.partitions)
                ranks = self.ranks(demand, self.state(partition))
            item = self._next(partition, count, ranks)
            if item in kept or (spares_wanted and item.wanted):
                return
            yield item, self.partitions.most_from(self.partitions.holding(item), partition, count)
            if isinstance(item, ResidentAdapter):
                ranks = []

    def ranks(self, demand: Kind, state: MemoryState) -> list[list[Kind]]:
        """Kinds from which victims are taken, those of the first as long as there are any."""
        kinds: tuple[Kind, ...] = ("kv", "adapter")
        first = [kind for kind in kinds if not self._policy.defers(kind, demand, state)]
        return [first, [kind for kind in kinds if kind not in first]]

    def _next(self, partition: Partition[Item], count: int, ranks: list[list[Kind]]) -> Item:
        sources = self.partitions.sources(partition, count)
        for kinds in ranks:
            heads: list[tuple[float, Item]] = []
            for kind in kinds:
                for source in sources or (partition,):
                    if len(source.queues[kind]):
                        heads.append(source.queues[kind].least())
                spare = self.partitions.least_spare(kind) if sources is None else None
                if spare is not None:
                    heads.append(spare)
            if heads:
                return min(heads, key=_by_value)[1]
        raise IntegrityError("there is no candidate where pages were promised")

    def least(self, residents: Iterable[ResidentAdapter]) -> ResidentAdapter:
        """Of idle adapters the one to give up for its slot."""
        return min(residents, key=lambda item: self._value(self.partitions.holding(item), item))

    def describe(self, item: Item, without: int = 0) -> Candidate:
        """What the policy is told of it. A run of KV blocks is what its last is, which goes first;
        `without`: so many of them are taken to be gone."""
        if isinstance(item, PrefixNode):
            return self._describe_kv(item, without)
        num_bytes = len(item.pages) * self._page_bytes
        return Candidate(
            kind="adapter",
            namespace=item.namespace,
            num_bytes=num_bytes,
            last_used_s=item.last_used_s,
            heat=item.heat,
            visits=item.visits,
            fetch_s=self._costs.adapter_again_s(num_bytes, item.tier),
            weight=item.weight,
            bears_kv=(item.scope, item.digest) in self._leaves,
            wanted=item.wanted,
        )

    def _describe_kv(self, node: PrefixNode, without: int) -> Candidate:
        root, fetch_s = node.root, math.inf
        if self._host.total:  # what does not lie there yet must be written first
            copies = 1 if self._host.holds(node, without) else 2
            fetch_s = self._costs.fetch_s(self._page_bytes) * copies
        return Candidate(
            kind="kv",
            namespace=root.namespace,
            num_bytes=self._page_bytes,
            last_used_s=node.last_used_s,
            heat=node.heat,
            visits=node.visits,
            fetch_s=fetch_s,
            recompute_s=self._costs.block_s(node.end - 1 - without),
            weight=root.weight,
            returns=node.returns,
            wanted=node.wanted > 0,
        )

    def _enqueue(self, partition: Partition[Item], item: Item) -> None:
        partition.queues[kind_of(item)].offer(item, self._value(partition, item))
        self.partitions.note_candidates(partition)

    def _value(self, partition: Partition[Item], item: Item) -> float:
        candidate = self.describe(item)
        partition.most_visits = max(partition.most_visits, candidate.visits)
        partition.most_bytes = max(partition.most_bytes, candidate.num_bytes)
        return self.value(candidate, self.state(partition))

    def value(self, candidate: Candidate, state: MemoryState) -> float:
        """What the policy makes of it; changes nothing."""
        return self._policy.value(candidate, state)

    @property
    def policy_name(self) -> str:
        return self._policy.name

    def revalue(self, partitions: Iterable[Partition[Item]]) -> None:
        """Value all candidates anew where the policy wants that and it is time."""
        every_s, now_s = self._policy.revalue_s, self._clock()
        if every_s is None:
            return
        for partition in partitions:
            if now_s - partition.valued_s >= every_s:
                partition.valued_s = now_s
                for queue in partition.queues.values():
                    for item in queue.items():
                        queue.offer(item, self._value(partition, item))
                self.partitions.note_candidates(partition)

    def state(self, partition: Partition[Item]) -> MemoryState:
        """What a policy may know. In strict mode nothing that other tenants could change."""
        now_s = self._clock()
        most_visits, most_bytes = partition.most_visits, partition.most_bytes
        if self.partitions.partitioning == "strict":
            return MemoryState(
                now_s=now_s,
                capacity_bytes=partition.max_pages * self._page_bytes,
                kv_bytes=(partition.used - partition.adapter_pages) * self._page_bytes,
                adapter_bytes=partition.adapter_pages * self._page_bytes,
                resident_adapters=partition.adapters,
                most_visits=most_visits,
                most_bytes=most_bytes,
            )
        pool = self._pool
        expected, sigma = self.demand.expected(now_s)
        return MemoryState(
            now_s=now_s,
            capacity_bytes=pool.total * self._page_bytes,
            kv_bytes=(pool.count(LIVE_KV) + pool.count(CACHED_KV)) * self._page_bytes,
            adapter_bytes=pool.count(ADAPTER) * self._page_bytes,
            resident_adapters=self._num_adapters,
            expected_adapters=expected,
            expected_adapters_sigma=sigma,
            most_visits=most_visits,
            most_bytes=most_bytes,
        )

    def _count_idle(self, partition: Partition[Item], num_pages: int) -> None:
        partition.idle_adapter_pages += num_pages
        self._pool.note_change(partition)

    def _adapter_of(self, node: PrefixNode) -> Key:
        return self.scope(node.root.namespace), node.root.digest

    def _forget_leaf(self, node: PrefixNode) -> None:
        key = self._adapter_of(node)
        self._leaves[key] -= 1
        if not self._leaves[key]:
            del self._leaves[key]


def _kept_pages(config: ResolvedConfig) -> int:
    """Pages of one sequence as long as the context, if that is not too much of the arena."""
    whole = -(-config.model.context_tokens // config.engine.block_tokens)
    return min(whole, int(config.num_pages * KEPT_SHARE))


def _by_value(head: tuple[float, Item]) -> float:
    return head[0]


def kind_of(item: Item) -> Kind:
    return "kv" if isinstance(item, PrefixNode) else "adapter"
