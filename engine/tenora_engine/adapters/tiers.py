"""The places below the device that hold adapters: host memory and Redis (packed), the object store
(as uploaded). Each knows digests only; none knows requests, slots or the other tiers."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from tenora_engine.adapters.hotness import Hotness
from tenora_engine.adapters.identity import adapter_digest, config_key, draft_key, weights_key
from tenora_engine.adapters.occupancy import TierOccupancy
from tenora_engine.adapters.pack import Check, CorruptEntryError, deserialise, serialise
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.peft_format import LoraConfig, parse_adapter_config
from tenora_engine.adapters.weights_file import read_object, tensors_of
from tenora_engine.clocks import steady, unix_offset
from tenora_engine.errors import AdapterDamagedError, AdapterLoadError, AdapterStoreError
from tenora_engine.events import AdapterResidency
from tenora_engine.fair_cache import FairCache
from tenora_engine.pace import Pace, Work
from tenora_engine.remote_store import open_remote
from tenora_engine.sealing import Seal, is_damage

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from redis import Redis

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 0.5
_REPLY_TIMEOUT_S = 2.0
_AWAY_S = 5.0  # Redis is left alone this long after it failed
_STORE_TIMEOUT_S = 30
_AROUND_BYTES = 2**20  # of an entry in Redis, beside what counts by `packed_bytes`

_ALONE = Pace()  # of whoever needs no other's leave to work


def packed_bytes(packed: PackedAdapter) -> int:
    """Memory a packed adapter takes, tables included."""
    values = (getattr(packed, field.name) for field in fields(packed))
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


class HostTier:
    """Packed adapters in host memory, by equal shares of the tenants that used them last (see
    `FairCache`); what counts is the memory that they really take. Safe in threads."""

    def __init__(self, capacity_bytes: int) -> None:
        self._entries: FairCache[str, PackedAdapter] = FairCache(capacity_bytes)
        self._moved: set[str] = set()
        self.occupancy = TierOccupancy()
        self.evictions = 0  # for want of room
        self._unix_offset = unix_offset(steady)
        self._lock = threading.Lock()

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return digest in self._entries

    @property
    def capacity_bytes(self) -> int:
        return self._entries.capacity

    @property
    def used_bytes(self) -> int:
        return self._entries.used

    def get(self, digest: str) -> PackedAdapter | None:
        """The adapter, which thereby becomes the most recently used."""
        with self._lock:
            return self._entries.use(digest)

    def use(self, digest: str, tenant_key: str) -> None:
        """The tenant's request asks for the adapter, wherever it is."""
        self.occupancy.use(digest, tenant_key)
        with self._lock:
            self._entries.own(digest, tenant_key)

    def put(self, packed: PackedAdapter, tenant_key: str = "") -> bool:
        """Keep it for a tenant, dropping others as needed. False when it alone is larger than the
        tier."""
        digest, size = packed.digest, packed_bytes(packed)
        with self._lock:
            self._remove(digest)
            if size > self._entries.capacity:
                return False
            for gone in self._entries.put(digest, packed, tenant_key, size):
                self._dropped(gone)
                self.evictions += 1
            self._entered(digest, size)
            return True

    def evict_for(self, tenant_key: str, num_bytes: int) -> bool:
        """Drop what goes next for so much of a tenant's; whether there was any."""
        with self._lock:
            digest = self._entries.victim(tenant_key, num_bytes)
            if digest is None:
                return False
            self._remove(digest)
            self.evictions += 1
            return True

    def put_below(self, packed: PackedAdapter, limit_bytes: int) -> bool:
        """Keep one that nobody has asked for, as the least recently used, if all is no more than
        `limit_bytes` then and it is not there. Whether it now is."""
        digest, size = packed.digest, packed_bytes(packed)
        with self._lock:
            if digest in self._entries or self._entries.used + size > limit_bytes:
                return False
            self._entries.put_first(digest, packed, size)
            self._entered(digest, size)
            return True

    def residencies(self) -> list[AdapterResidency]:
        """What it holds, the least recently used first."""
        to_unix_s = self._unix_offset()
        with self._lock:
            kept = [(digest, self._entries.look(digest)) for digest in self._entries]
        return [
            AdapterResidency(
                digest,
                "host",
                entry.value.max_rank,
                entry.value.num_pages,
                0,
                entry.used_s and entry.used_s + to_unix_s,
            )
            for digest, entry in kept
            if entry is not None
        ]

    def remove(self, digest: str) -> None:
        with self._lock:
            self._remove(digest)

    def take_moved(self) -> set[str]:
        """Digests of what has come or gone since the last call."""
        with self._lock:
            moved, self._moved = self._moved, set()
            return moved

    def _entered(self, digest: str, size: int) -> None:
        self._moved.add(digest)
        self.occupancy.hold(digest, digest, size)

    def _remove(self, digest: str) -> None:
        self._entries.remove(digest)
        self._dropped(digest)

    def _dropped(self, digest: str) -> None:
        self._moved.add(digest)
        self.occupancy.drop(digest)


