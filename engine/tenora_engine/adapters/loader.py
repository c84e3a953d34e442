"""AdapterLoader: brings packed adapters up from host memory, Redis or the object store beside the
engine's steps. Knows nothing of device pages, slots or requests."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.adapters.pack import check_tables, layout_key, pack_adapter
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.slab import slab_for, take_room
from tenora_engine.adapters.tiers import HostTier, SharedTier, StoreTier
from tenora_engine.adapters.turns import Cores, FairThreads, Job, Rooms, SharedWork
from tenora_engine.adapters.warming import Warming
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import AdapterLoadError
from tenora_engine.events import AdapterResidency, Residency
from tenora_engine.pace import Pace
from tenora_engine.request import AdapterRef
from tenora_engine.sealing import Seal
from tenora_engine.threads import compute_alone

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MEMO_ENTRIES = 4096
_MEMO_S = 30.0  # how long what Redis said about one digest is believed
_TELL_S = 10.0  # Redis hears so often what was used
_READ_BYTES = 512 * 1024**2  # of adapters as they were uploaded, while they are packed
_USES_MAX = 1000  # adapters of which that is counted meanwhile

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadResult:
    """What came of one load: `packed` or `error`, never both."""

    ref: AdapterRef
    packed: PackedAdapter | None
    error: AdapterLoadError | None
    residency: Residency  # the tier it came from: "host", "shared" or "store"
    load_ms: float
    """What the work took: to ask the tier it came from, and to read and pack it."""
    wait_ms: float = 0.0  # beside that, for a thread, a core and the steps' sake


@dataclass
class _Flight:
    """One load under way. `forgotten` is set when no tier may keep it any more."""

    ref: AdapterRef
    tenant_key: str
    started_s: float
    forgotten: threading.Event = field(default_factory=threading.Event)
    job: Job | None = None


class _Memo:
    """What Redis was last known to hold; bounded, and believed for a while only."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        self._moved: set[str] = set()
        self._lock = threading.Lock()

    def get(self, digest: str) -> bool | None:
        with self._lock:
            held, until_s = self._known.get(digest, (None, 0.0))
            return held if time.monotonic() < until_s else None

    def last(self, digest: str) -> bool:
        """What was heard last, however long ago."""
        with self._lock:
            return self._known.get(digest, (False, 0.0))[0]

    def set(self, digest: str, held: bool) -> None:
        with self._lock:
            before, _ = self._known.get(digest, (False, 0.0))
            if held != before:
                self._moved.add(digest)
            self._known[digest] = (held, time.monotonic() + _MEMO_S)
            self._known.move_to_end(digest)
            if len(self._known) > _MEMO_ENTRIES:
                self._moved.add(self._known.popitem(last=False)[0])

    def take_moved(self) -> AbstractSet[str]:
        """Digests of what Redis has been found to hold, or to hold no more, since the last call."""
        with self._lock:
            moved, self._moved = self._moved, set()
            return moved


