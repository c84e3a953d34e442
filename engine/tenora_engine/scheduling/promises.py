"""Promises: which times to first token were promised lately, and to whom. It plans no step."""

from __future__ import annotations

import math

from tenora_engine.request import Tenant

PROMISE_MEMORY_S = 60.0
"""How long a promise, and a tenant, counts after the last request."""


class Promises:
    """As of the requests of the last PROMISE_MEMORY_S. There are as many promises as plans."""

    def __init__(self) -> None:
        self._asked_s: dict[float, float] = {}  # by seconds to the first token: when last promised
        self._tenants: dict[str, float] = {}  # by key, who asked longest ago first

    def observe(self, tenant: Tenant, now_s: float) -> None:
        """A request of the tenant has come."""
        if tenant.ttft_ms is not None:
            self._asked_s[tenant.ttft_ms / 1000] = now_s
        self._tenants.pop(tenant.key, None)
        self._tenants[tenant.key] = now_s

    def least_s(self, now_s: float) -> float:
        """The shortest time to first token; infinite without any."""
        old_s = now_s - PROMISE_MEMORY_S
        self._asked_s = {ttft_s: at_s for ttft_s, at_s in self._asked_s.items() if at_s > old_s}
        return min(self._asked_s, default=math.inf)

    def num_tenants(self, now_s: float) -> int:
        """How many have asked for anything. O(those forgotten)."""
        old_s = now_s - PROMISE_MEMORY_S
        while self._tenants and self._tenants[key := next(iter(self._tenants))] <= old_s:
            del self._tenants[key]
        return len(self._tenants)
