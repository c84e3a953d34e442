"""How the answers of inference are counted: by minute, tenant, class and HTTP status, in each
process, and from there in Redis, where the sampler finds those of all. It knows statuses, not why
they were."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.types import Scope

from tenora_platform.contexts import TenantContext
from tenora_platform.edge import is_inference

MINUTE_S = 60
_KEY = "tenora:answers:"  # hash of one minute: tenant|class|status -> how many
_NAME = re.compile(rb"([0-9A-Za-z_-]*)\|([a-z_-]*)\|([1-5][0-9]{2})")
_DIGITS_MAX = 15
_KEPT_S = 86_400
_EVERY_S = 2.0
_WAITING_MAX = 20_000  # while Redis is away; what is more is not counted
_log = structlog.get_logger(__name__)

Answers = Mapping[tuple[str, str], Mapping[str, int]]
"""(tenant's id or "", class) -> status -> how many, of one minute."""


def tenant_of(scope: Scope) -> TenantContext | None:
    """Who asked, as far as it came to be known."""
    known = scope["state"].get("before_body", {}).values()
    return next((each for each in known if isinstance(each, TenantContext)), None)


class AnswerCounts:
    """`keep` must run where answers are noted."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: Counter[tuple[int, str]] = Counter()

    def note(self, scope: Scope, status: int) -> None:
        """An answer has ended: one of inference is counted, whatever came of it. A page that is
        open, or a program that looks for a model, is no part of how requests were served."""
        if not is_inference(scope):
            return
        tenant = tenant_of(scope)
        whose = "|" if tenant is None else f"{tenant.tenant_id}|{tenant.plan.sla_class}"
        key = int(time.time()) // MINUTE_S * MINUTE_S, f"{whose}|{status}"
        if key in self._waiting or len(self._waiting) < _WAITING_MAX:
            self._waiting[key] += 1

    async def keep(self) -> None:
        """For ever: what was counted goes to Redis every two seconds."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                await self._flush()
        finally:
            await self._flush()

    async def of_minute(self, minute_s: int) -> Answers:
        """Those of all processes. Raises RedisError."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        counts: dict[bytes, bytes] = await self._redis.hgetall(f"{_KEY}{minute_s}")  # type: ignore[assignment]
        for name, count in counts.items():
            match = _NAME.fullmatch(name)
            if match is None or not (count.isdigit() and len(count) <= _DIGITS_MAX):
                continue  # not ours
            tenant_id, class_, status = (part.decode() for part in match.groups())
            found.setdefault((tenant_id, class_), {})[status] = int(count)
        return found

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, Counter()
        if not waiting:
            return
        try:
            async with self._redis.pipeline(transaction=True) as commands:
                for (minute_s, name), count in waiting.items():
                    commands.hincrby(f"{_KEY}{minute_s}", name, count)
                for minute_s in {minute_s for minute_s, _ in waiting}:
                    commands.expire(f"{_KEY}{minute_s}", _KEPT_S)
                await commands.execute()
        except RedisError as error:
            _log.warning("answers could not be counted", reason=str(error))
            self._waiting.update(waiting)
