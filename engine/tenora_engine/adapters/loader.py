"""AdapterLoader: brings packed adapters up from host memory, Redis or the object store beside the
engine's steps. Knows nothing of device pages, slots or requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import AdapterLoadError
from tenora_engine.events import Residency
from tenora_engine.request import AdapterRef


@dataclass(frozen=True)
class LoadResult:
    """What came of one load: `packed` or `error`, never both."""

    ref: AdapterRef
    packed: PackedAdapter | None
    error: AdapterLoadError | None
    residency: Residency  # the tier it came from: "host", "shared" or "store"
    load_ms: float


class AdapterLoader:
    """Loads adapters in `loader_threads` threads. All methods may be called from the step thread:
    none of them waits for a network or a disk."""

    def __init__(
        self, resolved: ResolvedConfig, on_complete: Callable[[], None] | None = None
    ) -> None:
        self.on_complete = on_complete  # called from a loader thread (or inside start): a wake-up
        ...

    def start(self, ref: AdapterRef) -> None:
        """Begin loading; nothing happens if this digest is already in flight. A host hit is
        complete when this returns. The result comes out of `take_completed`."""
        ...

    def take_completed(self) -> list[LoadResult]:
        """Every result since the last call, oldest first; never waits."""
        ...

    def residency(self, ref: AdapterRef) -> Residency:
        """The best tier below the device that is known to hold the adapter."""
        ...

    def forget(self, digest: str) -> None:
        """Drop the host copy now and the shared copy soon."""
        ...

    def counters(self) -> dict[str, float]:
        """host_hits, shared_hits, store_loads, load_errors, shared_errors, ...; only ever rise."""
        ...

    def close(self) -> None:
        """Stop the threads; loads in flight are finished or dropped."""
        ...