class AdapterLoader:
    """Loads adapters by the turns of the tenants that ask for them: `loader_threads` loads of one
    tenant at a time, of which `loader_threads` of all tenants together compute, at `pace`; the
    others wait for a disk or a network (see `turns`). Host hits wait for nothing, and what Redis is
    told and asked beside has a thread of its own. All methods may be called from the step thread:
    none of them waits for a network or a disk."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        on_complete: Callable[[], None] | None = None,
        store: ObjectStore | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        config = resolved.engine
        self._clock = clock
        self._pace = pace or Pace()
        self.on_complete = on_complete  # called from a loader thread, or inside `start`: a wake-up
        self._resolved = resolved
        self._host = HostTier(config.host_adapter_bytes)
        self._slab = slab_for(resolved)
        self._shared: SharedTier | None = None
        if config.redis_url is not None:
            layout = (resolved.model, resolved.packed_page_elements, resolved.packed_dtype)
            self._shared = SharedTier(
                config.redis_url,
                layout_key(*layout),
                config.shared_adapter_bytes,
                config.shared_adapter_ttl_s,
                seal=Seal(config.redis_key),
                check=lambda packed: check_tables(packed, *layout, config.max_rank),
            )
        self._store = StoreTier(config.object_store, store, self._pace)
        self._threads = FairThreads(config.loader_threads, "tenora-adapter-loader", compute_alone)
        self._cores = Cores(config.loader_threads)
        self._rooms = Rooms(_READ_BYTES)
        self._errands = ThreadPoolExecutor(1, "tenora-adapter-errands", initializer=compute_alone)
        self._lock = threading.Lock()
        self._uses: Counter[str] = Counter()  # since Redis was told
        self._told_s = -math.inf
        self._flights: dict[str, _Flight] = {}
        self._sharing: dict[str, _Flight] = {}  # done, but on the way into Redis
        self._asking: set[str] = set()
        self._unasked: list[str] = []  # of these
        self._completed: deque[LoadResult] = deque()
        self._memo = _Memo()
        self._counters: Counter[str] = Counter()
        self._closed = False
        self._warming: Warming | None = None
        if self._shared is not None:
            self._warming = Warming(
                self._host,
                self._shared,
                lambda: bool(self._flights),
                self._in_host_memory,
                self._pace,
            )
            self._warming.start()

    @property
    def shared_prefix(self) -> str:
        """Of the names of packed adapters in Redis; empty without one."""
        return "" if self._shared is None else self._shared.key("")

    def start(self, ref: AdapterRef, tenant_key: str = "") -> None:
        """Load in the tenant's turn; nothing happens if this digest is already in flight. A host
        hit is complete when this returns. The result comes out of `take_completed`."""
        flight = _Flight(ref, tenant_key, self._clock())
        with self._lock:
            if ref.digest in self._flights or self._closed:
                return
            self._flights[ref.digest] = flight
        packed = self._host.get(ref.digest)
        if packed is not None:
            found_s = self._clock() - flight.started_s
            self._finish(flight, packed, None, "host", found_s)
        else:
            flight.job = self._threads.submit(tenant_key, lambda: self._load(flight))

    def cancel(self, digest: str) -> bool:
        """Drop a load that no thread has begun; whether there was one. Nothing comes of it."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is None or flight.job is None or not self._threads.cancel(flight.job):
                return False
            del self._flights[digest]
            self._counters["cancelled"] += 1
        return True

    def used(self, digest: str, tenant_key: str) -> None:
        """A request asks for the adapter, wherever it is."""
        self._host.use(digest, tenant_key)
        if self._shared is None or (len(self._uses) >= _USES_MAX and digest not in self._uses):
            return
        self._uses[digest] += 1
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_S and not self._closed:
            self._told_s = now_s
            uses, self._uses = self._uses, Counter()
            self._errands.submit(self._shared.use, uses)

    def take_completed(self) -> list[LoadResult]:
        """Every result since the last call, oldest first; never waits."""
        results = []
        while self._completed:
            results.append(self._completed.popleft())
        return results

    def residency(self, ref: AdapterRef) -> Residency:
        """The best tier below the device that is known to hold the adapter. Redis is asked beside
        the step, so an adapter not heard of lately is "store" until it has answered."""
        if ref.digest in self._host:
            return "host"
        if self._shared is None:
            return "store"
        held = self._memo.get(ref.digest)
        if held is None:
            self._ask_shared(ref.digest)
        return "shared" if held else "store"

    def tier(self, digest: str) -> Residency:
        """Where the adapter would be found below the device, as far as is known without asking. It
        changes only with what `take_moved` tells. O(1)."""
        if digest in self._host:
            return "host"
        return "shared" if self._memo.last(digest) else "store"

    def take_moved(self) -> set[str]:
        """Digests whose `tier` may have changed since the last call."""
        return self._host.take_moved() | self._memo.take_moved()

    def find(
        self, digests: Iterable[str], on_device: Collection[str]
    ) -> Future[dict[str, Residency]]:
        """Of each the best tier; those `on_device` are known to be there. Redis is asked for the
        rest in one go, beside the loads."""
        found: dict[str, Residency] = {}
        unknown = []
        for digest in digests:
            held = self._memo.get(digest)
            if digest in on_device:
                found[digest] = "device"
            elif digest in self._host:
                found[digest] = "host"
            elif self._shared is None or held is not None:
                found[digest] = "shared" if held else "store"
            else:
                unknown.append(digest)
        if unknown and not self._closed:
            return self._errands.submit(self._find_shared, found, unknown)
        answer: Future[dict[str, Residency]] = Future()
        answer.set_result(found | dict.fromkeys(unknown, "store"))
        return answer

    def _find_shared(self, found: dict[str, Residency], unknown: list[str]) -> dict[str, Residency]:
        held = self._shared.which(unknown) if self._shared is not None else set()
        for digest in unknown:
            self._memo.set(digest, digest in held)
            found[digest] = "shared" if digest in held else "store"
        return found

    def take_occupancy(self) -> Occupied:
        """Of host memory, since the last time. From any thread."""
        return self._host.occupancy.take()

    def residencies(self) -> list[AdapterResidency]:
        """The adapters in host memory."""
        return self._host.residencies()

    def forget(self, digest: str) -> None:
        """Drop the host copy now and the shared copy soon."""
        with self._lock:
            for flights in (self._flights, self._sharing):
                if digest in flights:
                    flights[digest].forgotten.set()
            closed = self._closed
        self._uses.pop(digest, None)
        if self._warming is not None:
            self._warming.forget(digest)
        self._host.remove(digest)
        if self._shared is not None and not closed:
            self._memo.set(digest, False)
            self._errands.submit(self._shared.remove, digest)

    def counters(self) -> dict[str, float]:
        """host_hits, shared_hits, shared_misses, shared_errors, shared_corrupt, store_loads,
        load_errors, cancelled, warmed, host_evictions, host_bytes, ...; all but host_bytes only
        rise."""
        with self._lock:
            counters: dict[str, float] = dict(self._counters)
        if self._shared is not None:
            counters |= self._shared.counters()
        if self._warming is not None:
            counters["warmed"] = self._warming.adapters
        host = self._host
        return counters | {"host_evictions": host.evictions, "host_bytes": host.used_bytes}

    def close(self) -> None:
        """Stop the threads. Loads not yet begun are dropped; those under way are finished, but for
        such as hang."""
        with self._lock:
            self._closed = True
        if self._warming is not None:
            self._warming.stop()
        self._threads.close()
        self._errands.shutdown(wait=True, cancel_futures=True)
        if self._shared is not None:
            self._shared.use(self._uses)
            self._shared.close()

    def _load(self, flight: _Flight) -> None:
        """On a loader thread: find the adapter in the best tier, and keep it in those above."""
        work = SharedWork(flight.tenant_key, self._cores, self._rooms, self._pace, self._clock)
        try:
            packed, residency = self._bring(flight, work)
        except AdapterLoadError as error:
            self._finish(flight, None, error, "store", work.worked_s)
        except Exception as error:  # a defect must fail this adapter's requests, not hang them
            _log.exception("loading %s failed", flight.ref.digest)
            wrapped = AdapterLoadError(
                f"loading {flight.ref.digest} failed: {type(error).__name__}"
            )
            wrapped.__cause__ = error
            self._finish(flight, None, wrapped, "store", work.worked_s)
        else:
            self._finish(flight, packed, None, residency, work.worked_s)
            if residency == "store" and self._shared is not None:
                with work:
                    self._share(flight, packed, self._shared, work)

    def _bring(self, flight: _Flight, work: SharedWork) -> tuple[PackedAdapter, Residency]:
        ref, tenant_key = flight.ref, flight.tenant_key
        try:
            with work:
                packed = self._from_shared(ref.digest, work)
                if packed is not None:
                    return self._in_host_memory(packed, tenant_key), "shared"
                packed = self._pack_from_store(ref, work)
                return self._in_host_memory(packed, tenant_key), "store"
        finally:
            work.end()

    def _from_shared(self, digest: str, work: SharedWork) -> PackedAdapter | None:
        """What Redis has. Asking in vain, perhaps until a time-out, is no part of what the load
        from the store takes."""
        if self._shared is None:
            return None
        packed = self._shared.get(digest, work)
        self._memo.set(digest, packed is not None)
        if packed is None:
            work.start_anew()
        return packed

    def _pack_from_store(self, ref: AdapterRef, work: SharedWork) -> PackedAdapter:
        config, tensors = self._store.read(ref.digest, work)
        resolved = self._resolved
        return pack_adapter(
            ref.digest,
            config,
            tensors,
            resolved.model,
            resolved.packed_page_elements,
            resolved.packed_dtype,
            resolved.engine.max_rank,
            work.rest,
        )

    def _in_host_memory(self, packed: PackedAdapter, tenant_key: str = "") -> PackedAdapter:
        """In the pinned slab when there is a device to copy to, so that the copy runs beside the
        steps. As it is where others that are used hold all of it: the copy then waits."""
        pages = None
        if self._slab is not None:
            pages = take_room(self._slab, packed.pages, self._host, tenant_key)
        return packed if pages is None else dataclasses.replace(packed, pages=pages)

    def _finish(
        self,
        flight: _Flight,
        packed: PackedAdapter | None,
        error: AdapterLoadError | None,
        residency: Residency,
        worked_s: float,
    ) -> None:
        load_ms = worked_s * 1000
        wait_ms = (self._clock() - flight.started_s) * 1000 - load_ms
        with self._lock:
            del self._flights[flight.ref.digest]
            if packed is not None and not flight.forgotten.is_set() and residency != "host":
                self._host.put(packed, flight.tenant_key)
            self._counters["load_errors" if error else _COUNTER[residency]] += 1
        self._completed.append(LoadResult(flight.ref, packed, error, residency, load_ms, wait_ms))
        if self.on_complete is not None:
            self.on_complete()

    def _share(
        self, flight: _Flight, packed: PackedAdapter, shared: SharedTier, work: SharedWork
    ) -> None:
        """Put the packed pages into Redis, now that those who waited have them. What is forgotten
        before or meanwhile does not stay."""
        digest = packed.digest
        with self._lock:
            if flight.forgotten.is_set():
                return
            self._sharing[digest] = flight
        stored = shared.put(packed, work)
        with self._lock:
            self._sharing.pop(digest, None)
            keep = not flight.forgotten.is_set()
        if not keep:
            shared.remove(digest)
        self._memo.set(digest, stored and keep)

    def _ask_shared(self, digest: str) -> None:
        """What is asked for while another answer is awaited is asked in one go then."""
        with self._lock:
            if digest in self._asking or self._closed or len(self._asking) >= _MEMO_ENTRIES:
                return
            self._asking.add(digest)
            self._unasked.append(digest)
            if len(self._unasked) > 1:
                return
        self._errands.submit(self._note_shared)

    def _note_shared(self) -> None:
        with self._lock:
            digests, self._unasked = self._unasked, []
        try:
            self._find_shared({}, digests)
        finally:
            with self._lock:
                self._asking.difference_update(digests)


_COUNTER = {"host": "host_hits", "shared": "shared_loads", "store": "store_loads"}
