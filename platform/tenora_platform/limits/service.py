"""Requests and tokens a minute and parallel sequences, per tenant and per key, over all processes:
reserved before the work, settled to what it took, freed by a lease if the process dies. While Redis
is away this process goes on by itself for a while, and tells Redis afterwards. Budgets of money are
not its own."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError, RateLimitedError, UnavailableError
from tenora_platform.ids import new_id
from tenora_platform.limits.backlog import Backlog
from tenora_platform.limits.local import LocalLimits
from tenora_platform.limits.scripts import SERVER_CLOCK
from tenora_platform.limits.shared import Served, Settlement, SharedLimits, Want
from tenora_platform.limits.uses import LimitName, LimitsNow, Owner, Refusal, capped
from tenora_platform.operations.metrics import Metrics

_NO_RETRY = {"x-should-retry": "false"}
_AGAIN_S = 0.25
"""So often Redis is tried while it is away."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that has been counted. `acquire` takes it so that it can be given back."""

    slot: int | None  # of Redis' clock; None: counted in this process


class Hold:
    """What one request has reserved. `settle` when its tokens are known, `release` if nothing was
    used; the first of them counts, later ones do nothing. As a context manager it releases what was
    not settled."""

    def __init__(
        self, limits: Limits, tenant: TenantContext, requests: int, tokens: int, sequences: int
    ) -> None:
        self.id = f"{new_id('hold')}:{sequences}"  # as the scripts read it
        self.sequences = sequences
        self.tenant = tenant
        self.reserved_requests = requests
        self.reserved_tokens = tokens
        self.now: LimitsNow | None = None  # as it was taken
        self.began_s = time.monotonic()
        self._limits = limits
        self._ended = False

    @property
    def headers(self) -> dict[str, str]:
        """The `x-ratelimit-*` headers of the answer."""
        assert self.now is not None
        return self.now.headers()

    async def settle(self, actual_tokens: int) -> None:
        """Replace the estimate by the tokens really used and free the parallel places. Completes
        even if the caller is cancelled meanwhile."""
        await self._end(actual_tokens)

    async def release(self) -> None:
        """Give everything back: the request was refused further on, nothing was used."""
        await self._end(None)

    async def _end(self, tokens: int | None) -> None:
        if self._ended:
            return
        self._ended = True
        await self._limits.end(self, tokens)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release()


