"""Whose a Redis database is. Keys begin with `tenora:` in every installation, so each needs a
database of its own; this notices where two have one. It knows no other key."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tenora_platform.installation import Installation
from tenora_platform.secret import ServerSecret

if TYPE_CHECKING:
    from redis.asyncio import Redis

KEY = "tenora:installation"
_LIFE_S = 7 * 24 * 3600  # after its last process; then the database is anybody's again
_EVERY_S = 5.0  # how soon a Redis that was emptied is marked again


class RedisTakenError(Exception):
    """The Redis database is another installation's; says what to do."""

    def __init__(self, holder: str, mine: str) -> None:
        name, me = holder.partition("/")[0], mine.partition("/")[0]
        whose = f"{name!r}" if name != me else f"that is called {name!r} too, with another secret"
        super().__init__(
            f"The Redis database is that of another Tenora installation, {whose}. Give each its "
            "own in TENORA_REDIS_URL: by a number at its end (redis://host:6379/1), or a server. "
            f"If the other is no more, or this one's secret was changed, delete its key {KEY}."
        )


def mark_of(installation: Installation, secret: ServerSecret) -> str:
    """Its name, and a fingerprint of its secret: others may have the same name elsewhere."""
    return f"{installation.name}/{secret.mac('redis-mark', installation.name)[:16]}"


def claim(url: str, mark: str) -> None:
    """Before anything starts. Raises RedisTakenError, ValueError for what is no URL; a Redis that
    is away is found out later."""
    import redis

    client = redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=5)
    with contextlib.suppress(redis.RedisError), client:
        client.set(KEY, mark, nx=True, ex=_LIFE_S)
        compare(client.get(KEY), mark)


async def keep(redis: Redis, mark: str) -> None:
    """For as long as the process lives; raises RedisTakenError."""
    from redis.exceptions import RedisError

    while True:
        with contextlib.suppress(RedisError):  # others say that it is away
            await look(redis, mark)
        await asyncio.sleep(_EVERY_S)


async def look(redis: Redis, mark: str) -> None:
    """Mark it if nobody has. Raises RedisTakenError or RedisError."""
    await redis.set(KEY, mark, nx=True, ex=_LIFE_S)
    compare(await redis.get(KEY), mark)
    await redis.expire(KEY, _LIFE_S)


def compare(found: object, mark: str) -> None:
    """What the key holds with our own mark. Raises RedisTakenError."""
    if isinstance(found, bytes) and found.decode() != mark:
        raise RedisTakenError(found.decode(), mark)
