"""What tests of the limits begin with: a tenant under some limits, and a clock moved by hand. A
pytest plugin (see conftest)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from tenant_contexts import plan_terms, tenant_context
from tenora_platform.auth import Caps, TenantContext
from tenora_platform.errors import RateLimitedError
from tenora_platform.ids import new_id
from tenora_platform.limits.service import Limits
from tenora_platform.operations.metrics import Metrics


def tenant_of(
    rpm: int | None = None,
    tpm: int | None = None,
    parallel: int | None = None,
    key: dict[str, int | None] | None = None,
) -> TenantContext:
    """A new tenant with these limits; those of `key` (by the same names) are its key's own."""
    plan = plan_terms(requests_per_min=rpm, tokens_per_min=tpm, parallel_requests=parallel)
    own = key or {}
    caps = Caps(
        requests_per_min=own.get("rpm"),
        tokens_per_min=own.get("tpm"),
        parallel_requests=own.get("parallel"),
    )
    return tenant_context(plan, tenant_id=new_id("tenant"), key_caps=caps)


@dataclass
class HandClock:
    """The time of the limits' scripts, kept in Redis under a name that only tests know: keys expire
    by the server's own, which hardly moves meanwhile."""

    redis: Redis
    now_ms: int
    name: str

    @classmethod
    async def started(cls, redis: Redis) -> HandClock:
        seconds, _ = await redis.time()
        clock = cls(redis, seconds * 1000 + 3, new_id("clock"))
        await clock.move(0)
        return clock

    @property
    def source(self) -> str:
        """For `Limits(clock=...)`."""
        return f"local now = tonumber(redis.call('GET', '{self.name}'))\n"

    async def move(self, ms: int) -> None:
        self.now_ms += ms
        await self.redis.set(self.name, self.now_ms)


async def refused(limits: Limits, tenant: TenantContext, tokens: int = 1) -> RateLimitedError:
    with pytest.raises(RateLimitedError) as caught:
        await limits.acquire(tenant, tokens)
    return caught.value


@pytest.fixture(scope="module")
async def redis_client(redis_url: str) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def limits(redis_client: Redis) -> Limits:
    return Limits(redis_client, lease_s=30, metrics=Metrics())


@pytest.fixture
async def clock(redis_client: Redis) -> HandClock:
    return await HandClock.started(redis_client)


@pytest.fixture
def by_hand(redis_client: Redis, clock: HandClock) -> Limits:
    """Limits whose time passes as `clock` is moved."""
    return Limits(redis_client, lease_s=30, metrics=Metrics(), clock=clock.source)
