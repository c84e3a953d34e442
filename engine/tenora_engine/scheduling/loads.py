"""AdapterLoads: which adapters are on their way to the device. It stands between the scheduler and
the loader, and keeps packed adapters only until they are installed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import msgspec

from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.errors import AdapterBusyError, AdapterLoadError, InvalidRequestError
from tenora_engine.events import AdapterResidency, Residency
from tenora_engine.memory.adapter_cache import Key
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.pages import Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.scheduling.waits import Waits
from tenora_engine.sequence import Sequence as RunningSequence
from tenora_engine.telemetry import Telemetry

if TYPE_CHECKING:
    from tenora_engine.adapters.loader import LoadResult

MAX_PENDING = 16
"""Adapters that may be loading or loaded but not installed at one time."""

MAX_TENANT_PENDING = 8
"""Of them, for one tenant."""


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

    def start(self, ref: AdapterRef) -> None: ...

    def cancel(self, digest: str) -> bool:
        """Whether a load had not begun, and will not now."""
        ...

    def used(self, digest: str, tenant_key: str) -> None:
        """A request asks for the adapter, wherever it is."""
        ...

    def take_occupancy(self) -> Occupied: ...

    def take_completed(self) -> list[LoadResult]: ...

    def residency(self, ref: AdapterRef) -> Residency: ...

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


class AdapterLoads:
    """Loads in flight and results not yet installed, together at most MAX_PENDING. A result that
    no waiting sequence wants is dropped (the loader's host tier still has it), and so is a load
    that has not begun."""

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
        self._in_flight: dict[str, AdapterRef] = {}
        self._begun: set[str] = set()  # of these, known to be past cancelling
        self._ready: dict[str, LoadResult] = {}
        self._tenants: dict[str, str] = {}  # who asked first for each of them
        self._cold: set[str] = set()  # loads from beyond host memory that nobody is metered for yet
        # Digests to forget once nobody uses them, and whether their packed copies go too.
        self._doomed: dict[str, bool] = {}
        self.num_loads = 0

    def request(
        self, ref: AdapterRef, tenant_key: str, keep: Collection[str] | None = None
    ) -> LoadResult | None:
        """The loaded adapter if it is ready; else see to it that it is loading, as far as there is
        room. To make room one that is not in `keep` is given up; None keeps all."""
        result = self._ready.get(ref.digest)
        if result is not None or ref.digest in self._in_flight:
            return result
        is_own_full = list(self._tenants.values()).count(tenant_key) >= MAX_TENANT_PENDING
        if is_own_full or len(self._tenants) >= MAX_PENDING:
            whose = tenant_key if is_own_full else None
            if keep is None or not self._give_up_one(whose, keep):
                return None
        self._in_flight[ref.digest] = ref
        self._tenants[ref.digest] = tenant_key
        self._loader.start(ref)
        self._waits.load_changed(ref.digest, is_coming=True)
        return None

    def is_coming(self, digest: str) -> bool:
        """Whether it is being loaded."""
        return digest in self._in_flight

    def ready(self, digest: str) -> LoadResult | None:
        return self._ready.get(digest)

    def poll(self) -> list[tuple[str, AdapterLoadError]]:
        """Take in what the loader has finished. Returns what failed, as (digest, error)."""
        if not self._in_flight:
            return []
        failed: list[tuple[str, AdapterLoadError]] = []
        for result in self._loader.take_completed():
            digest = result.ref.digest
            self._in_flight.pop(digest, None)
            self._begun.discard(digest)
            try:
                self._take_in(result)
            except AdapterLoadError as error:
                failed.append((digest, error))
            if digest not in self._ready:
                self._tenants.pop(digest, None)
            self._waits.load_changed(digest, is_coming=False)
        return failed

    def discard(self, digest: str) -> None:
        """A ready adapter has been installed, or must not be."""
        if self._ready.pop(digest, None) is not None:
            del self._tenants[digest]

    def take_cold(self, digest: str) -> bool:
        """Whether the adapter has come from beyond host memory since this was last so."""
        was_cold = digest in self._cold
        self._cold.discard(digest)
        return was_cold

    def release(self, digest: str) -> None:
        """A sequence that needed the adapter has ended: perhaps nobody needs it any more."""
        if digest in self._tenants and not self._adapters.is_awaited(digest):
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

    def _take_in(self, result: LoadResult) -> None:
        if result.packed is None:
            raise result.error or AdapterLoadError(f"{result.ref.digest} could not be loaded")
        try:
            self._adapters.check_fits(result.packed)
        except ValueError as error:
            raise AdapterLoadError(str(error)) from error
        self.num_loads += 1
        self._telemetry.loaded(result.residency, result.load_ms / 1000)
        pages = result.packed.pages
        self._costs.observe_load(
            max(pages.numel() * pages.element_size(), 1),
            result.load_ms / 1000,
            from_host=result.residency == "host",
        )
        if self._adapters.is_awaited(result.ref.digest):
            self._ready[result.ref.digest] = result
            if result.residency != "host":
                self._cold.add(result.ref.digest)

    def _give_up_one(self, tenant_key: str | None, keep: Collection[str]) -> bool:
        """The last that was asked for, of one tenant or of all, and is not in `keep`. It costs next
        to nothing while all are being read: each sequence that waits for a load asks in each
        step."""
        if len(self._begun) == len(self._tenants):
            return False
        return any(
            self._give_up(digest)
            for digest, key in reversed(list(self._tenants.items()))
            if tenant_key in (key, None) and digest not in keep
        )

    def _give_up(self, digest: str) -> bool:
        """Whether it could be: what is being read right now comes to its end."""
        if digest in self._begun:
            return False
        if digest in self._in_flight:
            if not self._loader.cancel(digest):
                self._begun.add(digest)
                return False
            del self._in_flight[digest]
            self._waits.load_changed(digest, is_coming=False)
        self._ready.pop(digest, None)
        self._cold.discard(digest)
        del self._tenants[digest]
        return True

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
        refs = [*self._in_flight.values(), *(result.ref for result in self._ready.values())]
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


PINS_MAX = 1024
"""That may be told at one time."""


class Pins:
    """By key. One that is on its way is `wanted` like that of a waiting sequence."""

    def __init__(self, memory: MemoryManager, loads: AdapterLoads) -> None:
        self._memory = memory
        self._loads = loads
        self._pins: dict[Key, Pin] = {}
        self._coming: dict[Key, None] = {}
        self._refused: dict[Key, tuple[str, str]] = {}  # state and why

    def set(self, pins: Sequence[Pin]) -> list[PinState]:
        """From now on these, no others; the first come first where there is no room for all.
        Raises InvalidRequestError for more than PINS_MAX."""
        if len(pins) > PINS_MAX:
            raise InvalidRequestError(f"at most {PINS_MAX} adapters can be pinned", "pins")
        wanted = {self._key(pin): pin for pin in pins}
        for key in [key for key in self._pins if key not in wanted]:
            self._drop(key)
        self._pins = wanted
        self._refused.clear()
        for key in wanted:
            if key not in self._coming and not self._is_pinned(key):
                self._begin(key)
        self.settle()
        return self.states()

    def states(self) -> list[PinState]:
        """Of all, in the order in which they were told."""
        return [self._state(key, pin) for key, pin in self._pins.items()]

    def settle(self) -> None:
        """Go on with those that are coming: after a load, and whenever there may be room again."""
        for key in list(self._coming):
            self._go_on(key)

    def failed(self, digest: str, error: AdapterLoadError) -> None:
        """It could not be loaded, or not be copied to the device."""
        for key in [key for key in self._coming if key[1] == digest]:
            self._stop(key)
            self._refused[key] = "failed", str(error)

    def forget(self, digest: str) -> None:
        """Its content is to go from everywhere."""
        for key in [key for key in self._pins if key[1] == digest]:
            self._drop(key)
            del self._pins[key]

    def evict(self, namespace: str, digest: str, running: Iterable[RunningSequence]) -> int:
        """Take an adapter from the device; returns its pages, 0 when it is not there. Raises
        AdapterBusyError, with the count, while requests run on it, and while it is pinned."""
        key = self._memory.key_of(namespace, digest)
        resident = self._memory.adapters.get(key[1], key[0])
        if resident is None:
            return 0
        if resident.pinned:
            raise AdapterBusyError("the adapter is pinned; unpin it first")
        if resident.references:
            users = {s.request.request_id for s in running if s.adapter_slot == resident.slot}
            many = "requests run" if len(users) > 1 else "request runs"
            raise AdapterBusyError(
                f"{len(users)} {many} on the adapter; try again when they have ended", len(users)
            )
        self._memory.remove_adapter(resident)
        return len(resident.pages)

    def _begin(self, key: Key) -> None:
        pin = self._pins[key]
        try:
            self._memory.register(pin.tenant)
        except InvalidRequestError as error:
            self._refused[key] = "refused", str(error)
            return
        resident = self._memory.adapters.get(key[1], key[0])
        if self._is_refused(key, 1 if resident is None else len(resident.pages)):
            return
        self._coming[key] = None
        self._memory.adapters.want(key[1], key[0])

    def _go_on(self, key: Key) -> None:
        adapters, pin = self._memory.adapters, self._pins[key]
        resident = adapters.get(key[1], key[0])
        if resident is not None:
            if not self._is_refused(key, len(resident.pages)):
                self._memory.pinning.pin(resident)
            self._stop(key)
            return
        if self._memory.adapters.is_arriving(key):
            return
        result = self._loads.request(pin.adapter, pin.tenant.key)
        if result is None or result.packed is None:
            return
        if self._is_refused(key, result.packed.num_pages):
            self._stop(key)
            return
        self._memory.try_install(pin.tenant, result.packed, result.load_ms)
        if adapters.get(key[1], key[0]) is not None:
            self._loads.discard(key[1])
            self._go_on(key)

    def _is_refused(self, key: Key, num_pages: int) -> bool:
        namespace = self._pins[key].tenant.namespace
        others = len(self._coming) - (key in self._coming)
        why = self._memory.pinning.refusal(namespace, num_pages, others)
        if why is not None:
            self._refused[key] = "refused", why
        return why is not None

    def _drop(self, key: Key) -> None:
        if key in self._coming:
            self._stop(key)
        resident = self._memory.adapters.get(key[1], key[0])
        if resident is not None:
            self._memory.pinning.unpin(resident)
        self._refused.pop(key, None)

    def _stop(self, key: Key) -> None:
        """It is not awaited any more."""
        del self._coming[key]
        self._memory.adapters.unwant(key[1], key[0])
        self._memory.arrivals.cancel_unwanted(key)
        self._loads.release(key[1])

    def _is_pinned(self, key: Key) -> bool:
        resident = self._memory.adapters.get(key[1], key[0])
        return resident is not None and resident.pinned

    def _state(self, key: Key, pin: Pin) -> PinState:
        namespace, digest = pin.tenant.namespace, pin.adapter.digest
        resident = self._memory.adapters.get(digest, key[0])
        if resident is not None and resident.pinned:
            return PinState(namespace, digest, "pinned", len(resident.pages))
        state, why = self._refused.get(key, ("", ""))
        if state == "refused":
            return PinState(namespace, digest, "refused", reason=why)
        if state == "failed":
            return PinState(namespace, digest, "failed", reason=why)
        return PinState(namespace, digest, "loading")

    def _key(self, pin: Pin) -> Key:
        return self._memory.key_of(pin.tenant.namespace, pin.adapter.digest)