class SharedTier:
    """Packed adapters in Redis, shared by all engines of one layout and one `seal`. Redis is a
    cache here: when it is away, slow or holds what is not ours, that is a miss and a count, never a
    failure. `check` raises CorruptEntryError for tables that must not reach an arena. Safe in
    threads."""

    def __init__(
        self,
        redis_url: str,
        layout_key: str,
        max_bytes: int,
        ttl_s: int,
        *,
        seal: Seal,
        check: Callable[[PackedAdapter], None],
    ) -> None:
        self._layout_key = layout_key
        # Entries of versions that did not seal them have other names: neither removes the other's.
        self._layout = hashlib.sha256(f"sealed/{layout_key}".encode()).hexdigest()[:16]
        self._seal = seal
        self._check = check
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._redis = _connect(redis_url)
        self._hotness = Hotness(self._redis, self._layout, ttl_s, max_bytes)
        self._away_until = 0.0
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()

    def key(self, digest: str) -> str:
        """The Redis key of one packed adapter."""
        return f"tenora:adapter:{self._layout}:{digest}"

    def counters(self) -> dict[str, float]:
        """shared_hits, shared_misses, shared_errors (Redis away), shared_corrupt, shared_stores,
        shared_too_large."""
        with self._lock:
            return dict(self._counters)

    def get(self, digest: str, work: Work = _ALONE) -> PackedAdapter | None:
        """The adapter; None on any kind of miss."""
        key, longest = self.key(digest), self._max_bytes + _AROUND_BYTES
        with work.waiting():
            # No more than `put` has ever written, whatever lies there.
            data = self._ask(lambda redis: redis.getrange(key, 0, longest), None, key)
        if not isinstance(data, bytes) or not data:
            self._count("shared_misses")
            return None
        try:
            packed = deserialise(data, self._layout_key, digest, self._tag(key))
            self._check(packed)
        except CorruptEntryError:
            self._count("shared_corrupt")
            self.remove(digest)
            return None
        self._count("shared_hits")
        return packed

    def put(self, packed: PackedAdapter, work: Work = _ALONE) -> bool:
        """Whether Redis now holds it; it does not if it is larger than the tier allows."""
        if packed_bytes(packed) > self._max_bytes:
            self._count("shared_too_large")
            return False
        key = self.key(packed.digest)
        data = serialise(packed, self._tag(key))
        with work.waiting():
            stored = self._ask(lambda redis: bool(redis.set(key, data, ex=self._ttl_s)), False)
        if stored:
            self._count("shared_stores")
        return stored

    def contains(self, digest: str) -> bool | None:
        """None when Redis could not be asked."""
        return self._ask(lambda redis: bool(redis.exists(self.key(digest))), None)

    def which(self, digests: Sequence[str]) -> set[str]:
        """Those that it holds, in one round trip; none when Redis could not be asked."""

        def exist(redis: Redis) -> set[str]:
            with redis.pipeline(transaction=False) as pipe:
                for digest in digests:
                    pipe.exists(self.key(digest))
                return {d for d, held in zip(digests, pipe.execute(), strict=True) if held}

        return self._ask(exist, set())

    def remove(self, digest: str) -> None:
        def delete(redis: Redis) -> None:
            redis.delete(self.key(digest))
            self._hotness.forget(redis, digest)

        self._ask(delete, None)

    def hottest(self, count: int) -> list[str]:
        """Digests of those that all engines together use most, whether or not Redis has them."""
        ask = self._hotness.hottest
        return self._ask(lambda redis: ask(redis, count), [], self._hotness.key)

    def use(self, uses: Mapping[str, int]) -> None:
        """Adapters were used so many times by digest, from whichever tier: they are the hotter, and
        what Redis has of them lives the longer."""
        counts = {digest: (self.key(digest), count) for digest, count in uses.items()}
        self._ask(lambda redis: self._hotness.use(redis, counts), None, self._hotness.key)

    def stored_bytes(self, digest: str) -> int:
        """What its entry takes; 0 if there is none."""
        key = self.key(digest)
        return self._ask(lambda redis: int(redis.strlen(key)), 0, key)

    def close(self) -> None:
        self._redis.close()

    def _tag(self, key: str) -> Check:
        return partial(self._seal.tag, "adapter", key)

    def _ask(self, command: Callable[[Redis], T], otherwise: T, key: str | None = None) -> T:
        """Run one command; `otherwise` when Redis is, or was a moment ago, not to be reached. Where
        `key` holds what is not ours, it goes."""
        from redis import RedisError

        if time.monotonic() < self._away_until:
            self._count("shared_errors")
            return otherwise
        try:
            try:
                return command(self._redis)
            except RedisError as error:
                if key is None or not is_damage(error):
                    raise
                self._count("shared_corrupt")
                self._redis.delete(key)
                return otherwise
        except (RedisError, OSError):
            self._away_until = time.monotonic() + _AWAY_S
            self._count("shared_errors")
            return otherwise

    def _count(self, name: str) -> None:
        with self._lock:
            self._counters[name] += 1


