"""DraftLayers: the draft layers that adapters bring, fetched from the object store beside the steps
and kept in a bounded part of memory. Nobody waits for one: until it is there, and where it cannot
be had, its adapter's sequences do without. Knows no sequences."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from tenora_engine.adapters.tiers import StoreTier
from tenora_engine.adapters.turns import Cores, FairThreads, Rooms, SharedWork
from tenora_engine.fair_cache import FairCache
from tenora_engine.model.draft_layer import DraftMaker, MadeLayer
from tenora_engine.pace import Pace
from tenora_engine.request import AdapterRef
from tenora_engine.threads import compute_alone
from tenora_kernels.compiled.draft_layer import DraftLayer

RETRY_S = 60.0
"""One that could not be had is not asked for again for so long."""

STAY_S = 5.0
"""Nobody's layer gives way for so long after it was used, but to one within its tenant's share:
where more are in use than there is room for, some propose, instead of all being loaded all the
time."""

LOADING_MAX = 16
"""Layers of one tenant that are loading or wait to be."""

FAILED_MAX = 1024  # that are remembered
_READ_BYTES = 512 * 1024**2  # of layers while they are made

_log = logging.getLogger(__name__)


class _NoRoomError(Exception):
    """All that is kept is in use."""


class DraftLayers:
    """By digest of their files, in equal shares of the tenants that use them (see `FairCache`).
    They are loaded by the tenants' turns, one of a tenant at a time, and one core works on them.
    `want` and `get` are the step thread's and wait for nothing; the others may be called from
    any."""

    def __init__(
        self,
        maker: DraftMaker,
        store: StoreTier,
        capacity_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
    ) -> None:
        self._maker, self._store, self._clock = maker, store, clock
        self._pace = pace or Pace()
        self._kept: FairCache[str, MadeLayer] = FairCache(capacity_bytes, clock)
        self._users: dict[str, set[str]] = {}  # adapters of each that is kept or comes
        self._loading: dict[str, str] = {}  # whose it is, by digest
        self._num_loading: Counter[str] = Counter()  # by tenant
        self._failed: OrderedDict[str, float] = OrderedDict()  # until when
        self._loads = self._failures = self._evictions = 0
        self._closed = False
        self._lock = threading.Lock()
        self._threads = FairThreads(1, "tenora-draft-layers", compute_alone)
        self._cores, self._rooms = Cores(1), Rooms(_READ_BYTES)

    def want(self, ref: AdapterRef, tenant_key: str) -> bool:
        """Whether the adapter's own layer is there. If not it is brought in the tenant's turn,
        unless it failed a while ago."""
        digest, now_s = ref.draft_layer, self._clock()
        if digest is None:
            return False
        with self._lock:
            if self._kept.use(digest) is not None:
                self._kept.own(digest, tenant_key)
                self._users[digest].add(ref.digest)
                return True
            if digest in self._loading:
                self._users.setdefault(digest, set()).add(ref.digest)
                return False
            is_full = self._num_loading[tenant_key] >= LOADING_MAX
            if is_full or self._closed or now_s < self._failed.get(digest, 0.0):
                return False
            self._failed.pop(digest, None)
            self._loading[digest] = tenant_key
            self._num_loading[tenant_key] += 1
            self._users[digest] = {ref.digest}
            self._threads.submit(tenant_key, lambda: self._load(digest, tenant_key))
        return False

    def get(self, digest: str) -> DraftLayer | None:
        """None: it is not there, or not any more."""
        with self._lock:
            kept = self._kept.look(digest)
        return None if kept is None else kept.value.layer

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
                "draft_layer_bytes": self._kept.used,
                "draft_layer_loads": self._loads,
                "draft_layer_failures": self._failures,
                "draft_layer_evictions": self._evictions,
            }

    def close(self) -> None:
        """A load under way is finished, but for one that hangs; others are dropped."""
        with self._lock:
            self._closed = True
        self._threads.close()

    def _load(self, digest: str, tenant_key: str) -> None:
        """On a thread, in the tenant's turn."""
        work = SharedWork(tenant_key, self._cores, self._rooms, self._pace)
        try:
            with work:
                made = self._maker.make(digest, self._store.read_draft_layer(digest, work))
            self._keep(digest, tenant_key, made)
        except _NoRoomError:
            self._put_off(digest)
        except Exception as error:  # whatever it is, it costs this adapter's drafts only
            self._refuse(digest, error)
        finally:
            work.end()

    def _keep(self, digest: str, tenant_key: str, made: MadeLayer) -> None:
        kept, size = self._kept, made.num_bytes
        if size > kept.capacity:
            raise ValueError(
                f"it needs {size} bytes, but all draft layers together have {kept.capacity} "
                "(adapter_draft_memory)"
            )
        with self._lock:
            self._end_loading(digest)
            if digest not in self._users:
                return  # its adapter was deleted meanwhile
            while kept.used + size > kept.capacity:
                self._make_room(tenant_key, size)
            kept.put(digest, made, tenant_key, size)
            self._loads += 1

    def _make_room(self, tenant_key: str, num_bytes: int) -> None:
        """Evict what goes next for so much of a tenant's. Raises _NoRoomError where that is in
        use, and not beyond its own tenant's share for the sake of one within its own."""
        digest = self._kept.victim(tenant_key, num_bytes)
        kept = None if digest is None else self._kept.look(digest)
        assert digest is not None
        assert kept is not None
        in_use = self._clock() < kept.used_s + STAY_S
        if in_use and not self._kept.is_within_share(tenant_key, num_bytes):
            raise _NoRoomError
        self._drop(digest)
        self._evictions += 1

    def _drop(self, digest: str) -> None:
        self._users.pop(digest, None)
        self._kept.remove(digest)

    def _end_loading(self, digest: str) -> None:
        tenant_key = self._loading.pop(digest, None)
        if tenant_key is not None:
            self._num_loading[tenant_key] -= 1
            if not self._num_loading[tenant_key]:
                del self._num_loading[tenant_key]

    def _put_off(self, digest: str) -> None:
        with self._lock:
            self._end_loading(digest)
            self._users.pop(digest, None)
            self._failed[digest] = self._clock() + RETRY_S
            if len(self._failed) > FAILED_MAX:
                self._failed.popitem(last=False)

    def _refuse(self, digest: str, error: Exception) -> None:
        self._put_off(digest)
        with self._lock:
            self._failures += 1
        _log.warning("the draft layer %s is not used: %s", digest, error)
