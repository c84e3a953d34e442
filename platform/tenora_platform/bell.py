"""A bell that one process rings and others hear, over Redis: best effort, for who looks from time
to time anyway and would rather look at once."""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

_TURN_S = 1.0  # well under the connection's own timeout
_log = structlog.get_logger(__name__)


class Bell:
    """`listen` must run where it is waited for; ringing needs nothing."""

    def __init__(self, redis: Redis, channel: str) -> None:
        self._redis = redis
        self._channel = channel
        self._rung = asyncio.Event()
        self._ringing: set[asyncio.Task[None]] = set()

    def ring(self) -> None:
        """Here at once, elsewhere as soon as Redis carries it."""
        self._rung.set()
        task = asyncio.create_task(self._tell())
        self._ringing.add(task)
        task.add_done_callback(self._ringing.discard)

    def clear(self) -> None:
        """What was rung until now has been seen to."""
        self._rung.clear()

    async def wait(self, most_s: float) -> None:
        """Until it is rung, or has been since `clear`; `most_s` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._rung.wait()

    async def listen(self) -> None:
        """For ever."""
        while True:
            try:
                async with self._redis.pubsub() as heard:
                    await heard.subscribe(self._channel)
                    while True:
                        message = await heard.get_message(True, timeout=_TURN_S)
                        if message is not None:
                            self._rung.set()
            except RedisError as error:
                _log.warning("notification channel lost", channel=self._channel, reason=str(error))
                await asyncio.sleep(_TURN_S)

    async def _tell(self) -> None:
        with contextlib.suppress(RedisError):  # they look from time to time
            await self._redis.publish(self._channel, b"")
