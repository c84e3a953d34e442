"""EngineLoop: an Engine on a thread of its own, with an inbox of commands and a callback for
events. It knows no transport; the in-process client and the engine process both stand on it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tenora_engine.client import AbortReason
from tenora_engine.clocks import steady
from tenora_engine.errors import (
    EngineError,
    EngineUnavailableError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_engine.events import AdapterFootprint, EngineStats, Event, Residency
from tenora_engine.inbox import NOBODY, Command, Inbox
from tenora_engine.pages import Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest, Tenant

if TYPE_CHECKING:  # torch comes with it
    from tenora_engine.engine import Engine, PagesSnapshot
    from tenora_engine.grammar.guide import Guide

T = TypeVar("T")
_log = logging.getLogger(__name__)

COMMANDS_S = 0.01
"""Commands between two steps take no longer than this, but for one that does alone: most take 0.02
to 0.2 ms, and a flood of them is not to hold up what runs."""

COMMANDS_PART = 10
"""They may take this part of the last step where that is longer than COMMANDS_S: beside a step that
took long they hold up nothing."""


@dataclass(eq=False, slots=True)
class Coming:
    """A request on its way to the engine: it waits for its grammar, then in the inbox."""

    request: GenerationRequest
    prepared: bytes
    received_s: float
    submitted: Future[None] = field(default_factory=lambda: _running())
    command: Command | None = None  # which submits it, once that has been sent
    aborted: AbortReason | None = None  # while it waits for its grammar
    held: int | None = None  # what keeps back, until it has come, what forgets of its namespace


class EngineLoop:
    """Runs one Engine. Commands may come from any thread and are carried out between steps; each
    returns a Future, set on the engine's thread before any event which follows from it is handed
    out. Tenants' requests and their aborts take turns, each tenant's in the order in which they
    came; what forgets comes after all requests of its namespace that came before it.

    `on_events` gets every non-empty batch of events; however the loop ends, what was in flight then
    ends in the last of them. `on_stopped` is called once, after that, with what killed the loop or
    None after `stop()`. Both run on the engine's thread: they must hand over quickly and not raise.
    """

    def __init__(
        self,
        engine: Engine,
        on_events: Callable[[list[Event]], None],
        on_stopped: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self._engine = engine
        self._on_events = on_events
        self._on_stopped = on_stopped
        self._inbox = Inbox()
        self._step_s = 0.0  # of the last
        self._coming: dict[str, Coming] = {}  # by request id
        self._wakeup = threading.Condition()
        self._woken = False
        self._stopping = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="tenora-engine", daemon=True)
        engine.on_wake = self.wake

    @property
    def engine(self) -> Engine:
        """For what never changes (its config). Everything else goes through commands."""
        return self._engine

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the current step, close the engine and wait for the thread. Commands not yet
        carried out fail with EngineUnavailableError; sequences in flight are aborted."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def wake(self) -> None:
        """Look for work again: an adapter load has come to an end."""
        with self._wakeup:
            self._woken = True
            self._wakeup.notify()

    def call(
        self, command: Callable[[Engine], T], sender: str = NOBODY, *, is_bounded: bool = True
    ) -> Future[T]:
        """Carry out `command` on the engine's thread between two steps, in its sender's turn.

        Raises EngineUnavailableError when the loop has ended, QueueFullError when the inbox is
        full and the command `is_bounded`. What `command` raises is the Future's exception.
        """
        future: Future[T] = Future()
        with self._wakeup:
            self._check_running()
            self._inbox.push(command, future, sender, is_bounded=is_bounded)
            self._wakeup.notify()
        return future

    def _check_running(self) -> None:
        if self._stopping or self._stopped:
            raise EngineUnavailableError("the engine has been stopped; restart it")

    def submit(self, request: GenerationRequest) -> Future[None]:
        """See `Engine.submit`, whose errors the Future holds. One with a grammar comes to the inbox
        when that has been compiled. Its memory counts from the beginning. Raises
        EngineUnavailableError when the loop has ended."""
        received_s = steady()
        with self._wakeup:
            self._check_running()
            if request.request_id in self._coming:
                known = f"request {request.request_id} is already in flight; use a new id"
                return _failed(InvalidRequestError(known, "request_id"))
        try:
            prepared = self._engine.prepare(request)
        except EngineError as error:
            if isinstance(error, QueueFullError):
                self._note_refused(request.tenant)
            return _failed(error)
        coming = Coming(request, prepared, received_s)
        with self._wakeup:
            self._coming[request.request_id] = coming
            if request.sampling.grammar is not None:
                coming.held = self._inbox.hold(request.tenant.namespace)
        if request.sampling.grammar is None:
            self._send(coming, None)
        else:
            guides = self._engine.grammars.guides(request)
            guides.add_done_callback(lambda done: self._compiled(coming, done))
        return coming.submitted

    def _note_refused(self, tenant: Tenant) -> None:
        with contextlib.suppress(EngineError):  # then nobody asks any more, or it has too many here
            self.call(lambda engine: engine.note_refused(tenant), tenant.key)

    def _compiled(self, coming: Coming, guides: Future[list[Guide]]) -> None:
        error = guides.exception()
        if error is None:
            self._send(coming, guides.result())
        else:
            self._engine.release(coming.request)
            self._come(coming, error)

    def _send(self, coming: Coming, guides: list[Guide] | None) -> None:
        """Submit the request in its tenant's turn, unless it has been aborted meanwhile."""
        request, sent = coming.request, Future[None]()
        tenant = request.tenant

        def submit(engine: Engine) -> None:
            engine.submit(_waited(request, coming.received_s), guides, coming.prepared)

        # Before the engine can have it: nothing that follows is handed out before.
        sent.add_done_callback(lambda done: self._come(coming, done.exception()))
        try:
            with self._wakeup:
                self._check_running()
                aborted = coming.aborted
                coming.command = self._inbox.push(
                    submit if aborted is None else _discarding(coming, aborted),
                    sent,
                    tenant.key,
                    namespace=tenant.namespace,
                    is_bounded=aborted is None,
                )
                self._wakeup.notify()
        except EngineError as error:
            self._engine.release(request)
            self._come(coming, error)
            return
        if aborted is None:
            self._engine.announce(request)

    def _come(self, coming: Coming, error: BaseException | None) -> None:
        """It is the engine's now, or has ended."""
        with self._wakeup:
            self._coming.pop(coming.request.request_id, None)
            if coming.held is not None:
                self._inbox.release(coming.request.tenant.namespace, coming.held)
                self._wakeup.notify()
        if error is None:
            coming.submitted.set_result(None)
        else:
            coming.submitted.set_exception(error)

    def abort(
        self,
        request_id: str,
        index: int | None = None,
        reason: AbortReason = "client_gone",
        output_tokens: int | None = None,
    ) -> Future[None]:
        """See `Engine.abort`. Never refused while the loop runs. A request that waits in the inbox
        ends there, in the next turn of its tenant, and is not submitted; one whose grammar is being
        compiled, after that. Raises EngineUnavailableError when the loop has ended."""
        with self._wakeup:
            self._check_running()
            coming = self._coming.get(request_id)
            if coming is not None and index is None and reason != "stop":
                self._cancel(coming, reason)
        if coming is not None:
            return self._abort_later(coming, index, reason, output_tokens)
        sender = self._engine.sender_of(request_id)
        if sender is None:  # it has ended, and nothing of it is left to settle
            return _done()
        return self.call(
            lambda engine: engine.abort(request_id, index, reason, output_tokens),
            sender,
            is_bounded=False,
        )

    def _cancel(self, coming: Coming, reason: AbortReason) -> None:
        if coming.command is None:
            coming.aborted = coming.aborted or reason  # once its grammar is there
        else:
            self._inbox.replace(coming.command, _discarding(coming, reason))

    def _abort_later(
        self,
        coming: Coming,
        index: int | None,
        reason: AbortReason,
        output_tokens: int | None,
    ) -> Future[None]:
        """What is left of the request when it has come to the engine."""
        ended = _running()

        def abort(done: Future[None]) -> None:
            try:
                done.result()
                left = self.abort(coming.request.request_id, index, reason, output_tokens)
            except Exception:  # it has been refused or has ended, and all that was in flight
                ended.set_result(None)
            else:
                left.add_done_callback(lambda _: ended.set_result(None))

        coming.submitted.add_done_callback(abort)
        return ended

    def forget_adapter(
        self, namespace: str, digest: str, *, device_only: bool = False
    ) -> Future[None]:
        return self._call_after(
            namespace,
            lambda engine: engine.forget_adapter(namespace, digest, device_only=device_only),
        )

    def forget_namespace(self, namespace: str) -> Future[None]:
        return self._call_after(namespace, lambda engine: engine.forget_namespace(namespace))

    def _call_after(self, namespace: str, command: Callable[[Engine], None]) -> Future[None]:
        """As `call`, after all requests of the namespace that wait; never refused."""
        future: Future[None] = Future()
        with self._wakeup:
            self._check_running()
            self._inbox.push_after(namespace, command, future)
            self._wakeup.notify()
        return future

    def residency(self, ref: AdapterRef) -> Future[Residency]:
        """See `Engine.residency`. At once: who asks for an adapter waits for it, and for no step.
        Raises EngineUnavailableError when the loop has ended."""
        found: Future[Residency] = Future()
        with self._wakeup:
            self._check_running()
        found.set_result(self._engine.residency(ref))
        return found

    def residencies(self, digests: Sequence[str]) -> Future[dict[str, Residency]]:
        """See `Engine.residencies`, whose Future this one follows."""
        found: Future[dict[str, Residency]] = Future()

        def asked(done: Future[Future[dict[str, Residency]]]) -> None:
            if error := done.exception():
                found.set_exception(error)
            else:
                done.result().add_done_callback(answered)

        def answered(done: Future[dict[str, Residency]]) -> None:
            if done.cancelled():
                found.set_exception(EngineUnavailableError("the engine was stopped"))
            elif error := done.exception():
                found.set_exception(error)
            else:
                found.set_result(done.result())

        self.call(lambda engine: engine.residencies(digests)).add_done_callback(asked)
        return found

    def footprint(self, ranks: Mapping[str, Sequence[int]]) -> Future[AdapterFootprint]:
        return self.call(lambda engine: engine.footprint(ranks))

    def stats(self) -> Future[EngineStats]:
        return self.call(lambda engine: engine.stats())

    def pages(self, namespace: str) -> Future[PagesSnapshot]:
        """See `Engine.pages`: what the Future holds is to be described in another thread."""
        return self.call(lambda engine: engine.pages(namespace))

    def set_pins(self, pins: Sequence[Pin]) -> Future[list[PinState]]:
        return self.call(lambda engine: engine.set_pins(pins))

    def evict_adapter(self, namespace: str, digest: str) -> Future[int]:
        return self.call(lambda engine: engine.evict_adapter(namespace, digest))

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._wait_for_work():
                self._carry_out_commands()
                if self._engine.has_work:
                    began_s = steady()
                    events = self._engine.step()
                    self._step_s = steady() - began_s
                    if events:
                        self._on_events(events)
        except BaseException as error:
            failure = error
        self._refuse_commands()
        self._abandon(failure)
        if failure is not None:  # closing may take long; who is told may end the process
            self._tell_end(failure)
            self._close()
        else:
            self._tell_end(self._close())

    def _tell_end(self, failure: BaseException | None) -> None:
        if self._on_stopped is not None:
            self._on_stopped(failure)

    def _wait_for_work(self) -> bool:
        """Block until there is something to do. False when the loop must end."""
        with self._wakeup:
            while not (self._stopping or self._inbox or self._woken or self._engine.has_work):
                self._wakeup.wait(self._engine.idle_s)
            self._woken = False
            return not self._stopping

    def _carry_out_commands(self) -> None:
        until_s = steady() + max(COMMANDS_S, self._step_s / COMMANDS_PART)
        for place in range(len(self._inbox)):
            if place and steady() >= until_s and self._engine.has_work:
                return
            with self._wakeup:
                command = self._inbox.pop()
            if not command.future.set_running_or_notify_cancel():
                continue
            try:
                result = command.carry_out(self._engine)
            except Exception as error:
                command.future.set_exception(error)
            else:
                command.future.set_result(result)
            del command  # an error that its future holds would hold it, through this frame

    def _refuse_commands(self) -> None:
        with self._wakeup:
            self._stopped = True
            left = [self._inbox.pop() for _ in range(len(self._inbox))]
        for command in left:
            if command.future.set_running_or_notify_cancel():
                command.future.set_exception(EngineUnavailableError("the engine was stopped"))

    def _abandon(self, failure: BaseException | None) -> None:
        """What is in flight ends with its meters."""
        try:
            events = self._engine.abandon(failure)
        except Exception:
            _log.exception("the last events of the engine were lost")
            return
        if events:
            self._on_events(events)

    def _close(self) -> BaseException | None:
        try:
            self._engine.close()
        except Exception as error:
            return error
        return None


def _failed(error: EngineError) -> Future[None]:
    failed: Future[None] = Future()
    failed.set_exception(error)
    return failed


def _running() -> Future[None]:
    """Return a Future that nobody can cancel."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _discarding(coming: Coming, reason: AbortReason) -> Callable[[Engine], None]:
    return lambda engine: engine.discard(_waited(coming.request, coming.received_s), reason)


def _waited(request: GenerationRequest, received_s: float) -> GenerationRequest:
    """The same, as it is now: a step, or a grammar, has kept it waiting since it came."""
    waited_s = request.waited_s + steady() - received_s
    return msgspec.structs.replace(request, waited_s=waited_s)
