"""Pace: how fast the probes may go. While anybody else is served they rest nineteen times as long
as they have computed, counted by the engine's times and threads; the rest lies in Redis, so that
it holds for all workers and through restarts. Knows no version and no question."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_engine.events import EngineStats, UsageRecord
from tenora_engine.sealing import Seal

SHARE = 0.05
"""Of one core's time at most, while anybody else has been served in the last QUIET_S."""

QUIET_S = 60.0
LOOK_S = 2.0  # between two looks whether the others have gone
LOST_S = 1.0
"""What a request counts as that ended without a record of it: most fail before they compute."""

WINDOW_S = 300.0  # of what is told of the share
TOLD_S = 600  # who has told nothing for so long does not probe any more

_REST = "tenora:probing:rest"
_TOLD = "tenora:probing"
_SEALED = "probing"
_REST_MAX_S = 3600.0  # whatever Redis says of others' rests
_log = structlog.get_logger(__name__)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker that probes says of it. `core_s` of the last `window_s`, in which it was as
    it is now: paced or not."""

    is_paced: bool  # others are served
    version: str | None  # that it asks
    core_s: float
    window_s: float
    version_core_s: float | None  # a version's mean, None before the first
    version_s: float | None  # likewise, without rests

    @property
    def share(self) -> float:
        return self.core_s / self.window_s if self.window_s > 0 else 0.0

    def done_in_s(self, waiting: int) -> float | None:
        """Until so many versions are asked, if it goes on as now."""
        if not waiting:
            return 0.0
        if self.version_core_s is None or self.version_s is None:
            return None
        each_s = self.version_core_s / SHARE if self.is_paced else self.version_s
        return waiting * each_s


async def told(redis: Redis, seal: Seal) -> Told | None:
    """None where nobody probes, and for what no worker of ours has said. Raises RedisError."""
    content = seal.open(_SEALED, _TOLD, await redis.get(_TOLD))
    try:
        return None if content is None else msgspec.json.decode(content, type=Told)
    except msgspec.MsgspecError:  # of another version
        return None


class Others:
    """When the engine last served anybody but those who ask for the platform itself. It shows in
    numbers that only rise; of the time before the first look nothing is known, so whatever there
    was counts as new."""

    def __init__(self, own: Collection[str], clock: Callable[[], float]) -> None:
        self._own = own
        self._clock = clock
        self._served = 0
        self._last_s = -math.inf

    def observe(self, stats: EngineStats) -> bool:
        """Whether somebody was served in the last QUIET_S. Nothing of our own may be in flight."""
        meters = [meter for meter in stats.telemetry.meters if meter.tenant not in self._own]
        served = sum(sum(meter.ttft.counts) + sum(meter.finished.values()) for meter in meters)
        in_flight = stats.running or any(
            count for tenant, count in stats.waiting_by_tenant.items() if tenant not in self._own
        )
        if served != self._served or in_flight:
            self._served, self._last_s = served, self._clock()
        return self._clock() - self._last_s < QUIET_S


class Pace:
    """One in each worker. `turn` comes before each request, `spent` after it."""

    def __init__(
        self,
        engine: EngineClient,
        redis: Redis,
        seal: Seal,
        own: Collection[str],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._seal = seal
        self._clock = clock
        self._sleep = sleep
        self._others = Others(own, clock)
        self._is_paced = True
        self._running = 0  # sequences of others, as last seen
        self._threads = 1
        self._began_s = clock()
        # As far as this process knows: Redis may be away, or have been started anew with it.
        self._rest_until_s = clock() + QUIET_S
        self._spent: deque[tuple[float, float]] = deque()  # when, core seconds
        self._version: str | None = None
        self._of_version = [0.0, 0.0]  # core seconds, seconds
        self._means: tuple[float, float] | None = None

    async def turn(self, waits: Callable[[], Awaitable[object]] | None = None) -> None:
        """Return when the next request may be sent: at once where nobody else is served, else when
        the rest is over. `waits` is called again and again meanwhile. Raises EngineError."""
        while True:
            stats = await self._engine.stats()
            self._running, self._threads = stats.running, stats.compute_threads
            self._begin_window(self._others.observe(stats))
            left_s = await self._rest_s() if self._is_paced else 0.0
            await self._tell()
            if left_s <= 0:
                return
            await self._sleep(min(left_s, LOOK_S))
            if waits is not None:
                await waits()

    def _begin_window(self, is_paced: bool) -> None:
        if is_paced != self._is_paced:
            self._is_paced, self._began_s = is_paced, self._clock()
            self._spent.clear()

    async def spent(self, usage: UsageRecord | None) -> None:
        """A request has ended; None: without a record."""
        others = 0
        with contextlib.suppress(EngineError):  # it counts all the same
            others = min(self._running, (await self._engine.stats()).running)
        run_s, work_s = (LOST_S, LOST_S) if usage is None else computed_s(usage, others)
        core_s = work_s * self._threads
        now_s = self._clock()
        self._spent.append((now_s, core_s))
        self._of_version[0] += core_s
        self._of_version[1] += run_s
        await self._rest(core_s / SHARE - run_s)
        await self._tell()

    async def begin(self, version: str) -> None:
        """From now on requests are about this version."""
        self._version, self._of_version = version, [0.0, 0.0]
        await self._tell()

    async def end(self, is_whole: bool) -> None:
        """No more about it. `is_whole`: it was asked all that there is to ask."""
        self._version = None
        if is_whole:
            core_s, run_s = self._of_version
            before = self._means or (core_s, run_s)
            self._means = (0.7 * before[0] + 0.3 * core_s, 0.7 * before[1] + 0.3 * run_s)
        await self._tell()

    async def _rest(self, seconds: float) -> None:
        """Also where nobody else is served yet: who comes meanwhile finds us resting."""
        if seconds <= 0:
            return
        self._rest_until_s = self._clock() + seconds
        await self._in_redis(self._redis.set(_REST, b"1", px=math.ceil(seconds * 1000)))

    async def _rest_s(self) -> float:
        left_ms = await self._in_redis(self._redis.pttl(_REST))
        own_s = self._rest_until_s - self._clock()
        told_s = left_ms / 1000 if isinstance(left_ms, int) else 0.0
        return max(own_s, min(told_s, _REST_MAX_S))

    async def _tell(self) -> None:
        now_s = self._clock()
        while self._spent and self._spent[0][0] < now_s - WINDOW_S:
            self._spent.popleft()
        # What has been spent is paid for by a rest, of which some is still to come.
        until_s = max(now_s, self._rest_until_s) if self._is_paced else now_s
        said = Told(
            is_paced=self._is_paced,
            version=self._version,
            core_s=sum(core_s for _, core_s in self._spent),
            window_s=min(until_s - self._began_s, WINDOW_S),
            version_core_s=None if self._means is None else self._means[0],
            version_s=None if self._means is None else self._means[1],
        )
        raw = self._seal.close(_SEALED, _TOLD, msgspec.json.encode(said), TOLD_S)
        await self._in_redis(self._redis.set(_TOLD, raw, ex=TOLD_S))

    async def _in_redis(self, command: Awaitable[object]) -> object:
        """None where it does not answer: this process keeps its own rest."""
        try:
            return await command
        except (RedisError, OSError):
            _log.warning("Redis does not answer; this process paces its probes on its own")
            return None


def computed_s(usage: UsageRecord, others: int) -> tuple[float, float]:
    """Seconds from a request's start to its end, without what it waited for, and what it had of
    them where `others` were decoded in the same steps all the time: its prompt's share of a step is
    not told, so that counts whole."""
    waited_s = max(sum(part.ms for part in usage.waits), usage.queue_ms) / 1000
    run_s = max(usage.finished_s - usage.arrival_s - waited_s, 0.0)
    first_s = usage.finished_s if usage.first_token_s is None else usage.first_token_s
    decode_s = min(max(usage.finished_s - first_s, 0.0), run_s)
    return run_s, run_s - decode_s + decode_s / (1 + others)