def _connect(url: str) -> Redis:
    """A client that gives up quickly: a slow cache is worse than none. Connects on first use."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis.from_url(
        url,
        socket_connect_timeout=_CONNECT_TIMEOUT_S,
        socket_timeout=_REPLY_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def open_store(url: str) -> ObjectStore:
    """The object store at a path or URL (`s3://`, `gs://`, `az://`, `file://`, `memory://`).

    A `memory://` store is a new, empty one each time. Raises AdapterLoadError when the URL is not
    understood."""
    from obstore.store import LocalStore, from_url

    if "://" not in url:
        return LocalStore(Path(url).resolve())
    if url.startswith(("file://", "memory://")):
        return from_url(url)
    return open_remote(url, timeout_s=_STORE_TIMEOUT_S)


class StoreTier:
    """Adapters as they were uploaded, by digest, in the object store. What is read is checked
    against the digest, so a damaged or exchanged object is found. Safe in threads."""

    def __init__(
        self,
        url: str | None,
        store: ObjectStore | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._url = url
        self._store = store
        self._pace = pace or Pace()

    def read(self, digest: str, work: Work | None = None) -> tuple[LoraConfig, dict[str, Tensor]]:
        """The config and the tensors by PEFT's names. Raises AdapterLoadError when the store cannot
        be reached, holds no such adapter, or holds something else under its name."""
        work = work or self._pace
        config = bytes(self._get(config_key(digest), work)[0].numpy())
        weights, weights_sha256 = self._get(weights_key(digest), work)
        if adapter_digest(config, weights_sha256) != digest:
            raise AdapterDamagedError(
                f"the object store's copy of {digest} does not match its digest; upload it again"
            )
        try:
            fields = json.loads(config)
            tensors = tensors_of(weights)
        except ValueError as error:
            raise AdapterLoadError(f"adapter {digest} cannot be read: {error}") from error
        if not isinstance(fields, Mapping):
            raise AdapterLoadError(f"adapter {digest}: its config is not a JSON object")
        return parse_adapter_config(fields), tensors

    def read_draft_layer(self, digest: str, work: Work | None = None) -> dict[str, Tensor]:
        """The tensors of an adapter's draft layer. Raises AdapterLoadError, as `read`."""
        file, sha256 = self._get(draft_key(digest), work or self._pace)
        if f"sha256:{sha256}" != digest:
            raise AdapterDamagedError(
                f"the object store's copy of {digest} does not match its digest"
            )
        try:
            return tensors_of(file)
        except ValueError as error:
            raise AdapterLoadError(f"the draft layer {digest} cannot be read: {error}") from error

    def _get(self, key: str, work: Work) -> tuple[Tensor, str]:
        from obstore.exceptions import BaseError

        if self._store is None:
            if self._url is None:
                raise AdapterLoadError("no object store is set (object_store), so no adapters")
            try:
                self._store = open_store(self._url)
            except (BaseError, ValueError, OSError) as error:
                raise AdapterStoreError(f"the object store {self._url}: {error}") from error
        try:
            return read_object(self._store, key, work)
        except FileNotFoundError as error:
            raise AdapterDamagedError(f"the object store has no {key}; upload it again") from error
        except (BaseError, OSError) as error:
            raise AdapterStoreError(f"the object store did not give {key}: {error}") from error
