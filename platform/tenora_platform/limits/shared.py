"""The limits as all processes share them, in Redis: one script, one round trip a step. It knows
holds by what they reserve, nothing of requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from tenora_platform.auth import TenantContext
from tenora_platform.limits import scripts
from tenora_platform.limits.uses import LimitsNow, LimitUse, Refusal, ScopeUse, capped, scopes_of

_PER_SCOPE = 5  # numbers of a scope in an answer


@dataclass(frozen=True, slots=True)
class Want:
    """What a request asks for. `lease` "": nothing is held. `admitted`: the slot in which its
    request was counted before, None if it was not, or nobody knows."""

    requests: int = 0
    tokens: int = 0
    lease: str = ""
    sequences: int = 0
    admitted: int | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A Want that has been let through without Redis, when by this process' monotonic clock."""

    tenant: TenantContext
    want: Want
    at_s: float


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a hold. `tokens` None: it never ran. `ms_per_token`: of those it reserved."""

    tenant: TenantContext
    lease: str
    tokens: int | None
    ms_per_token: float | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    refusal: Refusal | None
    now: LimitsNow
    slot: int  # in which it was counted


class SharedLimits:
    """Every method raises RedisError when Redis does not answer, and may be called again then:
    what a lease id names is done once."""

    def __init__(self, redis: Redis, *, lease_ms: int, clock: str = scripts.SERVER_CLOCK) -> None:
        self._redis = redis
        self._lease_ms = lease_ms
        self._take = redis.register_script(scripts.take_script(clock))
        self._settle = redis.register_script(scripts.settle_script(clock))
        self._renew = redis.register_script(scripts.renew_script(clock))
        self._retake = redis.register_script(scripts.retake_script(clock))

    async def take(self, tenant: TenantContext, want: Want) -> Taken:
        """Reserve all of it, or nothing."""
        answer = await self._take(*self._taking(tenant, want))
        return _taken(tenant, answer)

    async def settle(self, settlement: Settlement) -> None:
        await self._settle(*_settling(settlement))

    async def write(self, operations: Sequence[Served | Settlement]) -> None:
        """What happened while Redis was away, in its order and one round trip."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for operation in operations:
                await self._add(pipe, operation)
            await pipe.execute()

    async def _add(self, pipe: Pipeline, operation: Served | Settlement) -> None:
        if isinstance(operation, Settlement):
            await self._settle(*_settling(operation), client=pipe)
            return
        age_ms = round((time.monotonic() - operation.at_s) * 1000)
        taking = self._taking(operation.tenant, operation.want, served=True, age_ms=age_ms)
        await self._take(*taking, client=pipe)

    async def renew(self, tenant: TenantContext, leases: Sequence[str]) -> list[str]:
        """Of this tenant and key; gives those that Redis does not know (any more)."""
        missing = await self._renew(_keys(tenant), [self._lease_ms, *leases])
        return [lease.decode() for lease in missing]

    async def retake(self, tenant: TenantContext, tokens: dict[str, int]) -> None:
        """Leases that run though Redis has forgotten them, with what they reserved."""
        pairs = [value for pair in tokens.items() for value in pair]
        await self._retake(_keys(tenant), [self._lease_ms, *pairs])

    async def probe(self) -> None:
        """Whether Redis can be written to, as every step needs it."""
        await self._redis.set("tenora:limits:probe", 1, px=1000)

    def _taking(
        self, tenant: TenantContext, want: Want, *, served: bool = False, age_ms: int = 0
    ) -> tuple[list[str], list[str | int]]:
        arguments: list[str | int] = [
            want.requests,
            want.tokens,
            want.lease,
            self._lease_ms,
            want.sequences,
            int(served),
            age_ms,
            -1 if want.admitted is None else want.admitted,
        ]
        for _, caps in capped(tenant):
            for limit in (caps.requests_per_min, caps.tokens_per_min, caps.parallel_requests):
                arguments.append(-1 if limit is None else limit)
        return _keys(tenant), arguments


def _settling(settlement: Settlement) -> tuple[list[str], list[str | int | float]]:
    tokens, pace = settlement.tokens, settlement.ms_per_token
    arguments: list[str | int | float] = [
        settlement.lease,
        -1 if tokens is None else tokens,
        -1 if pace is None else pace,
    ]
    return _keys(settlement.tenant), arguments


def _taken(tenant: TenantContext, answer: list[Any]) -> Taken:
    number, limit, retry_ms, slot, *uses = answer
    scopes = capped(tenant)
    shown = []
    for index, (_, caps) in enumerate(scopes):
        requests, requests_ms, tokens, tokens_ms, places = uses[_PER_SCOPE * index :][:_PER_SCOPE]
        shown.append(
            ScopeUse(
                requests=LimitUse(caps.requests_per_min, requests, requests_ms),
                tokens=LimitUse(caps.tokens_per_min, tokens, tokens_ms),
                parallel=places,
                parallel_max=caps.parallel_requests,
            )
        )
    refusal = None
    if number:
        owner, caps = scopes[number - 1]
        refusal = Refusal(owner, caps, limit.decode(), retry_ms)
    return Taken(refusal, LimitsNow(tuple(shown)), slot)


def _keys(tenant: TenantContext) -> list[str]:
    # The braces keep all keys of a tenant on one node of a Redis cluster.
    prefix = f"tenora:limits:{{{tenant.tenant_id}}}"
    keys = [f"{prefix}:holds", f"{prefix}:late", f"{prefix}:window", f"{prefix}:parallel"]
    for scope in scopes_of(tenant)[1:]:
        keys += [f"{prefix}:{scope.key_id}:window", f"{prefix}:{scope.key_id}:parallel"]
    return keys
