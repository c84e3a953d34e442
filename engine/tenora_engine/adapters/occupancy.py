"""Occupancy: how many bytes of one tier adapters took for how long, by the tenant that used each of
them last. Exact, whatever comes in between; it knows neither what is evicted nor what it costs."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_KB_S = 1000 * 10**9  # byte-nanoseconds in a kilobyte-second
_USERS_MAX = 4096
_LEFT_MAX = 100_000

Occupied = dict[tuple[str, str], int]
"""Kilobyte-seconds by (tenant, digest)."""


@dataclass(slots=True)
class _Held:
    digest: str
    size_bytes: int
    tenant: str | None  # None: nobody has used it yet, and nobody is metered for it
    since_ns: int
    exempt: bool = False  # at the operator's expense, whoever uses it


class TierOccupancy:
    """Of one tier. Safe in threads: a tier's own events, its uses and `take` may come from three.

    `use` may come before `hold`: who asks for what is still to come, or was here before, has used
    it last when it comes.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._held: dict[Hashable, _Held] = {}
        self._users: OrderedDict[Hashable, str] = OrderedDict()
        self._left: dict[tuple[str, str], int] = {}  # byte-nanoseconds not taken yet
        self._lock = threading.Lock()

    def hold(self, key: Hashable, digest: str, size_bytes: int) -> None:
        """An adapter is there from now on; one that was is so no more."""
        with self._lock:
            before = self._held.get(key)
            if before is not None:
                self._settle(before)
            tenant = self._users.pop(key, None if before is None else before.tenant)
            self._held[key] = _Held(digest, size_bytes, tenant, self._clock_ns())

    def use(self, key: Hashable, tenant: str) -> None:
        """From now on it is this tenant's."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                self._remember(key, tenant)
            elif held.tenant != tenant:
                self._settle(held)
                held.tenant = tenant

    def exempt(self, key: Hashable, is_exempt: bool) -> None:
        """From now on nobody is metered for it, or again who used it last. Until it is dropped."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._settle(held)
                held.exempt = is_exempt

    def drop(self, key: Hashable) -> None:
        """It is not there any more, if it was."""
        with self._lock:
            held = self._held.pop(key, None)
            if held is not None:
                self._settle(held)
                if held.tenant is not None:
                    self._remember(key, held.tenant)

    def take(self) -> Occupied:
        """What has come together since the last time, in whole kilobyte-seconds; the rest of each
        is carried on."""
        with self._lock:
            for held in self._held.values():
                self._settle(held)
            taken: Occupied = {}
            for key, left in self._left.items():
                whole, rest = divmod(left, _KB_S)
                if whole:
                    taken[key] = whole
                    self._left[key] = rest
            self._forget_unused()
            return taken

    def _remember(self, key: Hashable, tenant: str) -> None:
        """For when it comes (again); of those used last."""
        self._users[key] = tenant
        self._users.move_to_end(key)
        if len(self._users) > _USERS_MAX:
            self._users.popitem(last=False)

    def _settle(self, held: _Held) -> None:
        now_ns = self._clock_ns()
        if held.tenant is not None and not held.exempt:
            key = held.tenant, held.digest
            spent = held.size_bytes * (now_ns - held.since_ns)
            self._left[key] = self._left.get(key, 0) + spent
        held.since_ns = now_ns

    def _forget_unused(self) -> None:
        """Fractions of a kilobyte-second, of more adapters than have ever been here at one time."""
        if len(self._left) > _LEFT_MAX:
            here = {(held.tenant, held.digest) for held in self._held.values()}
            self._left = {key: left for key, left in self._left.items() if key in here}
