"""The last hour of the arena, a sample every ten seconds, in Redis: so all API processes show the
same, and a restart of them or of the engine loses none. The worker that is first takes a sample."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_engine.pages import ArenaPages
from tenora_engine.sealing import Seal

EVERY_S = 10
KEPT_S = 3600
SAMPLE_BYTES_MAX = 128 * 1024
"""Of one, compressed: 46 MB for the hour at most. A larger one is kept without the ages of cached
pages, then without its pages."""

_INDEX = "tenora:memory:index"  # sorted set: JSON of (slot, pages by kind), by slot
_SEALED = "pages"
_MISSED_SLOTS = 6  # how far before the asked moment a sample may lie
_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ArenaPages).decode


class Sample(msgspec.Struct, frozen=True, array_like=True):
    slot: int  # unix seconds, a multiple of EVERY_S
    kinds: list[int]


class PageHistory:
    def __init__(self, redis: Redis, seal: Seal) -> None:
        self._redis = redis
        self._seal = seal

    async def keep(self, engine: EngineClient) -> None:
        """For ever; while Redis or the engine is away there are no samples."""
        while True:
            try:
                if engine.ready:
                    await self.keep_once(engine)
            except (RedisError, EngineError, OSError) as error:
                _log.warning("no sample of the page arena", reason=str(error))
            await asyncio.sleep(EVERY_S - time.time() % EVERY_S)

    async def keep_once(self, engine: EngineClient, now_s: float | None = None) -> bool:
        """Take the sample of this moment unless another worker has; whether this one did."""
        slot = int((time.time() if now_s is None else now_s) // EVERY_S) * EVERY_S
        taken = f"tenora:memory:taken:{slot}"
        if not await self._redis.set(taken, b"", nx=True, ex=3 * EVERY_S):
            return False
        pages = await engine.pages()
        packed, index = await asyncio.to_thread(_packed, pages), Sample(slot, pages.kinds)
        data = self._seal.close(_SEALED, _key(slot), packed, KEPT_S + EVERY_S)
        sample = self._seal.close(_SEALED, _INDEX, msgspec.json.encode(index), KEPT_S + EVERY_S)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(_key(slot), data, ex=KEPT_S + EVERY_S)
            pipe.zadd(_INDEX, {sample: slot})
            pipe.zremrangebyscore(_INDEX, "-inf", slot - KEPT_S)
            pipe.expire(_INDEX, KEPT_S)
            await pipe.execute()
        return True

    async def samples(self) -> list[Sample]:
        """Oldest first, of the last hour. Raises RedisError."""
        least = time.time() - KEPT_S
        found: Any = await self._redis.zrangebyscore(_INDEX, least, "+inf")
        opened = [self._seal.open(_SEALED, _INDEX, each) for each in found]
        return [msgspec.json.decode(each, type=Sample) for each in opened if each is not None]

    async def at(self, at_s: float) -> ArenaPages | None:
        """The last sample up to that moment, unless it is a minute older. Raises RedisError."""
        slot = int(at_s // EVERY_S) * EVERY_S
        keys = [_key(slot - EVERY_S * back) for back in range(_MISSED_SLOTS + 1)]
        found: Any = await self._redis.mget(keys)
        for key, sealed in zip(keys, found, strict=True):
            data = self._seal.open(_SEALED, key, sealed)
            if data is not None:
                return await asyncio.to_thread(_unpacked, data)
        return None


def _key(slot: int) -> str:
    return f"tenora:memory:at:{slot}"


def _packed(pages: ArenaPages) -> bytes:
    pages = replace(pages, host=[])
    data = zlib.compress(_encode(pages), 1)
    if len(data) > SAMPLE_BYTES_MAX:
        data = zlib.compress(_encode(replace(pages, runs=_ageless(pages.runs))), 6)
    if len(data) > SAMPLE_BYTES_MAX:
        data = zlib.compress(_encode(replace(pages, runs=[pages.total_pages, 0, 0, 0])), 6)
    return data


def _ageless(runs: list[int]) -> list[int]:
    """Without ages, neighbours that are alike then joined."""
    joined: list[int] = []
    for at in range(0, len(runs), 4):
        count, kind, owner, _ = runs[at : at + 4]
        if joined and joined[-3:-1] == [kind, owner]:
            joined[-4] += count
        else:
            joined += (count, kind, owner, 0)
    return joined


def _unpacked(data: bytes) -> ArenaPages:
    return _decode(zlib.decompress(data))
