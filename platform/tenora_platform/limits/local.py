"""Limits without Redis: what one process lets through by itself, a share of each limit, after what
it knew when Redis went. It knows nothing of Redis, nor for how long this may go on."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tenora_platform.auth import TenantContext
from tenora_platform.limits.scripts import SLOT_MS, SLOTS, WINDOW_MS
from tenora_platform.limits.shared import Want
from tenora_platform.limits.uses import (
    LimitName,
    LimitsNow,
    LimitUse,
    Refusal,
    Scope,
    ScopeUse,
    scopes_of,
)

KNOWN_MAX = 20_000
"""Tenants and keys of which the last use is remembered, the latest."""

Kind = Literal["requests", "tokens"]


class Running(Protocol):
    """A hold of this process that has not ended."""

    @property
    def tenant(self) -> TenantContext: ...

    @property
    def sequences(self) -> int: ...


@dataclass(slots=True)
class _Window:
    """What was let through in the last minute, by slots as in Redis, on this process' clock."""

    slots: dict[Kind, dict[int, int]] = field(
        default_factory=lambda: {"requests": {}, "tokens": {}}
    )

    def used(self, kind: Kind, now_ms: int) -> int:
        first = now_ms // SLOT_MS - SLOTS + 1
        counts = self.slots[kind]
        for slot in [slot for slot in counts if slot < first]:
            del counts[slot]
        return sum(counts.values())

    def add(self, kind: Kind, count: int, at_ms: int) -> None:
        slot, counts = at_ms // SLOT_MS, self.slots[kind]
        counts[slot] = max(0, counts.get(slot, 0) + count)

    def reset_ms(self, kind: Kind, now_ms: int) -> int:
        last = max((slot for slot, count in self.slots[kind].items() if count), default=None)
        return 0 if last is None else (last + SLOTS) * SLOT_MS - now_ms

    def until_free(self, kind: Kind, count: int, now_ms: int) -> int:
        for slot, each in sorted(self.slots[kind].items()):
            count -= each
            if count <= 0:
                return (slot + SLOTS) * SLOT_MS - now_ms
        return WINDOW_MS


@dataclass(frozen=True, slots=True)
class _Known:
    """What Redis said last of a tenant or a key."""

    at_ms: int
    requests: int
    tokens: int


class LocalLimits:
    """`processes` says how many share each limit now. A limit smaller than that is one for each."""

    def __init__(self, processes: Callable[[], int]) -> None:
        self._processes = processes
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._windows: dict[str, _Window] = {}

    def remember(self, tenant: TenantContext, now: LimitsNow) -> None:
        """What Redis has just said."""
        at_ms = _now_ms()
        for name, use in zip(_names(tenant), now.scopes, strict=True):
            self._known[name] = _Known(at_ms, use.requests.used, use.tokens.used)
            self._known.move_to_end(name)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """Redis counts again."""
        self._windows.clear()

    def take(
        self,
        tenant: TenantContext,
        want: Want,
        running: Iterable[Running],
        *,
        at_s: float | None = None,
    ) -> tuple[Refusal | None, LimitsNow]:
        """Reserve all of it, or nothing; `running` are the holds of this process. It counts in the
        slot of `at_s` (monotonic; now if None): name the same time to `give_back`, for another
        slot has nothing of it to give."""
        now_ms = _now_ms()
        counted_ms = now_ms if at_s is None else int(at_s * 1000)
        running = list(running)
        windows = [self._window(name, now_ms) for name in _names(tenant)]
        refusals = []
        for scope, window in zip(scopes_of(tenant), windows, strict=True):
            places = _places(tenant, scope, running)
            refusals += self._refusals(scope, window, want, places, now_ms)
        if not refusals:
            for window in windows:
                window.add("requests", want.requests, counted_ms)
                window.add("tokens", want.tokens, counted_ms)
        return max(refusals, key=lambda each: each.retry_ms, default=None), self.now(
            tenant, running, more=0 if refusals else want.sequences
        )

    def give_back(self, tenant: TenantContext, *, requests: int, tokens: int, at_s: float) -> None:
        """What was reserved at that time (of the monotonic clock) and not used."""
        for name in _names(tenant):
            if name in self._windows:
                self._windows[name].add("requests", -requests, int(at_s * 1000))
                self._windows[name].add("tokens", -tokens, int(at_s * 1000))

    def now(self, tenant: TenantContext, running: Iterable[Running], *, more: int = 0) -> LimitsNow:
        """Limits and use; of each limit only this process' share is left."""
        now_ms = _now_ms()
        uses = []
        for scope, name in zip(scopes_of(tenant), _names(tenant), strict=True):
            caps, window = scope.caps, self._window(name, now_ms)
            places = _places(tenant, scope, running) + more
            uses.append(
                ScopeUse(
                    requests=self._use("requests", caps.requests_per_min, window, now_ms),
                    tokens=self._use("tokens", caps.tokens_per_min, window, now_ms),
                    parallel=places,
                    parallel_max=caps.parallel_requests,
                )
            )
        return LimitsNow(tuple(uses), local=True)

    def _use(self, kind: Kind, limit: int | None, window: _Window, now_ms: int) -> LimitUse:
        used = window.used(kind, now_ms)
        if limit is not None:  # what is not this process' share counts as used
            used += limit - self._share(limit)
        return LimitUse(limit, used, window.reset_ms(kind, now_ms))

    def _share(self, limit: int) -> int:
        return max(min(limit, 1), limit // max(1, self._processes()))

    def _window(self, name: str, now_ms: int) -> _Window:
        """Its window; a new one begins with this process' part of what Redis last said."""
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = _Window()
            known = self._known.get(name)
            if known is not None:
                window.add("requests", self._part(known.requests), known.at_ms)
                window.add("tokens", self._part(known.tokens), known.at_ms)
        return window

    def _part(self, used: int) -> int:
        return -(-used // max(1, self._processes()))

    def _refusals(
        self, scope: Scope, window: _Window, want: Want, places: int, now_ms: int
    ) -> list[Refusal]:
        owner, caps, _ = scope
        refusals = []
        limits: tuple[tuple[Kind, int | None, int], ...] = (
            ("requests", caps.requests_per_min, want.requests),
            ("tokens", caps.tokens_per_min, want.tokens),
        )
        for kind, limit, wanted in limits:
            is_asked = wanted > 0 or (kind == "tokens" and bool(want.lease))
            if limit is None or not is_asked:
                continue
            over = window.used(kind, now_ms) + wanted - self._share(limit)
            if over > 0 or limit == 0:
                wait_ms = window.until_free(kind, over, now_ms)
                refusals.append(Refusal(owner, caps, kind, wait_ms))
        most = caps.parallel_requests
        name: LimitName = "parallel_requests"
        if want.sequences and most is not None and places + want.sequences > self._share(most):
            refusals.append(Refusal(owner, caps, name, 500))
        return refusals


def _places(tenant: TenantContext, scope: Scope, running: Iterable[Running]) -> int:
    return sum(
        hold.sequences
        for hold in running
        if hold.tenant.tenant_id == tenant.tenant_id
        and (scope.key_id is None or scope.key_id in hold.tenant.lineage)
    )


def _names(tenant: TenantContext) -> list[str]:
    keys = [f"{tenant.tenant_id}:{scope.key_id}" for scope in scopes_of(tenant)[1:]]
    return [tenant.tenant_id, *keys]


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
