"""Requests and tokens a minute and parallel sequences, per tenant, over all workers: reserved
before the work, settled to what it took, freed by a lease if the worker dies. It knows plans as
numbers and Redis as its memory; budgets of money are billing's."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_platform.auth import PlanTerms, TenantContext
from tenora_platform.errors import BadRequestError, RateLimitedError, UnavailableError
from tenora_platform.ids import new_id
from tenora_platform.limits.scripts import ACQUIRE, PACE_KEPT_MS, RENEW, RETAKE, SETTLE
from tenora_platform.operations.metrics import Metrics

_NO_RETRY = {"x-should-retry": "false"}
_log = structlog.get_logger(__name__)
_NAMES = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "parallel_requests": "parallel requests (each of n, and each prompt, counts)",
}


@dataclass(frozen=True, slots=True)
class LimitUse:
    """One limit now. `limit` and `remaining` None: not limited. `reset_ms`: when it is whole."""

    limit: int | None
    remaining: int | None
    reset_ms: int


@dataclass(frozen=True, slots=True)
class LimitsNow:
    """A tenant's limits at one moment; `parallel` is how many sequences run."""

    requests: LimitUse
    tokens: LimitUse
    parallel: int
    parallel_max: int | None

    def headers(self) -> dict[str, str]:
        """The `x-ratelimit-*` headers; what is not limited has none (-1 broke clients)."""
        headers = {}
        for name, use in (("requests", self.requests), ("tokens", self.tokens)):
            if use.limit is None:
                continue
            headers[f"x-ratelimit-limit-{name}"] = str(use.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(use.remaining)
            headers[f"x-ratelimit-reset-{name}"] = duration(use.reset_ms)
        return headers


class Hold:
    """What one request has reserved. `settle` when its tokens are known, `release` if nothing was
    used; the first of them counts, later ones do nothing. As a context manager it releases what was
    not settled."""

    def __init__(
        self, limits: Limits, tenant: TenantContext, tokens: int, sequences: int, now: LimitsNow
    ) -> None:
        self.id = f"{new_id('hold')}:{sequences}"  # as the scripts read it
        self.sequences = sequences
        self.tenant = tenant
        self.reserved_tokens = tokens
        self.now = now
        self.began_s = time.monotonic()
        self._limits = limits
        self._ended = False

    @property
    def headers(self) -> dict[str, str]:
        """The `x-ratelimit-*` headers of the answer."""
        return self.now.headers()

    async def settle(self, actual_tokens: int) -> None:
        """Replace the estimate by the tokens really used and free the parallel places. Completes
        even if the caller is cancelled meanwhile."""
        await self._end(tokens_back=self.reserved_tokens - actual_tokens, requests_back=0)

    async def release(self) -> None:
        """Give everything back: the request was refused further on, nothing was used."""
        await self._end(tokens_back=self.reserved_tokens, requests_back=1)

    async def _end(self, *, tokens_back: int, requests_back: int) -> None:
        if self._ended:
            return
        self._ended = True
        await self._limits.end(self, tokens_back=tokens_back, requests_back=requests_back)

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
    """The limits of every tenant, as this worker sees them. `keep_leases` must run beside it."""

    def __init__(self, redis: Redis, *, lease_s: float, metrics: Metrics) -> None:
        self._redis = redis
        self._lease_ms = int(lease_s * 1000)
        self._metrics = metrics
        self._live: dict[str, Hold] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def admit(self, tenant: TenantContext) -> None:
        """Count one request before anything is done for it, so that what is refused later counts
        too; `acquire(..., requests=0)` then holds the rest. Raises as `acquire` does."""
        refused, retry_ms, now = await self._run(tenant, 1, 0, "")
        self._refuse(tenant, refused, retry_ms, now)

    async def acquire(
        self,
        tenant: TenantContext,
        estimated_tokens: int,
        sequences: int = 1,
        *,
        requests: int = 1,
    ) -> Hold:
        """Reserve a request (`requests` 0: `admit` has counted it, and has it back if this is
        refused), its tokens (prompts and the most it may generate) and a parallel place for each
        of its sequences. Raises BadRequestError for more than the plan ever allows at once,
        RateLimitedError with an honest retry_after_ms, UnavailableError when Redis does not
        answer."""
        self._refuse_too_large(tenant.plan, estimated_tokens, sequences)
        draft = Hold(self, tenant, estimated_tokens, sequences, _UNKNOWN)
        refused, retry_ms, now = await self._run(
            tenant, requests, estimated_tokens, draft.id, sequences
        )
        if refused and not requests:
            await self._settle(draft, 0, 1)
        self._refuse(tenant, refused, retry_ms, now)
        draft.now = now
        self._live[draft.id] = draft
        return draft

    def _refuse(self, tenant: TenantContext, refused: str, retry_ms: int, now: LimitsNow) -> None:
        """Raises RateLimitedError for what was refused, if anything was."""
        if refused:
            self._metrics.refused.labels(refused).inc()
            raise RateLimitedError(
                f"Rate limit reached for {_NAMES[refused]} "
                f"({_limit_of(tenant.plan, refused)} on plan '{tenant.plan.name}'). "
                f"Please try again in {duration(retry_ms)}.",
                retry_after_ms=retry_ms,
                type="tokens" if refused == "tokens" else "requests",
                headers=now.headers(),
            )

    def _refuse_too_large(self, plan: PlanTerms, tokens: int, sequences: int) -> None:
        """What no waiting would help. A limit of 0 refuses everything, and says so itself."""
        if plan.tokens_per_min and tokens > plan.tokens_per_min:
            self._metrics.refused.labels("tokens").inc()
            raise BadRequestError(
                f"This request may take {tokens} tokens (its prompts, and the most that all its "
                f"completions may have), more than the {plan.tokens_per_min} tokens per minute of "
                f"plan '{plan.name}'. Shorten the prompt, or lower max_tokens or n.",
                code="request_exceeds_limit",
                headers=_NO_RETRY,
            )
        if plan.parallel_requests and sequences > plan.parallel_requests:
            self._metrics.refused.labels("parallel_requests").inc()
            raise BadRequestError(
                f"This request is {sequences} sequences (prompts times n), more than the "
                f"{plan.parallel_requests} that plan '{plan.name}' allows in parallel. Lower n or "
                "send fewer prompts at once.",
                param="n",
                code="request_exceeds_limit",
                headers=_NO_RETRY,
            )

    async def now(self, tenant: TenantContext) -> LimitsNow:
        """Limits and use, changing nothing."""
        _, _, now = await self._run(tenant, 0, 0, "")
        return now

    async def end(self, hold: Hold, *, tokens_back: int, requests_back: int) -> None:
        """Called by the hold. A task of its own: a client that goes away cancels its request, and
        what it held must be freed all the same."""
        self._live.pop(hold.id, None)
        task = asyncio.create_task(self._settle(hold, tokens_back, requests_back))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.shield(task)

    async def keep_leases(self) -> None:
        """Renew the leases of this worker's requests, for ever. A worker that dies stops, and its
        places are free one lease later."""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            by_tenant: dict[str, list[str]] = defaultdict(list)
            for hold in self._live.values():
                by_tenant[hold.tenant.tenant_id].append(hold.id)
            for tenant_id, leases in by_tenant.items():
                try:
                    await self._renew(_keys(tenant_id)[1], leases)
                except RedisError as error:
                    _log.warning("leases not renewed", tenant=tenant_id, reason=str(error))

    async def _renew(self, key: str, leases: list[str]) -> None:
        """What was settled while this was under way stays settled; what had run out is taken
        again, and removed if it was settled meanwhile after all."""
        missing = await self._eval(RENEW, [key], [self._lease_ms, *leases])
        running = [lease.decode() for lease in missing if lease.decode() in self._live]
        if running:
            await self._eval(RETAKE, [key], [self._lease_ms, *running])
            ended = [lease for lease in running if lease not in self._live]
            if ended:
                await self._redis.zrem(key, *ended)

    async def _run(
        self, tenant: TenantContext, requests: int, tokens: int, lease: str, sequences: int = 0
    ) -> tuple[str, int, LimitsNow]:
        plan = tenant.plan
        arguments: list[str | int] = [
            _or_none(plan.requests_per_min),
            _or_none(plan.tokens_per_min),
            _or_none(plan.parallel_requests),
            requests,
            tokens,
            lease,
            self._lease_ms,
            sequences,
        ]
        try:
            answer = await self._eval(ACQUIRE, _keys(tenant.tenant_id), arguments)
        except RedisError as error:
            _log.error("limits not reachable", reason=str(error))
            raise UnavailableError(
                "The server cannot check limits right now.", code="limits_unavailable"
            ) from error
        refused, retry_ms, left, requests_reset, tokens_left, tokens_reset, parallel = answer
        now = LimitsNow(
            requests=_use(plan.requests_per_min, left, requests_reset),
            tokens=_use(plan.tokens_per_min, tokens_left, tokens_reset),
            parallel=parallel,
            parallel_max=plan.parallel_requests,
        )
        return refused.decode(), retry_ms, now

    async def _settle(self, hold: Hold, tokens_back: int, requests_back: int) -> None:
        plan = hold.tenant.plan
        took_ms = (time.monotonic() - hold.began_s) * 1000
        says = hold.reserved_tokens > 0 and not requests_back
        arguments: list[str | int | float] = [
            _or_none(plan.tokens_per_min),
            tokens_back,
            hold.id,
            _or_none(plan.requests_per_min),
            requests_back,
            took_ms / hold.reserved_tokens if says else -1,
            PACE_KEPT_MS,
        ]
        try:
            await self._eval(SETTLE, _keys(hold.tenant.tenant_id), arguments)
        except RedisError as error:
            # The lease frees the place; the estimate stands until the bucket has refilled.
            _log.warning("hold not settled", hold=hold.id, reason=str(error))

    async def _eval(
        self, script: str, keys: Sequence[str], arguments: Sequence[str | int | float]
    ) -> Any:
        values = [*keys, *(str(argument) for argument in arguments)]
        return await self._redis.eval(script, len(keys), *values)


def duration(ms: int) -> str:
    """`12ms` below a second, then `1.5s`, then `2m3s`: the forms that clients of OpenAI parse."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _limit_of(plan: PlanTerms, name: str) -> int | None:
    return {
        "requests": plan.requests_per_min,
        "tokens": plan.tokens_per_min,
        "parallel_requests": plan.parallel_requests,
    }[name]


def _use(limit: int | None, remaining: int, reset_ms: int) -> LimitUse:
    if limit is None:
        return LimitUse(None, None, 0)
    return LimitUse(limit, max(0, remaining), reset_ms)


def _or_none(limit: int | None) -> int:
    return -1 if limit is None else limit


def _keys(tenant_id: str) -> tuple[str, str, str]:
    # The braces keep all keys of a tenant on one node of a Redis cluster.
    prefix = f"tenora:limits:{{{tenant_id}}}"
    return f"{prefix}:rates", f"{prefix}:parallel", f"{prefix}:pace"


_UNKNOWN = LimitsNow(LimitUse(None, None, 0), LimitUse(None, None, 0), 0, None)
