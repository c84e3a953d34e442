"""InProcessEngineClient: the engine on a thread of this process. For tests and small tools; a
server uses `process`, so that the engine's steps and the API do not share one interpreter lock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from tenora_engine.client import AbortReason
from tenora_engine.config import EngineConfig, ModelInfo
from tenora_engine.engine import Engine, build_engine
from tenora_engine.errors import DeadlineError, EngineError, EngineUnavailableError
from tenora_engine.events import (
    AdapterFootprint,
    EndEvent,
    EngineStats,
    EngineTotals,
    Event,
    FinishEvent,
    Metered,
    Residency,
    SequenceEvent,
    TokenEvent,
    UsageRecord,
)
from tenora_engine.loop import EngineLoop
from tenora_engine.pages import ArenaPages, Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.text.processor import TextProcessor
from tenora_engine.threads import call_in_ending_thread
from tenora_engine.transport.hours import OccupancyHours
from tenora_engine.transport.keeper import UsageKeeper
from tenora_engine.transport.messages import error_info, to_error
from tenora_engine.transport.outbox import UsageOutbox, usage_of
from tenora_engine.transport.routing import ActiveRequests, RoutedClient, stopped_error

_log = logging.getLogger(__name__)

_DRAIN_S = 5.0  # how long `stop` waits for aborted requests to be metered


class InProcessEngineClient(RoutedClient):
    """An EngineClient whose engine lives here. `engine_factory` makes the engine from the config;
    `text_factory` the TextProcessor from the model folder."""

    def __init__(
        self,
        config: EngineConfig,
        engine_factory: Callable[[EngineConfig], Engine] = build_engine,
        text_factory: Callable[[str], TextProcessor] = TextProcessor,
    ) -> None:
        super().__init__()
        self._config = config
        self._engine_factory = engine_factory
        self._text_factory = text_factory
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._loop: EngineLoop | None = None
        self._text: TextProcessor | None = None
        self._keeper: UsageKeeper | None = None
        self._hours: OccupancyHours | None = None  # its record is made at the end
        self._active = ActiveRequests()
        self._idle = asyncio.Event()
        self._usage_waits = asyncio.Event()
        self._ready = False
        self._stopped = False

    @property
    def model(self) -> ModelInfo:
        return self._running_loop().engine.config.model

    @property
    def text(self) -> TextProcessor:
        if self._text is None:
            raise EngineUnavailableError("the engine has not been started")
        return self._text

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def refuses(self) -> str | None:
        """See `EngineClient`."""
        return None if self._keeper is None else self._keeper.trouble

    async def start(self) -> None:
        self._asyncio = asyncio.get_running_loop()
        self._text, engine = await asyncio.gather(
            asyncio.to_thread(self._text_factory, self._config.model),
            asyncio.to_thread(call_in_ending_thread, lambda: self._engine_factory(self._config)),
        )
        directory = self._config.outbox_dir
        outbox = UsageOutbox(Path(directory) if directory is not None else None)
        if outbox.pending:
            self._usage_waits.set()
        self._keeper = UsageKeeper(outbox)
        self._hours = OccupancyHours(engine, self._keeper.append)
        self._loop = EngineLoop(engine, self._hand_over, self._hand_over_end)
        self._loop.start()
        self._ready = True

    async def stop(self) -> None:
        """Abort what runs, wait until it is metered, end the engine's thread."""
        if self._loop is None or self._keeper is None or self._stopped:
            return
        self._stopped, self._ready = True, False
        for request_id in self._active.all():
            self._send_abort(request_id, None, "client_gone", None)
        try:
            async with asyncio.timeout(_DRAIN_S):
                while len(self._active):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            self._router.fail_all(EngineUnavailableError("the engine did not stop in time"))
        await asyncio.to_thread(self._loop.stop)
        if self._hours is not None:
            self._hours.end()
        await asyncio.to_thread(self._keeper.close)
        self._router.fail_all(stopped_error())
        self._usage_waits.set()

    async def forget_adapter(
        self, namespace: str, digest: str, *, device_only: bool = False
    ) -> None:
        await asyncio.wrap_future(
            self._running_loop().forget_adapter(namespace, digest, device_only=device_only)
        )

    async def forget_namespace(self, namespace: str) -> None:
        await asyncio.wrap_future(self._running_loop().forget_namespace(namespace))

    async def residency(self, adapter: AdapterRef) -> Residency:
        return await asyncio.wrap_future(self._running_loop().residency(adapter))

    async def residencies(self, digests: Sequence[str]) -> Mapping[str, Residency]:
        return await asyncio.wrap_future(self._running_loop().residencies(digests))

    async def footprint(self, ranks: Mapping[str, Sequence[int]]) -> AdapterFootprint:
        return await asyncio.wrap_future(self._running_loop().footprint(ranks))

    async def stats(self) -> EngineStats:
        return await asyncio.wrap_future(self._running_loop().stats())

    async def pages(self, namespace: str = "") -> ArenaPages:
        snapshot = await asyncio.wrap_future(self._running_loop().pages(namespace))
        return await asyncio.to_thread(snapshot.describe)

    async def set_pins(self, pins: Sequence[Pin]) -> Sequence[PinState]:
        return await asyncio.wrap_future(self._running_loop().set_pins(pins))

    async def evict_adapter(self, namespace: str, digest: str) -> int:
        return await asyncio.wrap_future(self._running_loop().evict_adapter(namespace, digest))

    async def usage_totals(self, since: str) -> EngineTotals:
        if self._keeper is None:
            raise EngineUnavailableError("the engine has not been started")
        return await asyncio.wrap_future(self._keeper.totals(since))

    async def unacknowledged_usage(self) -> Sequence[Metered]:
        """See `EngineClient`. Raises EngineUnavailableError once the client has been stopped."""
        while not self._stopped:
            await self._usage_waits.wait()
            if self._keeper is not None and not self._stopped:
                self._usage_waits.clear()
                records = await asyncio.wrap_future(self._keeper.oldest())
                if records:
                    self._usage_waits.set()
                    return records
        raise stopped_error()

    async def acknowledge_usage(self, event_ids: Sequence[str]) -> None:
        if self._keeper is not None and not self._stopped:
            await asyncio.wrap_future(self._keeper.acknowledge(event_ids))

    def _running_loop(self) -> EngineLoop:
        if self._loop is None:
            raise EngineUnavailableError("the engine has not been started")
        return self._loop

    def _check_ready(self) -> None:
        if not self._ready:
            raise EngineUnavailableError("the engine is not running")

    def _send_submit(self, request: GenerationRequest) -> None:
        if self.refuses is not None:
            raise EngineUnavailableError(self.refuses)
        future = self._running_loop().submit(request)
        self._active.add(request)
        future.add_done_callback(lambda done: self._later(self._note_submitted, request, done))

    def _note_submitted(self, request: GenerationRequest, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._active.remove(request.request_id)
            self._router.refuse(request.request_id, to_error(error_info(error)))

    def _send_abort(
        self,
        request_id: str,
        index: int | None,
        reason: AbortReason,
        output_tokens: int | None,
    ) -> None:
        if self._loop is not None and self._loop.alive:
            try:
                self._loop.abort(request_id, index, reason, output_tokens)
            except EngineUnavailableError:
                return  # it ends at this moment, and everything with it

    def _later(self, call: Callable[..., None], *arguments: object) -> None:
        """Go on from the engine's thread to the asyncio loop, if that still runs."""
        if self._asyncio is not None and not self._asyncio.is_closed():
            self._asyncio.call_soon_threadsafe(call, *arguments)

    def _hand_over(self, events: list[Event]) -> None:
        self._later(self._take_events, events)

    def _hand_over_end(self, failure: BaseException | None) -> None:
        self._later(self._note_end, failure)

    def _take_events(self, events: list[Event]) -> None:
        """As EngineServer does."""
        tokens: list[SequenceEvent] = []
        ends: list[EndEvent] = []
        for event in events:
            if isinstance(event, TokenEvent):
                tokens.append(event)
            elif isinstance(event, EndEvent):
                ends.append(event)
            else:
                error = DeadlineError(event.message, event.retry_after_ms)
                self._active.remove(event.request_id)
                self._idle.set()
                self._router.refuse(event.request_id, error)
        self._router.dispatch(tokens)
        if ends:
            self._when_written(usage_of(ends), self._take_ends, ends)

    def _take_ends(self, ends: list[EndEvent]) -> None:
        for event in ends:
            self._active.note_end(event)
        self._idle.set()
        self._usage_waits.set()
        self._router.dispatch(event for event in ends if isinstance(event, FinishEvent))

    def _when_written(
        self, records: list[UsageRecord], call: Callable[..., None], *arguments: object
    ) -> None:
        """Go on here when the records are on the disk, and all that came before them."""

        def written(done: Future[None]) -> None:
            error = done.exception()
            if error is not None:
                _log.error("usage records were lost", exc_info=error)
            self._later(call, *arguments)

        assert self._keeper is not None
        self._keeper.append(records).add_done_callback(written)

    def _note_end(self, failure: BaseException | None) -> None:
        self._ready = False
        self._when_written([], self._fail_all, failure)

    def _fail_all(self, failure: BaseException | None) -> None:
        error: EngineError = stopped_error()
        if failure is not None:
            error = EngineUnavailableError(f"the engine ended with an error: {failure!r}")
        for request_id in self._active.all():
            self._active.remove(request_id)
        self._idle.set()
        self._router.fail_all(error)
