"""All who listen in this process: what is heard of changes and what the sources give is put into
their streams. While nobody listens nothing is done. Knows no route and no request."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import structlog

from tenora_engine.errors import EngineError
from tenora_platform.errors import UnavailableError
from tenora_platform.live import wire
from tenora_platform.live.changes import EVERYBODY, Changes
from tenora_platform.live.sources import Source
from tenora_platform.live.stream import Stream
from tenora_platform.live.topics import SHARED, TOPICS
from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import log_failure
from tenora_platform.task_groups import task_group

STREAMS_MAX = 500
"""In one process, as the two that follow."""
STREAMS_PER_TENANT = 50
STREAMS_PER_CALLER = 12
"""Of one key or person, at one place: so many tabs of a browser."""
_LISTENING_S = 1.0  # most that a new listener waits for Redis
_log = structlog.get_logger(__name__)


class Hub:
    """`keep` must run beside it."""

    def __init__(self, changes: Changes, metrics: Metrics) -> None:
        self._changes = changes
        self._metrics = metrics
        self._streams: dict[Stream, None] = {}
        self._latest: dict[str, tuple[Source, bytes]] = {}
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._listening = asyncio.Event()

    @asynccontextmanager
    async def joined(self, stream: Stream) -> AsyncIterator[None]:
        """It is told of everything for as long as the block runs. Raises UnavailableError (503)
        where there are too many already."""
        self._refuse_too_many(stream)
        self._streams[stream] = None
        self._metrics.live_streams.inc()
        for source, event in self._latest.values():
            if source.repeats and source.is_for(stream.role):
                stream.send(event)
        self._none.clear()
        self._some.set()
        try:
            with contextlib.suppress(TimeoutError):  # what changes from here on is heard
                async with asyncio.timeout(_LISTENING_S):
                    await self._listening.wait()
            yield
        finally:
            del self._streams[stream]
            self._metrics.live_streams.dec()
            if not self._streams:
                self._some.clear()
                self._none.set()

    def end_all(self) -> None:
        """The server stops: streams end now, and browsers connect to another process."""
        for stream in self._streams:
            stream.end("server_stops", "The server is shutting down; connect again.")

    async def finish(self) -> None:
        """Others are told what was committed here, before Redis is closed."""
        await self._changes.finish()

    async def keep(self, sources: Sequence[Source], begin: Callable[[Source], Sampling]) -> None:
        """For ever: while somebody listens, hear what changes and sample the sources."""
        while True:
            await self._some.wait()
            async with task_group() as tasks:
                working = [tasks.create_task(self._changes.listen(self._heard, self._listening))]
                for source in sources:
                    working.append(tasks.create_task(self._sample(source, begin(source))))
                await self._none.wait()
                for each in working:
                    each.cancel()
            self._latest.clear()

    def _refuse_too_many(self, stream: Stream) -> None:
        callers = Counter((each.tenant_id, each.who) for each in self._streams)
        tenants = Counter(each.tenant_id for each in self._streams if each.tenant_id)
        if (
            len(self._streams) >= STREAMS_MAX
            or callers[stream.tenant_id, stream.who] >= STREAMS_PER_CALLER
            or tenants[stream.tenant_id or ""] >= STREAMS_PER_TENANT
        ):
            raise UnavailableError(
                "Too many live streams are open, for this tenant or in total. Close some "
                "browser tabs; pages without live updates can still be reloaded.",
                code="too_many_streams",
            )

    def _heard(self, whose: str | None, heard: frozenset[str]) -> None:
        topics = heard & TOPICS
        if not topics:
            return
        for stream in self._streams:
            if stream.tenant_id is None or whose in (EVERYBODY, stream.tenant_id):
                stream.change(topics)
            elif whose is None and topics & SHARED:
                stream.change(topics & SHARED)

    async def _sample(self, source: Source, sample: Sampling) -> None:
        while True:
            event = await self._sampled(source, sample)
            if event is not None:
                self._latest[source.name] = (source, event)
                for stream in self._streams:
                    if source.is_for(stream.role):
                        stream.send(event)
            await asyncio.sleep(source.every_s)

    async def _sampled(self, source: Source, sample: Sampling) -> bytes | None:
        if not any(source.is_for(stream.role) for stream in self._streams):
            return None
        try:
            found = await sample()
        except EngineError:
            return None  # the source `engine` says that it is away
        except Exception as error:
            log_failure(_log, "nothing to show", error, source=source.name)
            return None
        return None if found is None else wire.event(source.name, found)


Sampling = Callable[[], Awaitable[object | None]]
