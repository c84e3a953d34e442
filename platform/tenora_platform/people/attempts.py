"""Limits attempts to sign in and wrong keys: failed ones by client address, begun sessions by key.
The counts are shared by all processes in Redis; while it is away each process counts for itself."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_platform.errors import ApiError, RateLimitedError, UnauthorizedError
from tenora_platform.operations.metrics import Metrics

WINDOW_S = 60
FAILED_MAX = 30
"""Attempts of one address in a window that may fail."""
WRONG_KEYS_MAX = 100
"""Requests of one address in a window that are told 401 for a wrong key or session; those after get
429."""
BEGUN_MAX = 60
"""Sessions of one key or person that may begin in a window."""
CHECKED_AT_ONCE = 10
"""Attempts of one address that a process checks at once; the next ones wait for these."""
_KEPT_MAX = 10_000  # of a process' own counts
_IPV6_NETWORK_BITS = 64  # what one customer of a provider has at least
_TAKE = """
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {count, redis.call('PTTL', KEYS[1])}
"""
_log = structlog.get_logger(__name__)


class SignInAttempts:
    """An attempt counts once it has failed. Those of one address that are being checked are few, so
    that parallel ones do not pass the limit by more than that, and right ones only wait."""

    def __init__(self, redis: Redis, metrics: Metrics) -> None:
        self._take = redis.register_script(_TAKE)
        self._metrics = metrics
        self._own: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._told_s = float("-inf")
        self._places: dict[str, asyncio.Semaphore] = {}
        self._inside: dict[str, int] = {}  # who holds or waits for a place, by address

    @asynccontextmanager
    async def attempt(self, address: str | None) -> AsyncIterator[None]:
        """The block is an attempt of this address, which counts if it raises an ApiError that is
        the client's fault. Raises RateLimitedError where too many have failed."""
        of = f"address:{network_of(address)}"
        async with self._place(of):
            self._refuse_beyond(*await self._count(of, 0), FAILED_MAX - 1)
            try:
                yield
            except RateLimitedError:
                raise
            except ApiError as error:
                if error.status < 500:
                    await self._failed(of, address, error)
                raise

    @asynccontextmanager
    async def counted(self, address: str | None) -> AsyncIterator[None]:
        """Count a request whose key or session is none, or none any more: the block raises
        UnauthorizedError. A right one is served however many wrong ones come from its address,
        which may be a proxy's. Raises RateLimitedError in that error's place after too many."""
        try:
            yield
        except UnauthorizedError as error:
            await self._wrong_key(address, error)
            raise

    async def _wrong_key(self, address: str | None, error: UnauthorizedError) -> None:
        self._metrics.wrong_keys.labels(error.code or "failed").inc()
        count, wait_ms = await self._count(f"key:{network_of(address)}", 1)
        if count in (1, WRONG_KEYS_MAX + 1):  # not each of them: one line when it begins and ends
            _log.warning("wrong key or session", address=address, reason=error.code, requests=count)
        if count > WRONG_KEYS_MAX:
            refused = _too_many(
                "Too many requests with a wrong key or session from your address.", wait_ms
            )
            refused.code, refused.tenant_id = "too_many_wrong_keys", error.tenant_id
            raise refused from error

    async def begin_session(self, whose: str) -> None:
        """Raises RateLimitedError where too many sessions of a key or person have begun."""
        count, wait_ms = await self._count(f"of:{whose}", 1)
        if count > BEGUN_MAX:
            self._metrics.sign_in_failures.labels("rate_limited").inc()
            raise _too_many("Too many sign-ins with this key or account.", wait_ms)

    async def _failed(self, of: str, address: str | None, error: ApiError) -> None:
        self._refuse_beyond(*await self._count(of, 1), FAILED_MAX)
        reason = error.code or "failed"
        self._metrics.sign_in_failures.labels(reason).inc()
        _log.warning("sign-in failed", address=address, reason=reason)

    def _refuse_beyond(self, count: int, wait_ms: int, most: int) -> None:
        if count > most:
            self._metrics.sign_in_failures.labels("rate_limited").inc()
            raise _too_many("Too many failed sign-ins from your address.", wait_ms)

    @asynccontextmanager
    async def _place(self, of: str) -> AsyncIterator[None]:
        places = self._places.setdefault(of, asyncio.Semaphore(CHECKED_AT_ONCE))
        self._inside[of] = self._inside.get(of, 0) + 1
        try:
            async with places:
                yield
        finally:
            self._inside[of] -= 1
            if not self._inside[of]:
                del self._inside[of], self._places[of]

    async def _count(self, name: str, by: int) -> tuple[int, int]:
        """The count of the window so far, and the milliseconds until it ends."""
        try:
            count, wait_ms = await self._take(
                keys=[f"tenora:sign_in:{name}"], args=[by, WINDOW_S * 1000]
            )
            return int(count), int(wait_ms)
        except RedisError as error:
            if self._told_s + WINDOW_S < time.monotonic():  # not for each attempt
                self._told_s = time.monotonic()
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
