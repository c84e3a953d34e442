"""How requests of an alias ended, by version, over all API processes: counted here, given to Redis
once a second, read back by whoever judges. No request waits for it or fails by it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_engine.errors import EngineError
from tenora_platform.errors import ApiError, from_engine
from tenora_platform.registry.resolver import ResolvedModel

FLUSH_S = 1.0
BUCKET_S = 2
"""Requests that end within so many seconds are counted together."""
LOOK_BACK_S = 600
TOTALS_KEPT_S = 45 * 86400  # longer than any stage
WAITING_MAX = 20_000
"""Hashes that wait for Redis to come back; what comes then is not counted."""
_PER_OCTAVE = 8  # buckets of times: a bucket's middle is within 4.5% of all in it
_NAME = re.compile(rb"[0-9]{1,9}:(n|e|t[0-9]{1,3})")
_DIGITS_MAX = 15
_HUNG_UP = 499
_NOT_ITS_FAULT = ("server_stopping", "grammars_unavailable", "adapter_unavailable")
_log = structlog.get_logger(__name__)


class OfAlias(NamedTuple):
    """Whose outcomes."""

    tenant_id: str
    adapter_id: str
    alias: str

    @property
    def key(self) -> str:
        # The braces keep all keys of a tenant on one node of a Redis cluster.
        return f"tenora:outcomes:{{{self.tenant_id}}}:{self.adapter_id}:{self.alias}"


@dataclass
class Tally:
    """Of one version, or of several together."""

    requests: int = 0
    errors: int = 0
    times: Counter[int] = field(default_factory=Counter)  # to the first token, by bucket

    def add(self, other: Tally) -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.times.update(other.times)

    @property
    def error_rate(self) -> float:
        return self.errors / self.requests if self.requests else 0.0

    @property
    def ttft_ms(self) -> float | None:
        """The median; None where nothing was timed."""
        half = (self.times.total() + 1) / 2
        for bucket in sorted(self.times):
            half -= self.times[bucket]
            if half <= 0:
                return float(2 ** ((bucket - 0.5) / _PER_OCTAVE))
        return None


def time_bucket(ms: float) -> int:
    """Times of up to a millisecond are in bucket 0; a second is in 80."""
    return max(0, math.ceil(_PER_OCTAVE * math.log2(ms))) if ms > 1 else 0


class Watch:
    """One request: `with` is around its work on the engine. Counts requests that were answered,
    failed, or that the client left; not what the client did wrong, nor what was ended from outside.
    One that it left before the first token has waited for at least so long."""

    def __init__(self, outcomes: Outcomes, of: OfAlias | None, version: int) -> None:
        self.first_s: float | None = None
        self._outcomes = outcomes
        self._of = of
        self._version = version
        self._began_s = 0.0

    def __enter__(self) -> Self:
        self._began_s = time.perf_counter()
        return self

    def piece(self) -> None:
        """Something of the answer has come."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - self._began_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        status = _status(error)
        if self._of is None or (status not in (200, _HUNG_UP) and status < 500):
            return
        failed, ms = status >= 500, None
        if not failed or self.first_s is not None:
            waited_s = time.perf_counter() - self._began_s
            ms = 1000 * (waited_s if self.first_s is None else self.first_s)
        self._outcomes.note(self._of, self._version, failed=failed, first_token_ms=ms)


def _status(error: BaseException | None) -> int:
    """As the client is told, or would be; 0: nobody's."""
    if error is None:
        return 200
    if isinstance(error, EngineError):
        error = from_engine(error)
    if isinstance(error, ApiError):
        return 0 if error.code in _NOT_ITS_FAULT else error.status
    return 500 if isinstance(error, Exception) else _HUNG_UP  # closed, or cancelled


class Outcomes:
    """Of one process; `keep` must run beside its requests."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)

    def watch(self, tenant_id: str, resolved: ResolvedModel) -> Watch:
        """Counts only what came by an alias."""
        adapter, alias = resolved.adapter, resolved.alias
        if adapter is None or alias is None:
            return Watch(self, None, 0)
        return Watch(self, OfAlias(tenant_id, adapter.adapter_id, alias), adapter.version)

    def note(
        self, of: OfAlias, version: int, *, failed: bool, first_token_ms: float | None
    ) -> None:
        if len(self._waiting) >= WAITING_MAX:
            return
        bucket = int(time.time()) // BUCKET_S
        counts = self._waiting[f"{of.key}:{bucket}", LOOK_BACK_S + 60]
        counts[f"{version}:n"] += 1
        if failed:
            counts[f"{version}:e"] += 1
        if first_token_ms is not None:
            counts[f"{version}:t{time_bucket(first_token_ms)}"] += 1
        self._waiting[of.key, TOTALS_KEPT_S][f"{version}:n"] += 1

    async def keep(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
            except RedisError as error:
                _log.warning(
                    "request outcomes are waiting to be stored",
                    hashes=len(self._waiting),
                    reason=str(error),
                )

    async def finish(self) -> None:
        """Before the process ends."""
        with contextlib.suppress(RedisError):
            await self.flush()

    async def flush(self) -> None:
        """Give Redis what has been counted. Raises RedisError; then it is kept."""
        if not self._waiting:
            return
        counted, self._waiting = self._waiting, defaultdict(Counter)
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                for (key, kept_s), counts in counted.items():
                    for name, count in counts.items():
                        pipe.hincrby(key, name, count)
                    pipe.expire(key, kept_s)
                await pipe.execute()
        except RedisError:
            for of, counts in counted.items():
                self._waiting[of].update(counts)
            raise

    async def answered(self, of: OfAlias, version: int) -> int:
        """Requests of the version by this alias, ever. Raises RedisError."""
        found: Any = await self._redis.hget(of.key, f"{version}:n")
        return _count(found or b"0")

    async def between(self, of: OfAlias, since_s: float, until_s: float) -> dict[int, Tally]:
        """By version, of requests that ended then (Unix times). Raises RedisError."""
        first, last = int(since_s) // BUCKET_S, int(until_s) // BUCKET_S
        async with self._redis.pipeline(transaction=False) as pipe:
            for bucket in range(first, last + 1):
                pipe.hgetall(f"{of.key}:{bucket}")
            found: list[Mapping[bytes, bytes]] = await pipe.execute()
        tallies: defaultdict[int, Tally] = defaultdict(Tally)
        for name, count in _numbers(found):
            version, _, what = name.partition(":")
            tally = tallies[int(version)]
            if what == "n":
                tally.requests += count
            elif what == "e":
                tally.errors += count
            else:
                tally.times[int(what.removeprefix("t"))] += count
        return tallies


def _numbers(found: Iterable[Mapping[bytes, bytes]]) -> Iterable[tuple[str, int]]:
    for fields in found:
        for name, count in fields.items():
            if _NAME.fullmatch(name) is not None:  # else it is not ours
                yield name.decode(), _count(count)


def _count(raw: bytes) -> int:
    return int(raw) if raw.isdigit() and len(raw) <= _DIGITS_MAX else 0
