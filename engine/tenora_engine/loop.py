"""EngineLoop: an Engine on a thread of its own, with an inbox of commands and a callback for
events. It knows no transport; the in-process client and the engine process both stand on it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tenora_engine.client import AbortReason
from tenora_engine.clocks import steady
from tenora_engine.errors import EngineError, EngineUnavailableError
from tenora_engine.events import AdapterFootprint, EngineStats, Event, Residency
from tenora_engine.inbox import NOBODY, Inbox
from tenora_engine.pages import Pin, PinState
from tenora_engine.request import AdapterRef, GenerationRequest

if TYPE_CHECKING:  # torch comes with it
    from tenora_engine.engine import Engine, PagesSnapshot
    from tenora_engine.grammar.guide import Guide

T = TypeVar("T")
_log = logging.getLogger(__name__)

COMMANDS_BETWEEN_STEPS = 256
"""Commands carried out before the next step: a flood of them is not to hold up what runs."""

COMMANDS_S = 0.01
"""Nor do they take longer than this, but for one that does alone: most take 0.02 to 0.2 ms."""


class EngineLoop:
    """Runs one Engine. Commands may come from any thread and are carried out between steps; each
    returns a Future, set on the engine's thread before any event which follows from it is handed
    out. Tenants' requests and their aborts take turns, each tenant's in the order in which they
    came; what forgets comes after all that came before it.

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
        self._coming: dict[str, str] = {}  # who sends a request that waits in the inbox
        self._compiling: dict[str, Future[None]] = {}  # submitted when their grammars are there
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
        self, command: Callable[[Engine], T], sender: str = NOBODY, *, is_ordered: bool = False
    ) -> Future[T]:
        """Carry out `command` on the engine's thread between two steps, in its sender's turn;
        `is_ordered`: after everything that has been sent before.

        Raises EngineUnavailableError when the loop has ended, QueueFullError when the inbox is
        full. What `command` raises is the Future's exception.
        """
        future: Future[T] = Future()
        with self._wakeup:
            if self._stopping or self._stopped:
                raise EngineUnavailableError("the engine has been stopped; restart it")
            self._inbox.push(command, future, sender, is_ordered=is_ordered)
            self._wakeup.notify()
        return future

    def _send(self, request: GenerationRequest, submit: Callable[[Engine], None]) -> Future[None]:
        """Carry out `submit` in the turn of the request's tenant; its aborts stand behind it."""
        request_id, sender = request.request_id, request.tenant.key
        self._coming[request_id] = sender
        try:
            future = self.call(submit, sender)
        except EngineError:
            self._coming.pop(request_id, None)
            raise
        future.add_done_callback(lambda _: self._coming.pop(request_id, None))
        self._engine.announce(request)
        return future

    def submit(self, request: GenerationRequest) -> Future[None]:
        """See `Engine.submit`, whose errors the Future holds."""
        if request.sampling.grammar is not None:
            return self._submit_guided(request)
        received_s = steady()
        try:
            prepared = self._engine.prepare(request)
        except EngineError as error:
            return _failed(error)
        return self._send(
            request,
            lambda engine: engine.submit(_waited(request, received_s), prepared=prepared),
        )

    def _submit_guided(self, request: GenerationRequest) -> Future[None]:
        """Once its grammar has been compiled; what comes to abort it meanwhile waits for that. Its
        memory counts from the beginning."""
        received_s = steady()
        with self._wakeup:
            if self._stopping or self._stopped:
                raise EngineUnavailableError("the engine has been stopped; restart it")
        try:
            prepared = self._engine.prepare(request)
            self._engine.reserve(request)
        except EngineError as error:
            return _failed(error)
        submitted: Future[None] = Future()
        submitted.set_running_or_notify_cancel()
        with self._wakeup:
            self._compiling[request.request_id] = submitted

        def compiled(done: Future[list[Guide]]) -> None:
            error = done.exception()
            if error is None:
                guides = done.result()
                try:
                    sent = self._send(request, lambda engine: submit(engine, guides))
                except EngineError as refusal:
                    error = refusal
                else:
                    sent.add_done_callback(lambda done: end(done.exception()))
                    return
            self._engine.release(request)
            end(error)

        def submit(engine: Engine, guides: list[Guide]) -> None:
            engine.release(request)
            engine.submit(_waited(request, received_s), guides, prepared)

        def end(error: BaseException | None) -> None:
            with self._wakeup:
                self._compiling.pop(request.request_id, None)
            if error is None:
                submitted.set_result(None)
            else:
                submitted.set_exception(error)

        self._engine.grammars.guides(request).add_done_callback(compiled)
        return submitted

    def abort(
        self,
        request_id: str,
        index: int | None = None,
        reason: AbortReason = "client_gone",
        output_tokens: int | None = None,
    ) -> Future[None]:
        with self._wakeup:
            submitted = self._compiling.get(request_id)
        if submitted is None:
            return self.call(
                lambda engine: engine.abort(request_id, index, reason, output_tokens),
                self._coming.get(request_id) or self._engine.sender_of(request_id) or NOBODY,
            )
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()

        def abort(done: Future[None]) -> None:
            with contextlib.suppress(EngineError):  # it has ended, and all that was in flight
                if done.exception() is None:
                    self.abort(request_id, index, reason, output_tokens)
            ended.set_result(None)

        submitted.add_done_callback(abort)
        return ended

    def forget_adapter(
        self, namespace: str, digest: str, *, device_only: bool = False
    ) -> Future[None]:
        return self.call(
            lambda engine: engine.forget_adapter(namespace, digest, device_only=device_only),
            is_ordered=True,
        )

    def forget_namespace(self, namespace: str) -> Future[None]:
        return self.call(lambda engine: engine.forget_namespace(namespace), is_ordered=True)

    def residency(self, ref: AdapterRef) -> Future[Residency]:
        """See `Engine.residency`. At once: who asks for an adapter waits for it, and for no step.
        Raises EngineUnavailableError when the loop has ended."""
        found: Future[Residency] = Future()
        with self._wakeup:
            if self._stopping or self._stopped:
                raise EngineUnavailableError("the engine has been stopped; restart it")
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
                    events = self._engine.step()
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
        until_s = steady() + COMMANDS_S
        for place in range(min(len(self._inbox), COMMANDS_BETWEEN_STEPS)):
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


def _waited(request: GenerationRequest, received_s: float) -> GenerationRequest:
    """The same, as it is now: a step, or a grammar, has kept it waiting since it came."""
    waited_s = request.waited_s + steady() - received_s
    return msgspec.structs.replace(request, waited_s=waited_s)
