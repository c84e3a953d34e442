"""AdapterCache: which adapters lie on the device, in which pages and which slot. It writes down
what is to be done for that (`operations`); it knows neither the loader nor the queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from tenora_engine.adapters.occupancy import TierOccupancy
from tenora_engine.adapters.pack import TORCH_DTYPES
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import AdapterResidency, Residency
from tenora_engine.memory.costs import fade
from tenora_engine.memory.eviction_queue import Candidates
from tenora_engine.memory.operations import MemoryOperations
from tenora_engine.memory.pool import IntegrityError, PagePool
from tenora_engine.telemetry import ServiceMeter


@dataclass(eq=False)
class ResidentAdapter:
    """One adapter on the device. `references` counts the running sequences that use its slot."""

    digest: str
    rank: int
    slot: int
    pages: list[int]
    load_ms: float
    last_used_s: float
    namespace: str = ""  # of the tenant that had it loaded
    scope: str = ""
    weight: float = 1.0  # SLO weight of the tenant that used it last
    meter: ServiceMeter = field(default_factory=ServiceMeter)  # of who used it last
    heat: float = 1.0
    visits: int = 1
    references: int = 0
    pinned: bool = False  # never given up for want of room
    kept_for: str | None = None  # a tenant: it is not given up before its first sequence starts
    wanted: bool = False  # a waiting sequence needs it
    tier: Residency = "host"  # where it would come from if it were given up
    unpaid_bytes: int = 0  # whoever starts on it first is charged for its load
    ticket: int = field(default=0, repr=False)  # its place among the candidates for eviction

    @property
    def is_idle(self) -> bool:
        """Whether it may be given up."""
        return not (self.references or self.pinned or self.kept_for is not None)


KEPT_STEPS = 64
"""For which an adapter that was copied for a waiting sequence is kept for it: longer than those
take that come first, and short enough for what cannot start for another reason."""

Key = tuple[str, str]
"""(scope, digest): the scope is a namespace where tenants do not share adapters, else empty."""


class AdapterCache:
    """Residents by scope and digest. Whoever takes the last reference away makes an adapter
    evictable: `candidates` is told.

    `wanted` counts the waiting sequences that need an adapter; a wanted adapter is
    evicted last and is not forgotten before they have run.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        pool: PagePool,
        candidates: Candidates[ResidentAdapter],
        operations: MemoryOperations,
    ) -> None:
        self.occupancy = TierOccupancy()
        self._config = config
        self._operations = operations
        self._pool = pool
        self._candidates = candidates
        self._residents: dict[Key, ResidentAdapter] = {}
        self._arriving: dict[Key, ResidentAdapter] = {}  # pages and slot reserved, not there yet
        self._free_slots = list(range(config.engine.max_adapters - 1, -1, -1))
        self._wanted: dict[Key, int] = {}
        self._kept: dict[ResidentAdapter, int] = {}  # and for how many steps more
        self._evictable_pages = 0
        usual: Residency = "host" if config.engine.host_adapter_bytes else "store"
        self._tier_of: Callable[[str], Residency] = lambda _: usual
        self.slots_given_up = 0
        """How often a slot has become free, or its adapter idle."""

    @property
    def evictable_pages(self) -> int:
        return self._evictable_pages

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free_slots)

    @property
    def keeps_any(self) -> bool:
        """Whether an adapter is kept for who waits for it."""
        return bool(self._kept)

    def num_kept(self, tenant_key: str) -> int:
        """Count a tenant's adapters."""
        return sum(item.kept_for == tenant_key for item in self._kept)

    @property
    def num_residents(self) -> int:
        return len(self._residents)

    def get(self, digest: str, scope: str = "") -> ResidentAdapter | None:
        return self._residents.get((scope, digest))

    def residents(self) -> Iterator[ResidentAdapter]:
        yield from self._residents.values()

    def arriving(self) -> Iterator[ResidentAdapter]:
        yield from self._arriving.values()

    def is_arriving(self, key: Key) -> bool:
        return key in self._arriving

    def copies(self, digest: str) -> list[ResidentAdapter]:
        """An adapter in all scopes. May be called from any thread."""
        return [item for item in tuple(self._residents.values()) if item.digest == digest]

    def is_used(self, digest: str) -> bool:
        """Whether a running or waiting sequence of any scope needs it."""
        return self.is_awaited(digest) or any(item.references for item in self.copies(digest))

    def is_awaited(self, digest: str) -> bool:
        """Whether a waiting sequence of any scope needs it."""
        return ("", digest) in self._wanted or any(key[1] == digest for key in self._wanted)

    def is_wanted(self, digest: str, scope: str = "") -> bool:
        return (scope, digest) in self._wanted

    def reload_from(self, tier_of: Callable[[str], Residency]) -> None:
        """`tier_of` says where an adapter would come from, in O(1). Strict isolation does not ask:
        what host memory has of one tenant's depends on the others."""
        if not self._config.engine.strict_isolation:
            self._tier_of = tier_of

    def moved(self, digests: Collection[str]) -> None:
        """They would come from another tier than before: what they are worth changes."""
        for item in self._residents.values():
            if item.digest in digests and item.tier != (tier := self._tier_of(item.digest)):
                item.tier = tier
                if item.is_idle:
                    self._candidates.offer(item)

    def want(self, digest: str, scope: str = "") -> None:
        key = (scope, digest)
        count = self._wanted.get(key, 0)
        self._wanted[key] = count + 1
        if not count:
            self._mark_wanted(key, True)

    def unwant(self, digest: str, scope: str = "") -> None:
        key = (scope, digest)
        count = self._wanted.pop(key) - 1
        if count:
            self._wanted[key] = count
        else:
            self._mark_wanted(key, False)

    def install(
        self,
        packed: PackedAdapter,
        pages: list[int],
        load_ms: float,
        now_s: float,
        namespace: str = "",
        scope: str = "",
    ) -> ResidentAdapter:
        """Copy an adapter into `pages` (already allocated) and a free slot, before the next step.

        Raises ValueError when its pages are not those of this arena or its rank is too large.
        """
        resident = self.reserve(packed, pages, load_ms, now_s, namespace, scope)
        self._operations.install(packed, resident.slot, pages)
        self._enter(resident)
        return resident

    def reserve(
        self,
        packed: PackedAdapter,
        pages: list[int],
        load_ms: float,
        now_s: float,
        namespace: str = "",
        scope: str = "",
    ) -> ResidentAdapter:
        """Give a free slot to an adapter of which somebody copies the bytes into `pages`. Nobody
        finds it before `complete`. Raises ValueError as `install` does."""
        self.check_fits(packed)
        arriving = ResidentAdapter(
            packed.digest,
            packed.max_rank,
            self._free_slots.pop(),
            pages,
            load_ms,
            now_s,
            namespace,
            scope,
            wanted=(scope, packed.digest) in self._wanted,
            tier=self._tier_of(packed.digest),
            unpaid_bytes=packed.pages.nbytes,
        )
        self._arriving[scope, packed.digest] = arriving
        return arriving

    def complete(self, arriving: ResidentAdapter, packed: PackedAdapter, tenant_key: str) -> None:
        """All of its bytes are in its pages: it is resident from now on, and kept for the tenant's
        sequence that waits for it."""
        self._operations.install(packed, arriving.slot, arriving.pages, is_copied=True)
        if arriving.wanted:
            arriving.kept_for = tenant_key
            self._kept[arriving] = KEPT_STEPS
        self._enter(arriving)

    def begin_step(self) -> None:
        """Let go what has been kept for KEPT_STEPS. O(kept)."""
        for item in list(self._kept):
            self._kept[item] -= 1
            if not self._kept[item]:
                self._stop_keeping(item)

    def let_go(self, tenant_key: str | None = None) -> bool:
        """What is kept for those that wait may be given up: all, or one tenant's. Returns whether
        there was anything."""
        some = [item for item in self._kept if tenant_key in (None, item.kept_for)]
        for item in some:
            self._stop_keeping(item)
        return bool(some)

    def release_reserved(self, arriving: ResidentAdapter) -> None:
        """Give back the pages and the slot of one that does not come after all."""
        del self._arriving[arriving.scope, arriving.digest]
        self._pool.release(arriving.pages)
        self._free_slots.append(arriving.slot)
        self.slots_given_up += 1

    def check_fits(self, packed: PackedAdapter) -> None:
        elements, max_rank = self._config.packed_page_elements, self._config.engine.max_rank
        dtype = TORCH_DTYPES[self._config.packed_dtype]
        if packed.pages.shape[1] != elements or packed.pages.dtype != dtype:
            raise ValueError(
                f"adapter {packed.digest} was packed for pages of {packed.pages.shape[1]} "
                f"{packed.pages.dtype} elements; this arena has {elements} of {dtype}"
            )
        if packed.max_rank > max_rank:
            raise ValueError(f"adapter {packed.digest}: rank {packed.max_rank} exceeds {max_rank}")

    def acquire(self, resident: ResidentAdapter, now_s: float, tenant_key: str) -> None:
        """A running sequence uses the slot from now on; it cannot be evicted."""
        self.occupancy.use((resident.scope, resident.digest), tenant_key)
        resident.heat = 1.0 + resident.heat * fade(now_s - resident.last_used_s)
        resident.last_used_s = now_s
        resident.visits += 1
        if resident.is_idle:
            self._withhold(resident)
        resident.references += 1
        self._stop_keeping(resident)

    def release(self, resident: ResidentAdapter, now_s: float) -> None:
        resident.references -= 1
        resident.last_used_s = now_s
        if resident.is_idle:
            self._yield(resident)

    def pin(self, resident: ResidentAdapter, pinned: bool) -> None:
        """From now on it is not given up while nobody uses it, or is again. Its place is at the
        operator's expense meanwhile."""
        if resident.pinned == pinned:
            return
        if resident.is_idle:
            self._withhold(resident)
        resident.pinned = pinned
        if resident.is_idle:
            self._yield(resident)
        self.occupancy.exempt((resident.scope, resident.digest), pinned)

    def evict(self, resident: ResidentAdapter) -> None:
        """Give its pages and its slot back, and its pin. Raises IntegrityError while it is in
        use."""
        if resident.references:
            raise IntegrityError(f"adapter {resident.digest} is in use and cannot be evicted")
        self.pin(resident, False)
        self._stop_keeping(resident)
        self._withhold(resident)
        del self._residents[resident.scope, resident.digest]
        self.occupancy.drop((resident.scope, resident.digest))
        self._pool.release(resident.pages)
        self._operations.clear(resident.slot)
        self._free_slots.append(resident.slot)
        self.slots_given_up += 1

    def residencies(self) -> list[AdapterResidency]:
        return [
            AdapterResidency(
                digest=item.digest,
                state="resident" if key in self._residents else "loading",
                rank=item.rank,
                pages=len(item.pages),
                references=item.references,
                last_used_s=item.last_used_s,
                pinned=item.pinned,
            )
            for key, item in {**self._residents, **self._arriving}.items()
        ]

    def check(self) -> None:
        """Raises IntegrityError unless slots and counts agree."""
        arriving = [item.slot for item in self._arriving.values()]
        slots = [item.slot for item in self._residents.values()]
        slots += arriving + self._free_slots
        if sorted(slots) != list(range(self._config.engine.max_adapters)):
            raise IntegrityError("an adapter slot is lost or used twice")
        unused = sum(len(i.pages) for i in self._residents.values() if i.is_idle)
        if unused != self._evictable_pages:
            raise IntegrityError("the count of evictable adapter pages is wrong")
        if any(key not in self._wanted or key in self._residents for key in self._arriving):
            raise IntegrityError("an adapter is being copied that nobody waits for")

    def _enter(self, adapter: ResidentAdapter) -> None:
        key = adapter.scope, adapter.digest
        self._residents[key] = self._arriving.pop(key)
        self.occupancy.hold(key, adapter.digest, len(adapter.pages) * self._config.page_bytes)
        if adapter.is_idle:
            self._evictable_pages += len(adapter.pages)
            self._candidates.offer(adapter)

    def _stop_keeping(self, resident: ResidentAdapter) -> None:
        if resident.kept_for is None:
            return
        del self._kept[resident]
        resident.kept_for = None
        if resident.is_idle:
            self._yield(resident)

    def _mark_wanted(self, key: Key, wanted: bool) -> None:
        item = self._residents.get(key) or self._arriving.get(key)
        if item is None:
            return
        item.wanted = wanted
        if not wanted:
            self._stop_keeping(item)
        if key in self._residents and item.is_idle:
            self._candidates.offer(item)

    def _yield(self, resident: ResidentAdapter) -> None:
        """It may be given up from now on."""
        self.slots_given_up += 1
        self._evictable_pages += len(resident.pages)
        self._candidates.offer(resident)

    def _withhold(self, resident: ResidentAdapter) -> None:
        self._evictable_pages -= len(resident.pages)
        self._candidates.withdraw(resident)
