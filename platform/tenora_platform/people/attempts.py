"""Limits attempts to sign in: failed ones by client address, begun sessions by key. The counts are
shared by all processes in Redis; while it is away each process counts for itself."""

from __future__ import annotations

import time
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_platform.errors import RateLimitedError
from tenora_platform.operations.metrics import Metrics

WINDOW_S = 60
FAILED_MAX = 30
"""Attempts of one address in a window that may fail."""
BEGUN_MAX = 60
"""Sessions of one key or person that may begin in a window."""
_KEPT_MAX = 10_000  # of a process' own counts
_IPV6_NETWORK_BITS = 64  # what one customer of a provider has at least
_TAKE = """
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {count, redis.call('PTTL', KEYS[1])}
"""
_log = structlog.get_logger(__name__)


class SignInAttempts:
    """An attempt is counted before it is looked at, so that parallel ones cannot pass the limit,
    and taken back when it succeeds."""

    def __init__(self, redis: Redis, metrics: Metrics) -> None:
        self._take = redis.register_script(_TAKE)
        self._metrics = metrics
        self._own: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def begin(self, address: str | None) -> None:
        """Count an attempt of this address. Raises RateLimitedError where too many have failed."""
        count, wait_ms = await self._count(f"address:{network_of(address)}", 1)
        if count > FAILED_MAX:
            self._metrics.sign_in_failures.labels("rate_limited").inc()
            raise _too_many("Too many failed sign-ins from your address.", wait_ms)

    async def failed(self, address: str | None, why: str) -> None:
        """Record a failure: `why` is an error code."""
        self._metrics.sign_in_failures.labels(why).inc()
        _log.warning("sign-in failed", address=address, reason=why)

    async def succeeded(self, address: str | None) -> None:
        """Take the attempt back."""
        await self._count(f"address:{network_of(address)}", -1)

    async def begin_session(self, whose: str) -> None:
        """Raises RateLimitedError where too many sessions of a key or person have begun."""
        count, wait_ms = await self._count(f"of:{whose}", 1)
        if count > BEGUN_MAX:
            self._metrics.sign_in_failures.labels("rate_limited").inc()
            raise _too_many("Too many sign-ins with this key or account.", wait_ms)

    async def _count(self, name: str, by: int) -> tuple[int, int]:
        """The count of the window so far, and the milliseconds until it ends."""
        try:
            count, wait_ms = await self._take(
                keys=[f"tenora:sign_in:{name}"], args=[by, WINDOW_S * 1000]
            )
            return int(count), int(wait_ms)
        except RedisError as error:
            _log.warning("sign-ins are counted by each process", reason=str(error))
            return self._count_here(name, by)

    def _count_here(self, name: str, by: int) -> tuple[int, int]:
        now_s = time.monotonic()
        count, ends_s = self._own.pop(name, (0, 0.0))
        if ends_s <= now_s:
            count, ends_s = 0, now_s + WINDOW_S
        self._own[name] = (count + by, ends_s)
        if len(self._own) > _KEPT_MAX:
            self._own.popitem(last=False)
        return count + by, round((ends_s - now_s) * 1000)


def network_of(address: str | None) -> str:
    """The address, of IPv6 its network of 64 bits: one client has all of that."""
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return "unknown"
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    host_bits = 128 - _IPV6_NETWORK_BITS
    return f"{IPv6Address(int(parsed) >> host_bits << host_bits)}/{_IPV6_NETWORK_BITS}"


def _too_many(what: str, wait_ms: int) -> RateLimitedError:
    wait_ms = max(wait_ms, 1000)
    return RateLimitedError(
        f"{what} Try again in {-(-wait_ms // 1000)} seconds.",
        retry_after_ms=wait_ms,
        code="too_many_sign_ins",
        headers={"x-should-retry": "false"},
    )
