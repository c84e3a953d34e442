"""FairCache: a bounded cache of many tenants, of which none can push out what others keep within
their equal shares. It knows neither what it keeps nor what that costs."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tenora_engine.clocks import steady

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

SHARE_S = 3600.0
"""Seconds without use after which an entry counts for no share of its tenant's."""


@dataclass(slots=True)
class Kept(Generic[V]):
    """An entry. `tenant` is empty where nobody has asked for it yet."""

    value: V
    size: int
    tenant: str
    used_s: float


class FairCache(Generic[K, V]):
    """Entries whose sizes come to `capacity` at most, the least recently used first. What is put
    drives out the first of a tenant that holds more than an equal share with all who hold any, the
    new one's included; so one that cycles through many drives out its own. What nobody asked for,
    or not for SHARE_S, goes before. Not safe in threads."""

    def __init__(self, capacity: int, clock: Callable[[], float] = steady) -> None:
        self.capacity = capacity
        self.used = 0
        self._clock = clock
        self._entries: OrderedDict[K, Kept[V]] = OrderedDict()
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """The least recently used first."""
        return iter(self._entries)

    def look(self, key: K) -> Kept[V] | None:
        """The entry, not used by that."""
        return self._entries.get(key)

    def use(self, key: K) -> V | None:
        """Return the entry, which becomes the most recently used."""
        kept = self._entries.get(key)
        if kept is None:
            return None
        kept.used_s = self._clock()
        self._entries.move_to_end(key)
        return kept.value

    def own(self, key: K, tenant: str) -> None:
        """From now on it is this tenant's, if it is there."""
        kept = self._entries.get(key)
        if kept is not None and kept.tenant != tenant:
            self._hold(kept.tenant, -kept.size)
            self._hold(tenant, kept.size)
            kept.tenant = tenant

    def put(self, key: K, value: V, tenant: str, size: int = 1) -> list[K]:
        """Keep what fits the cache alone. Returns what had to go for it."""
        self.remove(key)
        gone: list[K] = []
        while self.used + size > self.capacity and (first := self.victim(tenant, size)) is not None:
            self.remove(first)
            gone.append(first)
        self._enter(key, Kept(value, size, tenant, self._clock()))
        return gone

    def put_first(self, key: K, value: V, size: int) -> None:
        """Keep one that nobody has asked for, for which there is room, as the least recently
        used."""
        self._enter(key, Kept(value, size, "", 0.0))
        self._entries.move_to_end(key, last=False)

    def remove(self, key: K) -> V | None:
        kept = self._entries.pop(key, None)
        if kept is None:
            return None
        self.used -= kept.size
        self._hold(kept.tenant, -kept.size)
        return kept.value

    def victim(self, tenant: str, size: int) -> K | None:
        """Choose the entry that goes next for one of a tenant. O(entries) at most."""
        share, now_s = self._share(tenant), self._clock()
        for key, kept in self._entries.items():
            held = self._held[kept.tenant] + (size if kept.tenant == tenant else 0)
            if not kept.tenant or held > share or now_s - kept.used_s >= SHARE_S:
                return key
        return next(iter(self._entries), None)

    def is_within_share(self, tenant: str, size: int) -> bool:
        """Whether an entry of a tenant would leave it no more than its share."""
        return self._held[tenant] + size <= self._share(tenant)

    def _share(self, tenant: str) -> float:
        """Return the equal share of each tenant, this one among them."""
        held = self._held
        count = len(held) - ("" in held) + (tenant != "" and tenant not in held)
        return self.capacity / max(count, 1)

    def _enter(self, key: K, kept: Kept[V]) -> None:
        self._entries[key] = kept
        self.used += kept.size
        self._hold(kept.tenant, kept.size)

    def _hold(self, tenant: str, size: int) -> None:
        self._held[tenant] += size
        if not self._held[tenant]:
            del self._held[tenant]
