"""Carries changes between processes, over one channel of Redis: what was committed in one is heard
in all. Best effort: who was away hears that anything may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_engine.sealing import Seal
from tenora_platform.live.topics import FOR_WORKERS, TOPICS

Heard = Callable[[str | None, frozenset[str]], None]
"""Of whose things which topics have changed: a tenant's by its id, EVERYBODY's; None: the
operator's, or nobody knows whose."""

EVERYBODY = "*"

_CHANNEL = "tenora:changes"
_SEALED = "changes"
_BELIEVED_S = 3600.0
_GATHERED_S = 0.1
"""Of commits within it one message is made."""
_TURN_S = 1.0  # well under the connection's own timeout
_log = structlog.get_logger(__name__)
_Message = dict[str, list[str]]  # "" is the operator


class Changes:
    """`tell` from anywhere in a process; `listen` where somebody wants to know."""

    def __init__(self, redis: Redis, seal: Seal) -> None:
        self._redis = redis
        self._seal = seal
        self._waiting: dict[str, set[str]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._heard: Heard | None = None
        self._finished = False

    def tell(self, tenant_id: str | None, topics: Iterable[str]) -> None:
        """Soon, everywhere."""
        if self._finished:
            return
        self._waiting.setdefault(tenant_id or "", set()).update(topics)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def finish(self) -> None:
        """Tell what is to be told yet, and nothing after it."""
        self._finished = True
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    async def listen(self, heard: Heard, listening: asyncio.Event) -> None:
        """For ever; `listening` is set while it does. After each silence of Redis every topic is
        heard of everybody's."""
        first = True
        self._heard = heard
        try:
            while True:
                try:
                    await self._hear(heard, listening, first)
                except RedisError as error:
                    _log.warning("changes not received", reason=str(error))
                    await asyncio.sleep(_TURN_S)
                finally:
                    listening.clear()
                first = False
        finally:
            self._heard = None

    async def _hear(self, heard: Heard, listening: asyncio.Event, first: bool) -> None:
        async with self._redis.pubsub() as channel:
            await channel.subscribe(_CHANNEL)
            await channel.get_message(timeout=_TURN_S)  # that it is subscribed
            listening.set()
            if not first:
                heard(EVERYBODY, TOPICS | FOR_WORKERS)
            while True:
                message = await channel.get_message(True, timeout=_TURN_S)
                if message is not None:
                    raw = self._seal.open(_SEALED, _CHANNEL, message["data"])
                    if raw is not None:
                        _tell(heard, raw)

    async def _send(self) -> None:
        while self._waiting:
            await asyncio.sleep(_GATHERED_S)
            waiting, self._waiting = self._waiting, {}
            raw = msgspec.json.encode({whose: sorted(topics) for whose, topics in waiting.items()})
            try:
                sealed = self._seal.close(_SEALED, _CHANNEL, raw, _BELIEVED_S)
                await self._redis.publish(_CHANNEL, sealed)
            except RedisError:  # at least here
                if self._heard is not None:
                    _tell(self._heard, raw)


def _tell(heard: Heard, raw: bytes) -> None:
    try:
        message: Mapping[str, list[str]] = msgspec.json.decode(raw, type=_Message)
    except msgspec.MsgspecError as error:
        _log.warning("a change message could not be read", reason=str(error))
        return
    for whose, topics in message.items():
        heard(whose or None, frozenset(topics) & (TOPICS | FOR_WORKERS))
