"""Redis as requests use it. While the server is away a command fails at once: nobody waits for a
cache. It knows no keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tenora_engine.sealing import Seal
from tenora_platform.redis_line import LineRedis
from tenora_platform.secret import ServerSecret

_PROBE_S = 0.2
ANSWER_S = 3.0
"""What has not answered by then is away."""


class RequestRedis(LineRedis):
    """After the first command that found no server, all others fail until a ping has found it
    again. Pipelines are sent all the same."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._probing: asyncio.Task[None] | None = None
        self._away: type[RedisError] = RedisConnectionError

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if self._probing is not None:
            raise self._away("Redis did not answer a moment ago")
        try:
            return await super().execute_command(*args, **options)
        except (RedisConnectionError, RedisTimeoutError) as error:
            if self._probing is None:
                is_silent = isinstance(error, RedisTimeoutError)
                self._away = RedisTimeoutError if is_silent else RedisConnectionError
                self._probing = asyncio.create_task(self._probe())
            raise

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await super().aclose(close_connection_pool)

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(_PROBE_S)
            try:
                await super().execute_command("PING")
            except RedisError:
                continue
            self._probing = None
            return


def redis_seal(secret: ServerSecret, rejected: Callable[[str], object] | None = None) -> Seal:
    """Of what the platform's processes keep in Redis for each other and believe. The engines' has a
    key of its own: an engine makes nobody's identity."""
    key = secret.key("redis")
    return Seal(key) if rejected is None else Seal(key, rejected)


def open_redis(url: str, removed: Callable[[int], object] | None = None) -> Redis:
    """A client that gives up within seconds. A connection that is gone is made anew: what was sent
    on it is sent again. What has taken too long is not: it may be under way. `removed` is told of
    keys that held what is not ours."""
    backoff = ExponentialBackoff(cap=0.2, base=0.02)
    client = RequestRedis.from_url(
        url,
        socket_connect_timeout=2,
        socket_timeout=ANSWER_S,
        retry=Retry(backoff, retries=2, supported_errors=(RedisConnectionError,)),
    )
    if removed is not None and isinstance(client, RequestRedis):
        client.removed = removed
    return client
