"""SimulatedLoader: an AdapterLoader whose loads take virtual time and whose pages hold nothing. Its
host tier is the engine's own; Redis is left out."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count

import torch

from tenora_bench.cache.timing import Tier, TierCosts, TimingModel
from tenora_engine.adapters.loader import LoadResult
from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.tiers import HostTier
from tenora_engine.config import LORA_MODULES
from tenora_engine.events import AdapterResidency, Residency
from tenora_engine.request import AdapterRef


class Link:
    """The way from a tier up: at most `parallel` loads at a time, first come, first served."""

    def __init__(self, costs: TierCosts) -> None:
        self._costs = costs
        self._free_s = [0.0] * costs.parallel

    def load_s(self, num_bytes: int) -> float:
        """What a load takes, once begun."""
        return self._costs.load_s(num_bytes)

    def end_s(self, num_bytes: int, now_s: float) -> float:
        """When a load that begins now, or as soon as the link is free, ends."""
        end_s = max(now_s, heapq.heappop(self._free_s)) + self.load_s(num_bytes)
        heapq.heappush(self._free_s, end_s)
        return end_s


class SimulatedLoader:
    """See `tenora_engine.scheduling.loads.Loader`. What ends by `now_s` is delivered by
    `deliver(now_s)`."""

    def __init__(self, timing: TimingModel, host_bytes: int, clock: Callable[[], float]) -> None:
        self.on_complete: Callable[[], None] | None = None
        self._timing = timing
        self._clock = clock
        self._host = HostTier(host_bytes)
        self._links: dict[Tier, Link] = {"host": Link(timing.host), "store": Link(timing.store)}
        self._flights: list[tuple[float, int, LoadResult]] = []  # a heap by the end
        self._loading: set[str] = set()
        self._seen: set[str] = set()  # loaded once, which no policy could have saved
        self._completed: list[LoadResult] = []
        self._counters: Counter[str] = Counter()
        self._numbers = count()
        self._blank = cache(self._make_blank)

    @property
    def shared_prefix(self) -> str:
        return ""

    @property
    def host_link(self) -> Link:
        return self._links["host"]

    @property
    def next_end_s(self) -> float | None:
        """When the next load in flight ends."""
        return self._flights[0][0] if self._flights else None

    def start(self, ref: AdapterRef, tenant_key: str) -> None:
        if ref.digest in self._loading:
            return
        now_s = self._clock()
        packed = self._host.get(ref.digest)
        tier: Tier = "store" if packed is None else "host"
        if packed is None:
            packed = replace(self._blank(ref.rank), digest=ref.digest)
        link = self._links[tier]
        end_s = link.end_s(packed.pages.nbytes, now_s)
        self._counters[f"{tier}_loads"] += 1
        self._counters["loaded_bytes"] += packed.pages.nbytes
        if tier == "store" and ref.digest in self._seen:
            self._counters["store_reloads"] += 1
            self._counters["store_reloaded_bytes"] += packed.pages.nbytes
        self._seen.add(ref.digest)
        self._loading.add(ref.digest)
        load_s = link.load_s(packed.pages.nbytes)
        wait_ms = (end_s - now_s - load_s) * 1e3
        result = LoadResult(ref, packed, None, tier, load_s * 1e3, wait_ms)
        heapq.heappush(self._flights, (end_s, next(self._numbers), result))

    def cancel(self, digest: str) -> bool:
        """Here every load has its place on the link from the start."""
        return False

    def used(self, digest: str, tenant_key: str) -> None:
        """Nobody else is told."""

    def take_occupancy(self) -> Occupied:
        return {}

    def deliver(self, now_s: float) -> None:
        """Complete the loads that end by `now_s`."""
        while self._flights and self._flights[0][0] <= now_s:
            result = heapq.heappop(self._flights)[2]
            self._loading.discard(result.ref.digest)
            if result.packed is not None:
                self._host.put(result.packed)
            self._completed.append(result)
            if self.on_complete is not None:
                self.on_complete()

    def take_completed(self) -> list[LoadResult]:
        completed, self._completed = self._completed, []
        return completed

    def residency(self, ref: AdapterRef) -> Residency:
        return self.tier(ref.digest)

    def tier(self, digest: str) -> Residency:
        return "host" if digest in self._host else "store"

    def take_moved(self) -> set[str]:
        return self._host.take_moved()

    def residencies(self) -> list[AdapterResidency]:
        return self._host.residencies()

    def forget(self, digest: str) -> None:
        self._host.remove(digest)

    def counters(self) -> dict[str, float]:
        """Loads by tier, and their bytes."""
        return dict(self._counters)

    def close(self) -> None:
        self._flights.clear()

    def _make_blank(self, rank: int) -> PackedAdapter:
        """Pages without memory, and tables as small as they may be."""
        timing = self._timing
        shape = (timing.adapter_pages(rank), timing.page_elements)
        dtype = torch.bfloat16 if timing.item_bytes == 2 else torch.float32
        granules = torch.full((timing.model.num_layers, rank), -1, dtype=torch.int32)
        table = torch.zeros((timing.model.num_layers, len(LORA_MODULES)), dtype=torch.int32)
        return PackedAdapter(
            digest="",
            layout_key=timing.name,
            pages=torch.empty(shape, dtype=dtype, device="meta"),
            granule_page=granules,
            granule_start=granules,
            rank=table + rank,
            a_offset=table,
            b_offset=table,
            scale=table.float(),
        )
