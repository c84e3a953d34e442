"""AdapterLoads: which adapters are on their way to the device. It stands between the scheduler and
the loader, and keeps packed adapters only until they are installed."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import msgspec

from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.errors import AdapterLoadError
from tenora_engine.events import AdapterResidency, Residency
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.scheduling.load_places import LoadPlaces
from tenora_engine.scheduling.waits import Waits
from tenora_engine.telemetry import Telemetry

if TYPE_CHECKING:
    from tenora_engine.adapters.loader import LoadResult

READY_BYTES = 512 * 1024**2
"""Of all tenants' adapters that are loaded but not installed, beside what host memory has."""

PATIENCE_S = 5.0
"""After so long an adapter that is ready does not keep its place from others of its tenant."""


class Loader(Protocol):
    """What the engine needs of an AdapterLoader; no method waits for a disk or a network.

    `on_complete` may be called from any thread, and from within `start`, after the result has
    become visible to `take_completed`.
    """

    on_complete: Callable[[], None] | None

    @property
    def shared_prefix(self) -> str:
        """Of the names of packed adapters in Redis; empty without one."""
        ...

    def start(self, ref: AdapterRef, tenant_key: str) -> None:
        """Load it in the tenant's turn."""
        ...

    def cancel(self, digest: str) -> bool:
        """Whether a load had not begun, and will not now."""
        ...

    def used(self, digest: str, tenant_key: str) -> None:
        """A request asks for the adapter, wherever it is."""
        ...

    def take_occupancy(self) -> Occupied: ...

    def take_completed(self) -> list[LoadResult]: ...

    def residency(self, ref: AdapterRef) -> Residency: ...

    def tier(self, digest: str) -> Residency:
        """Where it would be found below the device, as far as is known; O(1)."""
        ...

    def take_moved(self) -> set[str]:
        """Digests whose `tier` may have changed since the last call."""
        ...

    def residencies(self) -> list[AdapterResidency]: ...

    def forget(self, digest: str) -> None: ...

    def counters(self) -> dict[str, float]: ...

    def close(self) -> None: ...


class FindingLoader(Loader, Protocol):
    """What the engine asks beside its steps as well."""

    def find(
        self, digests: Iterable[str], on_device: Collection[str]
    ) -> Future[dict[str, Residency]]:
        """Of each the best tier; those `on_device` are known to be there."""
        ...


@dataclass(frozen=True)
class _Found:
    """A host hit. Host memory owns it, and may give it up before it is installed."""

    result: LoadResult  # without `packed`
    packed: weakref.ref[PackedAdapter]


