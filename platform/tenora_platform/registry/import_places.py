"""How many imports run at once, over all processes: one of a tenant, a few in all. A place is a
lease in Redis, so that one whose process died is soon free. Knows nothing of what is imported."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_platform.errors import RateLimitedError, UnavailableError
from tenora_platform.ids import new_id
from tenora_platform.outages import log_failure

OF_A_TENANT, IN_ALL = 1, 4
LEASE_S, RENEW_S = 60.0, 15.0
RETRY_MS = 5000
KEY = "tenora:imports"
"""Sorted set: "<tenant>:<an id>" by the time its lease ends, in Redis' own milliseconds."""
_log = structlog.get_logger(__name__)

# ARGV: member, lease in ms, the tenant with its colon, most of a tenant, most in all.
_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + 2 * ARGV[2], '+inf')  -- no lease is so long
local there = redis.call('ZRANGE', KEYS[1], 0, -1)
local mine = 0
for _, each in ipairs(there) do
  if string.sub(each, 1, #ARGV[3]) == ARGV[3] then mine = mine + 1 end
end
if mine >= tonumber(ARGV[4]) then return 'tenant' end
if #there >= tonumber(ARGV[5]) then return 'all' end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'taken'
"""
_RENEW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 0
"""


@contextlib.asynccontextmanager
async def import_place(redis: Redis, tenant_id: str) -> AsyncIterator[None]:
    """One of them, for the length of the block. Raises RateLimitedError, and UnavailableError where
    nobody can say."""
    member = f"{tenant_id}:{new_id('upload')}"
    lease_ms = str(int(LEASE_S * 1000))
    try:
        said = await redis.eval(
            _TAKE, 1, KEY, member, lease_ms, f"{tenant_id}:", str(OF_A_TENANT), str(IN_ALL)
        )
    except RedisError as error:
        raise UnavailableError(
            "The server cannot check right now how many imports are running, because Redis "
            "does not answer; try again.",
            code="limits_unavailable",
        ) from error
    if said == b"tenant":
        raise RateLimitedError(
            "Another import of this tenant is running. Start the next one when it has finished.",
            retry_after_ms=RETRY_MS,
            code="import_running",
        )
    if said == b"all":
        raise RateLimitedError(
            f"{IN_ALL} imports are running, the maximum for this installation. Try again soon.",
            retry_after_ms=RETRY_MS,
            code="imports_busy",
        )
    renewing = asyncio.create_task(_renew(redis, member, lease_ms))
    try:
        yield
    finally:
        renewing.cancel()
        with contextlib.suppress(RedisError):  # its lease ends by itself
            await asyncio.shield(redis.zrem(KEY, member))


async def _renew(redis: Redis, member: str, lease_ms: str) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        try:
            await redis.eval(_RENEW, 1, KEY, member, lease_ms)
        except RedisError as error:
            log_failure(_log, "import lease not renewed", error, retry_s=RENEW_S)
