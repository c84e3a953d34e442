"""Takes the engine's events to the requests they belong to: the part of an EngineClient that is the
same wherever the engine runs. Lives on one asyncio loop; knows neither sockets nor threads."""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

from tenora_engine.client import AbortReason
from tenora_engine.errors import EngineError, EngineUnavailableError, InvalidRequestError
from tenora_engine.events import EndEvent, FinishEvent, SequenceEvent
from tenora_engine.request import GenerationRequest


class EventStream:
    """The events of one request on their way to its reader. Holds at most what the request may
    generate (`n * max_tokens` tokens)."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request_id = request.request_id
        self.unfinished = request.sampling.n  # sequences of which no FinishEvent has come
        self._events: deque[SequenceEvent] = deque()
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def engine_has_it(self) -> bool:
        """Whether the engine may still be running some of it."""
        return self.unfinished > 0 and self._error is None

    def put(self, event: SequenceEvent) -> None:
        self._events.append(event)
        if isinstance(event, FinishEvent):
            self.unfinished -= 1
        self._wake()

    def fail(self, error: EngineError) -> None:
        """The first error says why; what follows from it does not."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def next(self) -> SequenceEvent | None:
        """The next event, None after the last; for one reader. Raises what `fail` was given, after
        the events that came before it."""
        while not self._events:
            if self.unfinished == 0:
                return None
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()


class RequestRouter:
    """The streams of the requests in flight, by request id."""

    def __init__(self) -> None:
        self._streams: dict[str, EventStream] = {}

    def open(self, request: GenerationRequest) -> EventStream:
        """Raises InvalidRequestError when a request of that id is in flight."""
        if request.request_id in self._streams:
            raise InvalidRequestError(
                f"a request with the id {request.request_id!r} is already in flight", "request_id"
            )
        stream = EventStream(request)
        self._streams[request.request_id] = stream
        return stream

    def close(self, stream: EventStream) -> None:
        self._streams.pop(stream.request_id, None)

    def dispatch(self, events: Iterable[SequenceEvent]) -> None:
        """Events of requests that nobody reads any more are dropped."""
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is not None:
                stream.put(event)

    def refuse(self, request_id: str, error: EngineError) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.fail(error)

    def fail_all(self, error: EngineError) -> None:
        """The engine is gone, and with it all that ran."""
        for stream in self._streams.values():
            stream.fail(error)


class RoutedClient(abc.ABC):
    """`submit` and `abort` of an EngineClient over two sends, which never wait."""

    def __init__(self) -> None:
        self._router = RequestRouter()

    @abc.abstractmethod
    def _check_ready(self) -> None:
        """Raises EngineUnavailableError unless the engine can be reached."""

    @abc.abstractmethod
    def _send_submit(self, request: GenerationRequest) -> None: ...

    @abc.abstractmethod
    def _send_abort(
        self,
        request_id: str,
        index: int | None,
        reason: AbortReason,
        output_tokens: int | None,
    ) -> None:
        """Does nothing when the engine is gone."""

    async def submit(self, request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        """See `EngineClient.submit`. Raises EngineUnavailableError in mid-stream too, when the
        engine dies."""
        self._check_ready()
        stream = self._router.open(request)
        try:
            self._send_submit(request)
            while (event := await stream.next()) is not None:
                yield event
        finally:
            self._router.close(stream)
            if stream.engine_has_it:
                self._send_abort(request.request_id, None, "client_gone", None)

    async def abort(
        self,
        request_id: str,
        index: int | None = None,
        reason: AbortReason = "client_gone",
        output_tokens: int | None = None,
    ) -> None:
        """See `EngineClient.abort`."""
        self._send_abort(request_id, index, reason, output_tokens)


def stopped_error() -> EngineUnavailableError:
    return EngineUnavailableError("the engine has been stopped; restart it")


class ActiveRequests:
    """Which requests an engine still runs, and whose they are."""

    def __init__(self) -> None:
        self._unfinished: dict[str, int] = {}  # request id -> sequences
        self._owner: dict[str, bytes] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._unfinished

    def __len__(self) -> int:
        return len(self._unfinished)

    def add(self, request: GenerationRequest, owner: bytes = b"") -> None:
        self._unfinished[request.request_id] = request.sampling.n
        self._owner[request.request_id] = owner

    def owner(self, request_id: str) -> bytes | None:
        return self._owner.get(request_id)

    def of(self, owner: bytes) -> list[str]:
        return [request_id for request_id, whose in self._owner.items() if whose == owner]

    def all(self) -> list[str]:
        return list(self._unfinished)

    def remove(self, request_id: str) -> None:
        self._unfinished.pop(request_id, None)
        self._owner.pop(request_id, None)

    def note_end(self, event: EndEvent) -> None:
        """One sequence ended, or a body was settled. A request goes when all of its sequences have
        ended and what they come to is known: until then an abort may settle it."""
        ended = {record.request_id for record in event.billed}
        if isinstance(event, FinishEvent) and event.request_id in self._unfinished:
            self._unfinished[event.request_id] -= 1
        for request_id in ended:
            if self._unfinished.get(request_id, 0) <= 0:
                self.remove(request_id)
