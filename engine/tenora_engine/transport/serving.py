"""EngineServer: carries messages between any number of clients and one EngineLoop. Knows no text,
no HTTP and nothing of how the process came to be (`server`)."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from tenora_engine.clocks import steady
from tenora_engine.errors import (
    DeadlineError,
    EngineError,
    EngineUnavailableError,
    InvalidRequestError,
)
from tenora_engine.events import (
    EndEvent,
    Event,
    FinishEvent,
    Metered,
    OccupancyRecord,
    RefusedEvent,
    SequenceEvent,
    TokenEvent,
    UsageRecord,
)
from tenora_engine.loop import EngineLoop
from tenora_engine.transport import messages as m
from tenora_engine.transport.clients import Clients
from tenora_engine.transport.hours import OccupancyHours
from tenora_engine.transport.keeper import UsageKeeper
from tenora_engine.transport.outbox import UsageOutbox, usage_of
from tenora_engine.transport.routing import ActiveRequests
from tenora_engine.transport.usage_desk import UsageDesk
from tenora_engine.transport.wire import PING_S, decode_to_engine, encode

if TYPE_CHECKING:  # torch comes with it
    from tenora_engine.engine import Engine

_DRAIN_S = 5.0  # how long a stopping engine waits for aborted requests to be metered
_POLL_MS = 500  # at most, for silence and leases are looked at between two polls
_RECEIVE_S = 0.01  # for messages of clients, or for one; then what has been handed over is sent
_WAKE_UPS_MAX = 65_536  # what a pipe holds; what is left in a larger one wakes us once more

_log = logging.getLogger(__name__)

_QUESTIONS: dict[type, tuple[Callable[[EngineLoop, Any], Future[Any]], type[Any]]] = {
    m.AskResidency: (lambda loop, asked: loop.residency(asked.adapter), m.ResidencyIs),
    m.AskResidencies: (lambda loop, asked: loop.residencies(asked.digests), m.ResidenciesAre),
    m.AskFootprint: (lambda loop, asked: loop.footprint(asked.ranks), m.FootprintIs),
    m.AskStats: (lambda loop, _: loop.stats(), m.StatsAre),
    m.SetPins: (lambda loop, asked: loop.set_pins(asked.pins), m.PinsAre),
    m.EvictAdapter: (lambda loop, of: loop.evict_adapter(of.namespace, of.digest), m.Evicted),
}
"""How the loop answers each question, and in which message that goes back."""


class EngineServer:
    """Carries messages between clients and an EngineLoop. All of it runs on one thread, save
    `stop` and what the loop hands over, which go through `_later`."""

    def __init__(self, socket: zmq.Socket[bytes], token: str, outbox: UsageOutbox) -> None:
        self._socket = socket
        self._token = token
        self._keeper = UsageKeeper(outbox)
        self._desk = UsageDesk(self._keeper, self._later, self._answer_usage)
        self._active = ActiveRequests()
        self._clients = Clients()
        self._handed: deque[Callable[[], None]] = deque()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._loop: EngineLoop | None = None
        self._stop_by_s: float | None = None
        self._turn_s = steady()
        self._ended = False
        self._failure: BaseException | None = None

    def serve(self, engine: Engine) -> BaseException | None:
        """Serve until `stop` is called or the engine fails; returns what it failed with."""
        self._loop = EngineLoop(engine, self._hand_over, self._hand_over_end)
        self._loop.start()
        hours = OccupancyHours(engine, self._keeper.append)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        while not self._is_over():
            ready = dict(poller.poll(_POLL_MS))
            self._run_handed()
            if self._socket in ready:
                self._receive()
            self._look_after_clients()
            self._desk.end_leases()
            hours.look()
        if self._failure is None:  # else what hangs in it must not keep the process
            self._loop.stop()
        self._run_handed()
        hours.end()
        self._keeper.close(_DRAIN_S)  # all has been written then, and is shown by the next line
        self._run_handed()
        if self._failure is None:
            for client in self._clients:
                self._send(client, m.Goodbye())
        return self._failure

    def stop(self) -> None:
        """Abort what runs, meter it, then end. From any thread or a signal handler."""
        self._later(self._begin_stop)

    def _begin_stop(self) -> None:
        if self._stop_by_s is None:
            self._stop_by_s = steady() + _DRAIN_S
            for request_id in self._active.all():
                self._abort(request_id)

    def _is_over(self) -> bool:
        if self._ended or self._stop_by_s is None:
            return self._ended
        return not len(self._active) or steady() > self._stop_by_s

    # From other threads.

    def _later(self, call: Callable[[], None]) -> None:
        self._handed.append(call)
        try:
            os.write(self._wake_in, b"\0")
        except BlockingIOError:
            return  # the pipe is full of wake-ups already

    def _hand_over(self, events: list[Event]) -> None:
        self._later(lambda: self._send_events(events))

    def _hand_over_end(self, failure: BaseException | None) -> None:
        self._later(lambda: self._note_end(failure))

    def _run_handed(self) -> None:
        with contextlib.suppress(BlockingIOError):  # something else woke us
            os.read(self._wake_out, _WAKE_UPS_MAX)
        while self._handed:
            self._handed.popleft()()

    # Towards the clients.

    def _send_events(self, events: list[Event]) -> None:
        """Tokens at once; what has finished when its usage is on the disk, for which nothing else
        waits."""
        ends: list[EndEvent] = []
        tokens: list[SequenceEvent] = []
        for event in events:
            if isinstance(event, TokenEvent):
                tokens.append(event)
            elif isinstance(event, EndEvent):
                ends.append(event)
            else:
                self._note_late(event)
        self._send_to_owners(tokens)
        if ends:
            written = self._keeper.append(usage_of(ends))
            written.add_done_callback(lambda done: self._later(lambda: self._send_ends(ends, done)))

    def _send_ends(self, ends: list[EndEvent], written: Future[None]) -> None:
        error = written.exception()
        if error is not None:
            _log.error("usage records are lost", exc_info=error)
        self._send_to_owners(event for event in ends if isinstance(event, FinishEvent))
        for event in ends:
            self._active.note_end(event)
        self._desk.look()

    def _send_to_owners(self, events: Iterable[SequenceEvent]) -> None:
        """One message a client."""
        by_client: dict[bytes, list[SequenceEvent]] = {}
        for event in events:
            owner = self._active.owner(event.request_id)
            if owner is not None:
                by_client.setdefault(owner, []).append(event)
        for client, its_events in by_client.items():
            self._send(client, m.Events(its_events))

    def _note_late(self, event: RefusedEvent) -> None:
        owner = self._active.owner(event.request_id)
        error = DeadlineError(event.message, event.retry_after_ms)
        self._note_refused(owner or b"", event.request_id, error)

    def _answer_usage(self, client: bytes, call: int, records: list[Metered]) -> None:
        usage = [record for record in records if isinstance(record, UsageRecord)]
        occupancy = [record for record in records if isinstance(record, OccupancyRecord)]
        self._send(client, m.UsageIs(call, usage, occupancy))

    def _note_end(self, failure: BaseException | None) -> None:
        self._ended, self._failure = True, failure

    def _send(self, client: bytes, message: m.FromEngine) -> None:
        if client not in self._clients:
            return
        data = encode(message)
        if not self._clients.try_send(client, len(data)):
            _log.warning("client %s is dropped: it does not read", client.hex())
            self._drop(client)
        else:
            self._send_data(client, data)

    def _send_data(self, client: bytes, data: bytes) -> None:
        try:
            self._socket.send_multipart([client, data], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # it has left, or does not read
            _log.warning("client %s is dropped: %s", client.hex(), error)
            self._drop(client)

    # From the clients.

    def _receive(self) -> None:
        until_s = steady() + _RECEIVE_S
        while self._receive_one() and steady() < until_s:
            pass

    def _receive_one(self) -> bool:
        """Whether there was a message."""
        try:
            client, data = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        except ValueError:
            return True  # not of our two parts
        try:
            message = decode_to_engine(data)
        except msgspec.MsgspecError as error:
            _log.warning("a message of %s cannot be read: %s", client.hex(), error)
        else:
            self._take(client, message)
        return True

    def _take(self, client: bytes, message: m.ToEngine) -> None:
        if isinstance(message, m.Hello):
            self._hello(client, message)
        elif isinstance(message, m.Beat):
            if self._is_ours(message.token):
                self._clients.hear(message.client)
        elif client not in self._clients:
            self._send_data(client, encode(m.Unknown()))
        else:
            self._clients.hear(client)
            self._HANDLERS[type(message)](self, client, message)

    def _hello(self, client: bytes, message: m.Hello) -> None:
        if not self._is_ours(message.token):
            _log.warning("a client with a wrong token was turned away")
            return
        self._clients.greet(client)
        self._send_data(client, encode(m.Ready(self._running_loop().engine.config.model, client)))

    def _is_ours(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())

    def _submit(self, client: bytes, message: m.Submit) -> None:
        request = message.request
        if self._stop_by_s is not None:
            self._refuse(client, request.request_id, EngineUnavailableError("it is stopping"))
        elif (trouble := self._keeper.trouble) is not None:
            self._refuse(client, request.request_id, EngineUnavailableError(trouble))
        elif request.request_id in self._active:
            error = InvalidRequestError(f"{request.request_id!r} is in flight", "request_id")
            self._refuse(client, request.request_id, error)
        else:
            self._active.add(request, client)
            try:
                future = self._running_loop().submit(request)
            except Exception as error:  # a request, whatever it holds, ends nobody else's
                self._note_refused(client, request.request_id, error)
                return
            future.add_done_callback(
                lambda done: self._note_submitted(client, request.request_id, done)
            )

    def _note_submitted(self, client: bytes, request_id: str, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._later(lambda: self._note_refused(client, request_id, error))

    def _note_refused(self, client: bytes, request_id: str, error: BaseException) -> None:
        self._active.remove(request_id)
        self._refuse(client, request_id, error)

    def _refuse(self, client: bytes, request_id: str, error: BaseException) -> None:
        self._send(client, m.Refused(request_id, m.error_info(error)))

    def _abort_asked(self, client: bytes, message: m.Abort) -> None:
        if self._active.owner(message.request_id) == client:
            self._command(
                lambda loop: loop.abort(
                    message.request_id, message.index, message.reason, message.output_tokens
                )
            )

    def _abort(self, request_id: str) -> None:
        """Nobody is to be charged: its client waits for an answer, or its process has died."""
        self._command(lambda loop: loop.abort(request_id, reason="cut_off"))

    def _forget(self, client: bytes, message: m.Forget) -> None:
        self._command(
            lambda loop: loop.forget_adapter(
                message.namespace, message.digest, device_only=message.device_only
            )
        )

    def _forget_namespace(self, client: bytes, message: m.ForgetNamespace) -> None:
        self._command(lambda loop: loop.forget_namespace(message.namespace))

    def _command(self, command: Callable[[EngineLoop], Future[None]]) -> None:
        """A command without an answer; what it fails with is logged."""
        try:
            future = command(self._running_loop())
        except EngineError as error:
            _log.warning("a command was not taken: %s", error)
            return
        future.add_done_callback(_log_failure)

    def _ask(self, client: bytes, message: m.Question) -> None:
        question, answer = _QUESTIONS[type(message)]
        self._question(
            client,
            message.call,
            lambda loop: question(loop, message),
            lambda value: answer(message.call, value),
        )

    def _totals(self, client: bytes, message: m.AskTotals) -> None:
        self._question(
            client,
            message.call,
            lambda loop: self._keeper.totals(message.since),
            lambda value: m.TotalsAre(message.call, value),
        )

    def _pages(self, client: bytes, message: m.AskPages) -> None:
        self._question(
            client,
            message.call,
            lambda loop: loop.pages(message.namespace),
            lambda snapshot: m.PagesAre(message.call, snapshot.describe()),
        )

    def _question(
        self,
        client: bytes,
        call: int,
        question: Callable[[EngineLoop], Future[Any]],
        answer: Callable[[Any], m.FromEngine],
    ) -> None:
        def answered(done: Future[Any]) -> None:
            self._later(lambda: self._send(client, message(done)))  # not on the engine's thread

        def message(done: Future[Any]) -> m.FromEngine:
            error = done.exception()
            return answer(done.result()) if error is None else failed(error)

        def failed(error: BaseException) -> m.CallFailed:
            return m.CallFailed(call, m.error_info(error))

        try:
            question(self._running_loop()).add_done_callback(answered)
        except EngineError as error:
            self._send(client, failed(error))

    def _usage(self, client: bytes, message: m.AskUsage) -> None:
        self._desk.ask(client, message.call)

    def _acknowledge(self, client: bytes, message: m.AcknowledgeUsage) -> None:
        self._desk.acknowledge(message.event_ids)

    def _ping(self, client: bytes, message: m.Ping) -> None:
        self._clients.note_read(client, message.read_bytes)
        self._send(client, m.Pong(self._keeper.trouble))

    def _bye(self, client: bytes, message: m.Bye) -> None:
        self._drop(client)

    _HANDLERS: dict[type, Callable[..., None]] = {  # noqa: RUF012  # a constant table
        m.Submit: _submit,
        m.Abort: _abort_asked,
        m.Forget: _forget,
        m.ForgetNamespace: _forget_namespace,
        **dict.fromkeys(_QUESTIONS, _ask),
        m.AskUsage: _usage,
        m.AskTotals: _totals,
        m.AskPages: _pages,
        m.AcknowledgeUsage: _acknowledge,
        m.Ping: _ping,
        m.Bye: _bye,
    }

    def _look_after_clients(self) -> None:
        """One that was stopped keeps what it runs for the length of its lease, and reads on when it
        goes on. One that was killed has no connection any more, and that shows when it is sent
        something."""
        for client in self._clients.turn():
            _log.warning("client %s has been silent for too long", client.hex())
            self._drop(client)
        now_s = steady()
        if now_s - self._turn_s >= PING_S:
            self._turn_s = now_s
            for client in self._clients:
                self._send(client, m.Pong(self._keeper.trouble))

    def _drop(self, client: bytes) -> None:
        """Forget a client and abort what it runs, uncharged."""
        self._clients.drop(client)
        self._desk.drop(client)
        for request_id in self._active.of(client):
            self._abort(request_id)

    def _running_loop(self) -> EngineLoop:
        if self._loop is None:
            raise EngineUnavailableError("the engine is not running yet")
        return self._loop


def _log_failure(done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        _log.warning("a command failed: %s", error)