class Limits:
    """The limits of every tenant, as this process sees them. `keep_leases` must run beside it.
    Without Redis it goes on alone for `fallback_s` seconds (0: not at all), with its share of each
    limit; `processes` says how many there are."""

    def __init__(
        self,
        redis: Redis,
        *,
        lease_s: float,
        metrics: Metrics,
        fallback_s: float = 0,
        processes: Callable[[], int] = lambda: 1,
        clock: str = SERVER_CLOCK,
    ) -> None:
        self._shared = SharedLimits(redis, lease_ms=int(lease_s * 1000), clock=clock)
        self._local = LocalLimits(processes)
        self._backlog = Backlog(fallback_s, metrics)
        self._renew_every_s = lease_s / 3
        self._metrics = metrics
        self._live: dict[str, Hold] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def admit(self, tenant: TenantContext) -> Admission:
        """Count one request before anything is done for it, so that what is refused later counts
        too; `acquire(..., requests=0)` then holds the rest. Raises as `acquire` does."""
        refusal, now, slot = await self._take(tenant, Want(requests=1))
        self._refuse(tenant, refusal, now)
        return Admission(slot)

    async def acquire(
        self,
        tenant: TenantContext,
        estimated_tokens: int,
        sequences: int = 1,
        *,
        requests: int = 1,
        admission: Admission | None = None,
    ) -> Hold:
        """Reserve a request (`requests` 0: `admit` has counted it, and has it back from a refusal
        or a release that knows its `admission`), its tokens (prompts and the most it may generate)
        and a parallel place for each of its sequences. Raises BadRequestError for more than plan or
        key ever allow at once, RateLimitedError with an honest retry_after_ms, UnavailableError
        when Redis has been away for too long."""
        self._refuse_too_large(tenant, estimated_tokens, sequences)
        hold = Hold(self, tenant, requests, estimated_tokens, sequences)
        admitted = None if admission is None else admission.slot
        want = Want(requests, estimated_tokens, hold.id, sequences, admitted)
        refusal, hold.now, _ = await self._take(tenant, want, at_s=hold.began_s)
        self._refuse(tenant, refusal, hold.now)
        self._live[hold.id] = hold
        return hold

    async def now(self, tenant: TenantContext) -> LimitsNow:
        """Limits and use, changing nothing."""
        _, now, _ = await self._take(tenant, Want())
        return now

    async def probe(self) -> None:
        """Raises RedisError where Redis does not take what every request writes."""
        await self._shared.probe()

    def away(self) -> float | None:
        """Redis cannot be used: for how many seconds this process still goes on without it; None
        if it does not."""
        self._backlog.redis_went()
        return self._backlog.left_s()

    async def end(self, hold: Hold, tokens: int | None) -> None:
        """Called by the hold. A task of its own: a client that goes away cancels its request, and
        what it held must be freed all the same."""
        self._live.pop(hold.id, None)
        if hold.now is not None and hold.now.local:
            self._local.give_back(
                hold.tenant,
                requests=hold.reserved_requests if tokens is None else 0,
                tokens=hold.reserved_tokens - (tokens or 0),
                at_s=hold.began_s,
            )
        took_ms = (time.monotonic() - hold.began_s) * 1000
        says = hold.reserved_tokens > 0 and tokens is not None
        pace = took_ms / hold.reserved_tokens if says else None
        task = asyncio.create_task(self._settle(Settlement(hold.tenant, hold.id, tokens, pace)))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.shield(task)

    async def keep_leases(self) -> None:
        """Renew the leases of this process' requests, for ever; a process that dies stops, and its
        places are free one lease later. While Redis is away, wait for it and tell it what
        happened."""
        while True:
            redis_went = await self._backlog.wait(self._renew_every_s)
            try:
                if redis_went:
                    await asyncio.sleep(_AGAIN_S)
                    await self._shared.probe()
                    await self._backlog.write_to(self._shared)
                await self._renew_all()
            except RedisError as error:
                self._backlog.redis_went(error)
            else:
                if redis_went and self._backlog.redis_is_back():
                    self._local.forget()

    async def _renew_all(self) -> None:
        holds: dict[tuple[str, str], list[Hold]] = defaultdict(list)
        for hold in list(self._live.values()):
            holds[hold.tenant.tenant_id, hold.tenant.key_id].append(hold)
        for each in holds.values():
            await self._renew(each)

    async def _renew(self, holds: list[Hold]) -> None:
        """Holds of one key. What was settled while this was under way stays settled; what Redis has
        forgotten is taken again, and ended if it was settled meanwhile after all."""
        tenant, reserved = holds[0].tenant, {hold.id: hold.reserved_tokens for hold in holds}
        missing = await self._shared.renew(tenant, list(reserved))
        running = [lease for lease in missing if lease in self._live]
        if running:
            await self._shared.retake(tenant, {lease: reserved[lease] for lease in running})
            for lease in running:
                if lease not in self._live:
                    await self._shared.settle(Settlement(tenant, lease, reserved[lease]))

    async def _take(
        self, tenant: TenantContext, want: Want, *, at_s: float | None = None
    ) -> tuple[Refusal | None, LimitsNow, int | None]:
        """Ask Redis, or this process alone while Redis is away; `at_s` is the monotonic time that
        `LocalLimits.give_back` will name."""
        if not self._backlog.is_open:
            try:
                taken = await self._shared.take(tenant, want)
            except RedisError as error:
                self._backlog.redis_went(error)
            else:
                self._local.remember(tenant, taken.now)
                return taken.refusal, taken.now, taken.slot
        if self._backlog.left_s() is None:
            raise UnavailableError(
                "Rate limits cannot be checked right now, because Redis does not answer. "
                "Please try again.",
                code="limits_unavailable",
            )
        refusal, now = self._local.take(tenant, want, self._live.values(), at_s=at_s)
        if refusal is None and (want.requests or want.lease):
            lease = want.lease or f"{new_id('hold')}:0"
            served = Want(want.requests, want.tokens, lease, want.sequences, want.admitted)
            self._backlog.add(Served(tenant, served, time.monotonic()))
        return refusal, now, None

    async def _settle(self, settlement: Settlement) -> None:
        if not self._backlog.is_open:
            try:
                await self._shared.settle(settlement)
            except RedisError as error:
                self._backlog.redis_went(error)
            else:
                return
        self._backlog.add(settlement)

    def _refuse(self, tenant: TenantContext, refusal: Refusal | None, now: LimitsNow) -> None:
        """Raises RateLimitedError for what was refused, if anything was."""
        if refusal is not None:
            self._count_refusal(refusal.owner, refusal.limit)
            raise RateLimitedError(
                refusal.message(tenant),
                retry_after_ms=refusal.retry_ms,
                type="tokens" if refusal.limit == "tokens" else "requests",
                headers=now.headers(),
            )

    def _refuse_too_large(self, tenant: TenantContext, tokens: int, sequences: int) -> None:
        """What no waiting would help. A limit of 0 refuses everything, and says so itself."""
        for owner, caps in capped(tenant):
            whose = f"plan '{tenant.plan.name}'" if owner == "plan" else "this API key"
            if caps.tokens_per_min and tokens > caps.tokens_per_min:
                self._count_refusal(owner, "tokens")
                raise BadRequestError(
                    f"This request may use up to {tokens} tokens (its prompts plus the maximum "
                    f"length of all its completions), but {whose} allows only "
                    f"{caps.tokens_per_min} tokens per minute. Shorten the prompt, or lower "
                    "max_tokens or n.",
                    code="request_exceeds_limit",
                    headers=_NO_RETRY,
                )
            if caps.parallel_requests and sequences > caps.parallel_requests:
                self._count_refusal(owner, "parallel_requests")
                raise BadRequestError(
                    f"This request has {sequences} sequences (prompts times n), but {whose} "
                    f"allows only {caps.parallel_requests} in parallel. Lower n, or send fewer "
                    "prompts in one request.",
                    param="n",
                    code="request_exceeds_limit",
                    headers=_NO_RETRY,
                )

    def _count_refusal(self, owner: Owner, limit: LimitName) -> None:
        self._metrics.refused.labels(limit, owner).inc()
