"""Warming: when an engine starts, the adapters that are hottest in Redis come into its host memory,
one at a time, while nothing that was asked for is loading."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.tiers import HostTier, SharedTier
from tenora_engine.pace import Pace
from tenora_engine.threads import compute_alone

ADAPTERS_MAX = 256
"""So many of the hottest are looked at."""

HOST_FRACTION = 2
"""Host memory over this is what they may fill."""

_REST = 4  # times what a read took: Redis answers others, too
_POLL_S = 0.02


class Warming:
    """Runs once, in a thread of its own. `is_busy` says whether anybody waits for a load; `keep`
    makes of an adapter what host memory is to hold."""

    def __init__(
        self,
        host: HostTier,
        shared: SharedTier,
        is_busy: Callable[[], bool],
        keep: Callable[[PackedAdapter], PackedAdapter],
        pace: Pace,
    ) -> None:
        self._host = host
        self._shared = shared
        self._is_busy = is_busy
        self._keep = keep
        self._pace = pace
        self._limit_bytes = host.capacity_bytes // HOST_FRACTION
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._forgotten: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="tenora-warming", daemon=True)
        self.adapters = 0  # that have come

    def start(self) -> None:
        if self._limit_bytes:
            self._thread.start()

    def stop(self) -> None:
        """Waits for the read under way."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def forget(self, digest: str) -> None:
        """From now on it does not come. Whoever calls this then takes it out of host memory."""
        with self._lock:
            self._forgotten.add(digest)

    def _run(self) -> None:
        compute_alone()
        for digest in self._shared.hottest(ADAPTERS_MAX):
            while self._is_busy() and not self._stopped.wait(_POLL_S):
                continue
            if self._stopped.is_set():
                return
            size = self._shared.stored_bytes(digest)
            if size and digest not in self._host and self._fits(size):
                started_s = time.monotonic()
                self._fetch(digest, size)
                self._stopped.wait(_REST * (time.monotonic() - started_s))

    def _fits(self, num_bytes: int) -> bool:
        return self._host.used_bytes + num_bytes <= self._limit_bytes

    def _fetch(self, digest: str, size: int) -> None:
        self._pace.begin(size)
        packed = self._shared.get(digest)
        if packed is None:
            return
        packed = self._keep(packed)
        with self._lock:
            if digest not in self._forgotten:
                self.adapters += self._host.put_below(packed, self._limit_bytes)
        self._pace.rest()
