"""DraftLayers: the draft layers that adapters bring, fetched from the object store beside the steps
and kept in a bounded part of memory. Nobody waits for one: until it is there, and where it cannot
be had, its adapter's sequences do without. Knows no sequences."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tenora_engine.adapters.tiers import StoreTier
from tenora_engine.model.draft_layer import DraftMaker, MadeLayer
from tenora_engine.request import AdapterRef
from tenora_engine.threads import compute_alone
from tenora_kernels.compiled.draft_layer import DraftLayer

RETRY_S = 60.0
"""One that could not be had is not asked for again for so long."""

STAY_S = 5.0
"""Nobody's layer gives way to another's for so long after it was used: where more are in use than
there is room for, some propose, instead of all being loaded all the time."""

LOADING_MAX = 16
FAILED_MAX = 1024  # that are remembered

_log = logging.getLogger(__name__)


class _NoRoomError(Exception):
    """All that is kept is in use."""


@dataclass(frozen=True)
class _Kept:
    made: MadeLayer
    used_s: float


class DraftLayers:
    """By digest of their files; the least recently used leave first. `want` and `get` are the step
    thread's and wait for nothing; the others may be called from any."""

    def __init__(
        self,
        maker: DraftMaker,
        store: StoreTier,
        capacity_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._maker, self._store, self._clock = maker, store, clock
        self._capacity_bytes = capacity_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._users: dict[str, set[str]] = {}  # adapters of each that is kept or comes
        self._loading: set[str] = set()
        self._failed: OrderedDict[str, float] = OrderedDict()  # until when
        self._used_bytes = self._loads = self._failures = self._evictions = 0
        self._closed = False
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "tenora-draft-layers", initializer=compute_alone)

    def want(self, ref: AdapterRef) -> bool:
        """Whether the adapter's own layer is there. If not it is brought, unless it failed a while
        ago."""
        digest, now_s = ref.draft_layer, self._clock()
        if digest is None:
            return False
        with self._lock:
            kept = self._kept.get(digest)
            if kept is not None:
                self._users[digest].add(ref.digest)
                self._kept[digest] = replace(kept, used_s=now_s)
                self._kept.move_to_end(digest)
                return True
            if digest in self._loading:
                self._users.setdefault(digest, set()).add(ref.digest)
                return False
            is_full = len(self._loading) >= LOADING_MAX
            if is_full or self._closed or now_s < self._failed.get(digest, 0.0):
                return False
            self._failed.pop(digest, None)
            self._loading.add(digest)
            self._users[digest] = {ref.digest}
            self._thread.submit(self._load, digest)
        return False

    def get(self, digest: str) -> DraftLayer | None:
        """None: it is not there, or not any more."""
        with self._lock:
            kept = self._kept.get(digest)
        return None if kept is None else kept.made.layer

    def forget(self, adapter: str) -> None:
        """The adapter's layer is to go, unless it is another's too."""
        with self._lock:
            for digest in [each for each, users in self._users.items() if adapter in users]:
                self._users[digest].discard(adapter)
                if not self._users[digest]:
                    self._drop(digest)

    def fail(self, digest: str, error: Exception) -> None:
        """It is there, and of no use."""
        with self._lock:
            self._drop(digest)
        self._refuse(digest, error)

    def counters(self) -> dict[str, float]:
        """All but `draft_layer_bytes` only rise."""
        with self._lock:
            return {
                "draft_layer_bytes": self._used_bytes,
                "draft_layer_loads": self._loads,
                "draft_layer_failures": self._failures,
                "draft_layer_evictions": self._evictions,
            }

    def close(self) -> None:
        """A load under way is finished, others are dropped."""
        with self._lock:
            self._closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, digest: str) -> None:
        """On the thread of its own."""
        try:
            self._keep(digest, self._maker.make(digest, self._store.read_draft_layer(digest)))
        except _NoRoomError:
            self._put_off(digest)
        except Exception as error:  # whatever it is, it costs this adapter's drafts only
            self._refuse(digest, error)

    def _keep(self, digest: str, made: MadeLayer) -> None:
        if made.num_bytes > self._capacity_bytes:
            raise ValueError(
                f"it takes {made.num_bytes} bytes, and there are {self._capacity_bytes} for all "
                "(adapter_draft_memory)"
            )
        with self._lock:
            self._loading.discard(digest)
            if digest not in self._users:
                return  # its adapter was deleted meanwhile
            now_s = self._clock()
            while self._used_bytes + made.num_bytes > self._capacity_bytes:
                oldest = next(iter(self._kept))
                if now_s < self._kept[oldest].used_s + STAY_S:
                    raise _NoRoomError
                self._drop(oldest)
                self._evictions += 1
            self._kept[digest] = _Kept(made, now_s)
            self._used_bytes += made.num_bytes
            self._loads += 1

    def _drop(self, digest: str) -> None:
        self._users.pop(digest, None)
        kept = self._kept.pop(digest, None)
        if kept is not None:
            self._used_bytes -= kept.made.num_bytes

    def _put_off(self, digest: str) -> None:
        with self._lock:
            self._loading.discard(digest)
            self._users.pop(digest, None)
            self._failed[digest] = self._clock() + RETRY_S
            if len(self._failed) > FAILED_MAX:
                self._failed.popitem(last=False)

    def _refuse(self, digest: str, error: Exception) -> None:
        self._put_off(digest)
        with self._lock:
            self._failures += 1
        _log.warning("the draft layer %s proposes nothing: %s", digest, error)
