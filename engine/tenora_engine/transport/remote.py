"""RemoteEngineClient: an engine process reached through its socket. It neither starts nor ends that
process; `process` adds this."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import msgspec

from tenora_engine.client import AbortReason
from tenora_engine.config import ModelInfo
from tenora_engine.errors import EngineError, EngineUnavailableError, InvalidRequestError
from tenora_engine.events import AdapterFootprint, EngineStats, EngineTotals, Metered, Residency
from tenora_engine.pages import ArenaPages, Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport import messages as m
from tenora_engine.transport.address import MESSAGE_MAX_BYTES, EngineAddress
from tenora_engine.transport.heartbeat import Heartbeat
from tenora_engine.transport.link import EngineLink
from tenora_engine.transport.routing import RoutedClient, stopped_error
from tenora_engine.transport.wire import (
    ANSWER_MAX_S,
    PING_S,
    decode_from_engine,
    encode,
)

_CALL_TIMEOUT_S = 30.0
_CALLS_MAX = 10_000

T = TypeVar("T")
_log = logging.getLogger(__name__)


class RemoteEngineClient(RoutedClient):
    """An EngineClient over one EngineLink. Several may share one engine; each may start before the
    engine does, and is ready again by itself when another engine has taken its place there.
    Without a `text_factory` it has no `text`, for who makes none; with `late_text` it is made when
    it is first asked for, for who seldom needs it."""

    def __init__(
        self,
        address: EngineAddress,
        model_folder: str,
        text_factory: Callable[[str], TextProcessor] | None = TextProcessor,
        start_timeout_s: float = 600.0,
        *,
        late_text: bool = False,
    ) -> None:
        super().__init__()
        self._late_text = late_text
        self._address = address
        self._model_folder = model_folder
        self._text_factory = text_factory
        self._start_timeout_s = start_timeout_s
        self._text: TextProcessor | None = None
        self._model: ModelInfo | None = None
        self._link: EngineLink | None = None
        self._heartbeat: Heartbeat | None = None
        self._known_as = b""  # by the engine, while it knows us
        self._read_bytes = 0  # since it has
        self._beat_timer: asyncio.TimerHandle | None = None
        self._beat_s = 0.0
        self._calls: dict[int, asyncio.Future[object]] = {}
        self._call_numbers = itertools.count()
        self._is_ready = asyncio.Event()  # the engine knows us; `_silent`: but says nothing now
        self._silent = False
        self._refuses: str | None = None
        self._heard_s = 0.0
        self._stopped = asyncio.Event()
        self._said_goodbye = asyncio.Event()

    @property
    def address(self) -> EngineAddress:
        """What another process needs to share the engine."""
        return self._address

    @property
    def model(self) -> ModelInfo:
        if self._model is None:
            raise EngineUnavailableError("the engine has not been started")
        return self._model

    @property
    def text(self) -> TextProcessor:
        if self._text is None and self._late_text and self._text_factory is not None:
            self._text = self._text_factory(self._model_folder)
        if self._text is None:
            raise EngineUnavailableError("the engine's client has no text, or was not started")
        return self._text

    @property
    def ready(self) -> bool:
        return self._is_ready.is_set() and not self._silent

    @property
    def refuses(self) -> str | None:
        """See `EngineClient`; as the engine said a second ago."""
        return self._refuses

    async def start(self) -> None:
        """Wait until the engine serves; it may be started after this. Raises ModelLoadError when
        the model folder has no tokenizer, EngineUnavailableError when none answers in time."""
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        self._connect()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                if self._text_factory is not None and not self._late_text:
                    self._text = await asyncio.to_thread(self._text_factory, self._model_folder)
                await self._is_ready.wait()
        except TimeoutError:
            raise EngineUnavailableError(
                f"no engine answered at {self._address.endpoint} within"
                f" {self._start_timeout_s:g} s: {self._what_is_there()}"
            ) from None

    def _what_is_there(self) -> str:
        if self._link is not None and self._link.connected:
            return "the process listening there is still loading, or expects another token"
        if self._link is not None and self._link.refused:
            return "the process listening there expects other keys"
        return "nothing listens there"

    async def stop(self) -> None:
        """Leave the engine; what this client still runs there is aborted."""
        if self._link is not None and not self._stopped.is_set():
            self._link.send(encode(m.Bye()))
        self._stopped.set()
        self._disconnect(stopped_error())

    async def forget_adapter(
        self, namespace: str, digest: str, *, device_only: bool = False
    ) -> None:
        """See `EngineClient`. An engine that is away holds nothing to forget."""
        self._send(m.Forget(namespace, digest, device_only))

    async def forget_namespace(self, namespace: str) -> None:
        """See `EngineClient`. An engine that is away holds nothing to forget."""
        self._send(m.ForgetNamespace(namespace))

    async def residency(self, adapter: AdapterRef) -> Residency:
        answer = await self._call(lambda call: m.AskResidency(call, adapter))
        return cast(Residency, answer)

    async def residencies(self, digests: Sequence[str]) -> Mapping[str, Residency]:
        """See `EngineClient`."""
        answer = await self._call(lambda call: m.AskResidencies(call, [*digests]))
        return cast(dict[str, Residency], answer)

    async def footprint(self, ranks: Mapping[str, Sequence[int]]) -> AdapterFootprint:
        """See `EngineClient`."""
        asked = {module: [*layers] for module, layers in ranks.items()}
        return cast(AdapterFootprint, await self._call(lambda call: m.AskFootprint(call, asked)))

    async def stats(self) -> EngineStats:
        return cast(EngineStats, await self._call(m.AskStats))

    async def usage_totals(self, since: str) -> EngineTotals:
        """See `EngineClient`."""
        answer = await self._call(lambda call: m.AskTotals(call, since))
        return cast(EngineTotals, answer)

    async def pages(self, namespace: str = "") -> ArenaPages:
        answer = await self._call(lambda call: m.AskPages(call, namespace))
        return cast(ArenaPages, answer)

    async def set_pins(self, pins: Sequence[Pin]) -> Sequence[PinState]:
        answer = await self._call(lambda call: m.SetPins(call, list(pins)))
        return cast(list[PinState], answer)

    async def evict_adapter(self, namespace: str, digest: str) -> int:
        answer = await self._call(lambda call: m.EvictAdapter(call, namespace, digest))
        return cast(int, answer)

    async def unacknowledged_usage(self) -> Sequence[Metered]:
        """See `EngineClient`; waits through restarts of the engine. Raises EngineUnavailableError
        once this client has been stopped."""
        while not self._stopped.is_set():
            await self._ready_or_stopped()
            try:
                answer = await self._call(m.AskUsage, timeout_s=None)
            except EngineUnavailableError:
                continue
            return cast(list[Metered], answer)
        raise stopped_error()

    async def acknowledge_usage(self, event_ids: Sequence[str]) -> None:
        """See `EngineClient`. When the engine is away this is lost, and the records come again."""
        self._send(m.AcknowledgeUsage(list(event_ids)))

    async def _ready_or_stopped(self) -> None:
        waits = [asyncio.ensure_future(e.wait()) for e in (self._is_ready, self._stopped)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _call(
        self, message: Callable[[int], m.ToEngine], timeout_s: float | None = _CALL_TIMEOUT_S
    ) -> object:
        """Send a question and wait for its answer. Raises EngineUnavailableError."""
        self._check_connected()
        if len(self._calls) >= _CALLS_MAX:
            raise EngineUnavailableError(f"{_CALLS_MAX} calls to the engine are already waiting")
        number = next(self._call_numbers)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            self._send(message(number))
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise EngineUnavailableError(
                f"the engine did not answer within {timeout_s} s"
            ) from None
        finally:
            self._calls.pop(number, None)

    def _check_ready(self) -> None:
        self._check_connected()
        if self._silent:
            raise EngineUnavailableError("the engine does not answer; try again later")

    def _check_connected(self) -> None:
        if self._stopped.is_set():
            raise stopped_error()
        if not self._is_ready.is_set():
            raise EngineUnavailableError("the engine is not ready; try again later")

    def _send_submit(self, request: GenerationRequest) -> None:
        self._send(m.Submit(request))

    def _send_abort(
        self,
        request_id: str,
        index: int | None,
        reason: AbortReason,
        output_tokens: int | None,
    ) -> None:
        self._send(m.Abort(request_id, index, reason, output_tokens))

    def _send(self, message: m.ToEngine) -> None:
        """Queue for sending; dropped when the engine is away, which has told all who wait. One that
        is silent reads it when it goes on. Raises InvalidRequestError for what no message can hold:
        that is its sender's trouble alone."""
        if not self._is_ready.is_set():
            return
        try:
            data = encode(message)
        except (
            OverflowError,
            TypeError,
            ValueError,
            RecursionError,
            msgspec.MsgspecError,
        ) as error:
            raise InvalidRequestError(f"a value cannot be sent to the engine: {error}") from error
        if len(data) > MESSAGE_MAX_BYTES:  # it would end the connection, and all that runs by it
            raise InvalidRequestError(
                f"the request takes {len(data)} bytes on its way to the engine, at most "
                f"{MESSAGE_MAX_BYTES} are possible; shorten it"
            )
        if self._link is not None and not self._link.send(data):
            self._lost(EngineUnavailableError("the engine does not accept messages any more"))

    def _connect(self) -> None:
        self._said_goodbye.clear()
        self._link = EngineLink(
            self._address, self._take_data, self._note_connection, self._note_failure
        )
        self._heartbeat = Heartbeat(self._address)
        self._beat_s = time.monotonic()
        self._beat()

    def _disconnect(self, error: EngineError) -> None:
        self._lost(error)
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None
        if self._link is not None:
            self._link.close()
            self._link = None

    def _note_connection(self, there_is_one: bool) -> None:
        """The engine does not know us through another connection than before: nobody could take
        what runs over to it."""
        if self._is_ready.is_set():
            self._lost(EngineUnavailableError("the engine has disconnected; try again later"))
        if there_is_one:
            self._say_hello()

    def _note_failure(self, error: Exception) -> None:
        """This client is not ready, all who wait are told, the engine ends what it runs for us,
        and with the next Hello it begins anew."""
        _log.error("the connection to the engine failed and is being restored", exc_info=error)
        self._lost(EngineUnavailableError(f"the connection to the engine failed: {error}"))
        if self._link is not None:
            self._link.send(encode(m.Bye()))

    def _say_hello(self) -> None:
        if self._link is not None:
            self._link.send(encode(m.Hello(self._address.token)))

    def _beat(self) -> None:
        """Each second Hello until the engine answers, then Ping, answered with Pong, or with
        Unknown by one that does not know this client any more; and see whether it does answer."""
        self._beat_timer = asyncio.get_running_loop().call_later(PING_S, self._beat)
        now = time.monotonic()
        stood_still, self._beat_s = now - self._beat_s > 2 * PING_S, now
        if stood_still:
            self._heard_s = now  # it was us who stood still: what came meanwhile is not read
        self._judge_silence(now - self._heard_s)
        if self._heartbeat is not None:
            self._heartbeat.vouch(self._known_as)
        if not self._is_ready.is_set():
            self._say_hello()
        elif self._link is not None:
            self._link.send(encode(m.Ping(self._read_bytes)))

    def _take_data(self, data: bytes) -> None:
        self._read_bytes += len(data)
        try:
            message = decode_from_engine(data)
        except msgspec.MsgspecError as error:
            _log.error("a message from the engine cannot be read: %s", error)
            return
        self._take(message)

    def _judge_silence(self, silent_s: float) -> None:
        """Nothing has come for so long. What runs is not given up: the engine may go on."""
        if self._is_ready.is_set() and not self._silent and silent_s > ANSWER_MAX_S:
            _log.error("the engine has not answered for %.1f s", silent_s)
            self._silent = True

    def _note_heard(self) -> None:
        self._heard_s = time.monotonic()
        if self._silent:
            _log.warning("the engine answers again")
            self._silent = False

    def _take(self, message: m.FromEngine) -> None:
        self._note_heard()
        if isinstance(message, m.Pong):
            self._note_refusing(message.refuses)
            return
        if isinstance(message, m.Events):
            self._router.dispatch(message.events)
        elif isinstance(message, m.Refused):
            self._router.refuse(message.request_id, m.to_error(message.error))
        elif isinstance(message, m.Ready):
            self._model = message.model
            self._known_as, self._read_bytes = message.client, 0
            self._is_ready.set()
        elif isinstance(message, m.Goodbye):
            self._lost(stopped_error())
            self._said_goodbye.set()
        elif isinstance(message, m.Unknown):
            self._lost(EngineUnavailableError("the engine no longer knows this client"))
            self._say_hello()
        else:
            self._answer(message)

    def _note_refusing(self, reason: str | None) -> None:
        if (reason is None) != (self._refuses is None):
            _log.warning(
                "the engine accepts %s",
                "new requests again" if reason is None else f"no new requests: {reason}",
            )
        self._refuses = reason

    def _answer(
        self,
        message: m.ResidencyIs
        | m.ResidenciesAre
        | m.FootprintIs
        | m.StatsAre
        | m.UsageIs
        | m.TotalsAre
        | m.PagesAre
        | m.PinsAre
        | m.Evicted
        | m.CallFailed,
    ) -> None:
        future = self._calls.get(message.call)
        if future is None or future.done():
            return
        if isinstance(message, m.CallFailed):
            future.set_exception(m.to_error(message.error))
        elif isinstance(message, m.UsageIs):
            future.set_result([*message.value, *message.occupancy])
        else:
            future.set_result(message.value)

    def _lost(self, error: EngineError) -> None:
        """The engine, or its knowledge of this client, is gone: all that waited for it fails."""
        self._is_ready.clear()
        self._known_as = b""
        self._silent = False
        self._refuses = None
        self._router.fail_all(error)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
