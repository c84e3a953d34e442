"""AdapterLoads: which adapters are on their way to the device. It stands between the scheduler and
the loader, and keeps packed adapters only until they are installed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.errors import AdapterLoadError
from tenora_engine.events import AdapterResidency, Residency
from tenora_engine.memory.adapter_cache import AdapterCache
from tenora_engine.memory.costs import CostModel
from tenora_engine.request import AdapterRef
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
        adapters: AdapterCache,
        costs: CostModel,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._loader = loader
        self._adapters = adapters
        self._costs = costs
        self._telemetry = telemetry
        self._clock = clock
        self._in_flight: dict[str, AdapterRef] = {}
        self._ready: dict[str, LoadResult] = {}
        self._tenants: dict[str, str] = {}  # who asked first for each of them
        self._cold: set[str] = set()  # loads from beyond host memory that nobody is metered for yet
        self.num_loads = 0
        self.on_change: Callable[[str, bool], None] = lambda _digest, _is_coming: None
        """Told when a load begins, and when it has come to its end or is given up."""

    def request(
        self, ref: AdapterRef, tenant_key: str, keep: Collection[str] | None = None
    ) -> LoadResult | None:
        """The loaded adapter if it is ready; else see to it that it is loading, as far as there is
        room. To make room one that is not in `keep` is given up; None keeps all."""
        result = self._ready.get(ref.digest)
        if result is not None or ref.digest in self._in_flight:
            return result
        own = [digest for digest, key in self._tenants.items() if key == tenant_key]
        full = own if len(own) >= MAX_TENANT_PENDING else list(self._tenants)
        if len(own) >= MAX_TENANT_PENDING or len(self._tenants) >= MAX_PENDING:
            spare = (d for d in reversed(full) if d not in (keep or ()) and self._give_up(d))
            if keep is None or next(spare, None) is None:
                return None
        self._in_flight[ref.digest] = ref
        self._tenants[ref.digest] = tenant_key
        self._loader.start(ref)
        self.on_change(ref.digest, True)
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
            try:
                self._take_in(result)
            except AdapterLoadError as error:
                failed.append((digest, error))
            if digest not in self._ready:
                self._tenants.pop(digest, None)
            self.on_change(digest, False)
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

    def forgo(self, digest: str) -> None:
        """A sequence that needed the adapter has ended: perhaps nobody waits for it any more."""
        if digest in self._tenants and not self._adapters.is_awaited(digest):
            self._give_up(digest)

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

    def _give_up(self, digest: str) -> bool:
        """Whether it could be: what is being read right now comes to its end."""
        if digest in self._in_flight:
            if not self._loader.cancel(digest):
                return False
            del self._in_flight[digest]
            self.on_change(digest, False)
        self._ready.pop(digest, None)
        self._cold.discard(digest)
        del self._tenants[digest]
        return True

    def residencies(self) -> list[AdapterResidency]:
        """Every adapter on the device, on its way there or on the host, once."""
        now_s = self._clock()
        refs = [*self._in_flight.values(), *(result.ref for result in self._ready.values())]
        loading = [AdapterResidency(ref.digest, "loading", ref.rank, 0, 0, now_s) for ref in refs]
        found = self._adapters.residencies()
        for others in (loading, self._loader.residencies()):
            known = {adapter.digest for adapter in found}
            found += [adapter for adapter in others if adapter.digest not in known]
        return found