class AdapterLoads:
    """Loads that wait, loads in flight and results not yet installed. The last two have a tenant's
    `places`; its other loads wait until one is free, so that no tenant's loads keep another's from
    the loader, which takes them by turns. What host memory has takes no place and is not kept by
    this. A result that no waiting sequence wants is dropped (the loader's host tier still has it),
    and so is a load that has not begun."""

    def __init__(
        self,
        loader: Loader,
        memory: MemoryManager,
        telemetry: Telemetry,
        waits: Waits,
        clock: Callable[[], float],
    ) -> None:
        self._loader = loader
        self._memory = memory
        self._adapters = memory.adapters
        self._costs = memory.costs
        self._telemetry = telemetry
        self._waits = waits
        self._clock = clock
        self._places = LoadPlaces()
        self._in_flight: dict[str, AdapterRef] = {}
        self._begun: set[str] = set()  # of these, known to be past cancelling
        self._ready: dict[str, LoadResult] = {}
        self._ready_since: dict[str, float] = {}
        self._ready_bytes = 0
        self._found: dict[str, _Found] = {}
        self._fresh: list[PackedAdapter] = []  # of these, what has come since the last look
        self._looked_s = -math.inf
        # Loads from beyond host memory that nobody is metered for yet, and where from.
        self._cold: dict[str, Residency] = {}
        # Digests to forget once nobody uses them, and whether their packed copies go too.
        self._doomed: dict[str, bool] = {}
        self.num_loads = 0
        memory.adapters.reload_from(loader.tier)

    def request(
        self, ref: AdapterRef, tenant_key: str, keep: Collection[str] | None = None
    ) -> LoadResult | None:
        """The loaded adapter if it is ready; else see to it that it is loading, or waits to be. It
        is for one whose turn is near if `keep` is given: then another of the tenant's that is not
        in `keep` makes room for it. What no sequence waits for is loaded only if there is room."""
        digest, places = ref.digest, self._places
        result = self.ready(digest)
        if result is not None:
            return result
        if not self.is_coming(digest):
            if self._loader.residency(ref) == "host":
                self._start(ref, tenant_key)
                return None
            if places.is_full(tenant_key) and not self._adapters.is_awaited(digest):
                return None
            self._enqueue(ref, tenant_key)
        elif digest in places and places.owner(digest) != tenant_key:
            self._take_over(ref, tenant_key)
        if keep is not None and places.is_waiting(digest) and places.owner(digest) == tenant_key:
            if places.is_full(tenant_key):
                self._make_place(tenant_key, keep)
            self._begin(places.place(tenant_key, digest), tenant_key)
        return None

    def is_coming(self, digest: str) -> bool:
        """Whether it is being loaded or waits to be."""
        return digest in self._in_flight or self._places.is_waiting(digest)

    def ready(self, digest: str) -> LoadResult | None:
        """The adapter, loaded and not yet installed."""
        result = self._ready.get(digest)
        if result is not None:
            return result
        found = self._found.get(digest)
        if found is None:
            return None
        packed = found.packed()
        if packed is None:
            del self._found[digest]
            return None
        return replace(found.result, packed=packed)

    def poll(self) -> list[tuple[str, AdapterLoadError | None]]:
        """Take in what the loader has finished. Returns what has come to the end of its load, as
        (digest, why it failed)."""
        moved = self._loader.take_moved()
        if moved:
            self._adapters.moved(moved)
        ended: list[tuple[str, AdapterLoadError | None]] = []
        self._fresh.clear()
        for result in self._loader.take_completed() if self._in_flight else ():
            digest = result.ref.digest
            self._in_flight.pop(digest, None)
            self._begun.discard(digest)
            ended.append((digest, self._take_in(result)))
            if digest not in self._ready:
                self._leave(digest)
            self._waits.load_changed(digest, is_coming=False)
        self._pass_the_patient()
        return ended

    def discard(self, digest: str) -> None:
        """A ready adapter has been installed, or must not be."""
        self._found.pop(digest, None)
        if digest in self._ready:
            self._drop_ready(digest)
            self._leave(digest)

    def cold_tier(self, digest: str) -> Residency:
        """Where the adapter came from, if nobody has been metered for that yet; else the host."""
        return self._cold.get(digest, "host")

    def take_cold(self, digest: str) -> bool:
        """Whether the adapter has come from beyond host memory since this was last so."""
        return self._cold.pop(digest, None) is not None

    def release(self, digest: str) -> None:
        """A sequence that needed the adapter has ended: perhaps nobody needs it any more."""
        is_here = digest in self._in_flight or digest in self._places or digest in self._found
        if is_here and not self._adapters.is_awaited(digest):
            self._give_up(digest)
        self._drop_doomed(digest)

    def forget(self, digest: str, *, device_only: bool) -> None:
        """Drop it from the device and, unless `device_only`, from the host, once nobody uses it."""
        self._doomed[digest] = self._doomed.get(digest, False) or not device_only
        self._drop_doomed(digest)

    def used(self, digest: str, tenant_key: str) -> None:
        """A request asks for the adapter, wherever it is."""
        self._loader.used(digest, tenant_key)

    def residency(self, ref: AdapterRef) -> Residency:
        """Where it is, for whomever."""
        if self._adapters.copies(ref.digest):
            return "device"
        return self._loader.residency(ref)

    def residency_for(self, request: GenerationRequest) -> Residency | None:
        """Of the request's adapter as its tenant sees it: strict isolation keeps a copy for each.
        None without one."""
        if request.adapter is None:
            return None
        if self._memory.resident(request) is not None:
            return "device"
        return self._loader.residency(request.adapter)

    def _take_in(self, result: LoadResult) -> AdapterLoadError | None:
        digest, packed = result.ref.digest, result.packed
        if packed is None:
            return result.error or AdapterLoadError(f"{digest} could not be loaded")
        try:
            self._adapters.check_fits(packed)
        except ValueError as error:
            return AdapterLoadError(str(error))
        self.num_loads += 1
        self._telemetry.loaded(result.residency, result.load_ms / 1000, result.wait_ms / 1000)
        if result.residency != "host":  # there a look-up; its copy to the device is timed elsewhere
            self._costs.observe_load(_num_bytes(result), result.load_ms / 1000, result.residency)
        if not self._adapters.is_awaited(digest):
            return None
        if result.residency == "host":
            self._found[digest] = _found(result, packed)
            self._fresh.append(packed)
            return None
        self._cold[digest] = result.residency
        self._make_room(_num_bytes(result))
        self._ready[digest] = result
        self._ready_since[digest] = self._clock()
        self._ready_bytes += _num_bytes(result)
        return None

    def _make_room(self, num_bytes: int) -> None:
        """Where all tenants' ready adapters would take too much memory, those of the one that has
        most of it last only as long as host memory has them, the last that came first. A tenant
        that has no more than others keeps its own; and each that comes is kept until its sequences
        have been looked at."""
        while self._ready and self._ready_bytes + num_bytes > READY_BYTES:
            held: Counter[str] = Counter()
            last: dict[str, str] = {}
            for digest, result in self._ready.items():
                tenant_key = self._places.owner(digest) or ""
                held[tenant_key] += _num_bytes(result)
                last[tenant_key] = digest
            digest = last[max(held, key=held.__getitem__)]
            self._demote(digest)
            self._leave(digest)

    def _pass_the_patient(self) -> None:
        """Let other loads of a tenant pass those whose adapters have been ready for long and are in
        host memory: their sequences will find them there when it is their turn."""
        now_s = self._clock()
        if now_s - self._looked_s >= PATIENCE_S:
            self._looked_s = now_s
            for tenant_key in self._places.who_waits():
                for digest in list(self._places.placed(tenant_key)):
                    since_s = self._ready_since.get(digest, now_s)
                    if now_s - since_s >= PATIENCE_S and self._loader.tier(digest) == "host":
                        self._demote(digest)
                        self._leave(digest)

    def _demote(self, digest: str) -> None:
        """From now on a ready adapter is host memory's to keep. Its place is the caller's."""
        result = self._drop_ready(digest)
        if result.packed is not None:
            self._found[digest] = _found(result, result.packed)

    def _drop_ready(self, digest: str) -> LoadResult:
        result = self._ready.pop(digest)
        del self._ready_since[digest]
        self._ready_bytes -= _num_bytes(result)
        return result

    def _enqueue(self, ref: AdapterRef, tenant_key: str) -> None:
        self._places.wait(ref, tenant_key)
        self._waits.load_changed(ref.digest, is_coming=True)
        self._begin(self._places.place(tenant_key), tenant_key)

    def _begin(self, ref: AdapterRef | None, tenant_key: str) -> None:
        if ref is not None:
            self._start(ref, tenant_key)

    def _start(self, ref: AdapterRef, tenant_key: str) -> None:
        self._in_flight[ref.digest] = ref
        self._loader.start(ref, tenant_key)
        self._waits.load_changed(ref.digest, is_coming=True)

    def _leave(self, digest: str) -> None:
        """It needs no place any more: the tenant's next load has it."""
        tenant_key = self._places.leave(digest)
        if tenant_key is not None:
            self._begin(self._places.place(tenant_key), tenant_key)

    def _take_over(self, ref: AdapterRef, tenant_key: str) -> None:
        """A load that has not begun goes to another tenant that wants it, too, and has less before
        it."""
        places = self._places
        owner = places.owner(ref.digest) or ""
        has_less = places.num_pending(tenant_key) + 1 < places.num_pending(owner)
        if has_less and self._cancel(ref.digest):
            self._leave(ref.digest)
            self._enqueue(ref, tenant_key)

    def _make_place(self, tenant_key: str, keep: Collection[str]) -> None:
        """The last of the tenant's own that is not in `keep` waits again, or is left to host
        memory. Costs next to nothing while all are being read."""
        for digest in reversed(list(self._places.placed(tenant_key))):
            if digest in keep or digest in self._begun:
                continue
            if digest not in self._ready:
                ref = self._in_flight[digest]
                if self._cancel(digest):
                    self._places.leave(digest)
                    self._places.wait(ref, tenant_key, first=True)
                    return
            elif self._loader.tier(digest) == "host":
                self._demote(digest)
                self._places.leave(digest)
                return

    def _cancel(self, digest: str) -> bool:
        """Take a load back from the loader, if it has not begun."""
        if digest in self._begun:
            return False
        if digest in self._in_flight and not self._loader.cancel(digest):
            self._begun.add(digest)
            return False
        self._in_flight.pop(digest, None)
        return True

    def _give_up(self, digest: str) -> None:
        """What is being read right now comes to its end."""
        self._cold.pop(digest, None)
        if digest in self._ready or digest in self._found:
            self.discard(digest)
        elif self._cancel(digest):
            self._leave(digest)
            self._waits.load_changed(digest, is_coming=False)

    def _drop_doomed(self, digest: str) -> None:
        if digest in self._doomed and not self._adapters.is_used(digest):
            self._memory.drop_adapter(digest)
            self.discard(digest)
            if self._doomed.pop(digest):
                self._loader.forget(digest)

    def counters(self) -> dict[str, float]:
        own = {f"loader_{name}": value for name, value in self._loader.counters().items()}
        return {**own, "adapter_loads": self.num_loads}

    def residencies(self) -> list[AdapterResidency]:
        """Every adapter on the device, on its way there or on the host, once."""
        now_s, to_unix_s = self._clock(), self._memory.unix_offset()
        refs = [*self._places.waiting(), *self._in_flight.values()]
        refs += [result.ref for result in self._ready.values()]
        now_s += to_unix_s
        loading = [AdapterResidency(ref.digest, "loading", ref.rank, 0, 0, now_s) for ref in refs]
        found = [
            msgspec.structs.replace(each, last_used_s=each.last_used_s + to_unix_s)
            for each in self._adapters.residencies()
        ]
        for others in (loading, self._loader.residencies()):
            known = {adapter.digest for adapter in found}
            found += [adapter for adapter in others if adapter.digest not in known]
        return found


def _num_bytes(result: LoadResult) -> int:
    packed = result.packed
    return 0 if packed is None else max(packed.pages.nbytes, 1)


def _found(result: LoadResult, packed: PackedAdapter) -> _Found:
    return _Found(replace(result, packed=None), weakref.ref(packed))
