"""Since when something is wrong, known to all processes: kept in Redis for as long as one of them
says that it still is, whether or not anybody looks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable

from redis.asyncio import Redis
from redis.exceptions import RedisError

_KEY = "tenora:since:"
_KEPT_S = 60
"""After the last that said so: what comes back within a minute has not been away."""
_EVERY_S = 2.0
_KEYS_MAX = 1000


class Since:
    """`known`: unix times by key, of what is wrong. While Redis is away they are this process'."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.known: dict[str, float] = {}

    async def keep(self, wrong: Callable[[], Iterable[str]]) -> None:
        """For ever: what `wrong` names, by keys that stay the same."""
        while True:
            await self.look(wrong())
            await asyncio.sleep(_EVERY_S)

    async def look(self, wrong: Iterable[str]) -> None:
        """Once."""
        keys, now_s = list(dict.fromkeys(wrong))[:_KEYS_MAX], time.time()
        found: dict[str, float] = {}
        with contextlib.suppress(RedisError):
            found = await self._read(keys, now_s) if keys else {}
        self.known = {key: found.get(key, self.known.get(key, now_s)) for key in keys}

    async def _read(self, keys: list[str], now_s: float) -> dict[str, float]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.set(f"{_KEY}{key}", f"{self.known.get(key, now_s):.3f}", nx=True, ex=_KEPT_S)
                pipe.expire(f"{_KEY}{key}", _KEPT_S)
                pipe.get(f"{_KEY}{key}")
            answers = await pipe.execute()
        found = {}
        for key, said in zip(keys, answers[2::3], strict=True):
            since_s = _moment(said)
            if since_s is not None and since_s <= now_s + _KEPT_S:
                found[key] = since_s
        return found


def _moment(said: bytes | None) -> float | None:
    """None for nothing, and for what is no time."""
    try:
        since_s = float(said or "nan")
    except ValueError:
        return None
    return since_s if math.isfinite(since_s) and since_s >= 0 else None
