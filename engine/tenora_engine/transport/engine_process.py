"""EngineProcess: owns an engine as a child process: starts it, holds it up, ends it. Speaks no more
to it than it must for that, and knows neither requests nor text."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

import msgspec

from tenora_engine.backoff import Backoff
from tenora_engine.config import EngineConfig
from tenora_engine.errors import EngineError, EngineUnavailableError
from tenora_engine.transport import messages as m
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.pulse import Pulse
from tenora_engine.transport.wire import PING_S

BUILD_ENGINE = "tenora_engine.engine:build_engine"
HUNG_S = 60.0
"""A child silent for so long is killed and started again: longer than what stops a process and lets
it go on (a snapshot of its machine, a debugger), for what runs would be lost."""

_decode_report = msgspec.json.Decoder(m.Report).decode
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Started:
    """The engine serves."""

    pid: int
    again: bool


@dataclass(frozen=True)
class Died:
    """The engine that served has ended, and nobody had asked it to; another will be started."""

    error: EngineError


@dataclass(frozen=True)
class NotStarted:
    """The engine that was to follow one that died could not be started; it will be tried again.
    The error is the engine's own (ModelLoadError, MemoryBudgetError) where it had words."""

    error: EngineError


ChildEvent = Started | Died | NotStarted


class EngineProcess:
    """An engine as a child, at the same address through all its restarts.

    `factory` names the function that makes the engine in the child. The child logs to `log`, by
    default to this process's standard error. `on_event` is called on the loop of `start`.
    """

    def __init__(
        self,
        config: EngineConfig,
        address: EngineAddress,
        factory: str = BUILD_ENGINE,
        start_timeout_s: float = 600.0,
        stop_timeout_s: float = 15.0,
        hung_s: float = HUNG_S,
        log: IO[bytes] | None = None,
        on_event: Callable[[ChildEvent], None] | None = None,
    ) -> None:
        self._boot = m.Boot(config, address, factory)
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._hung_s = hung_s
        self._log_file = log
        self._on_event = on_event
        self._launched_s = 0.0
        self._child: asyncio.subprocess.Process | None = None
        self._holder: asyncio.Task[None] | None = None
        self._last_error: EngineError | None = None

    @property
    def address(self) -> EngineAddress:
        return self._boot.address

    @property
    def pid(self) -> int | None:
        """The engine process's id while there is one."""
        return None if self._child is None else self._child.pid

    @property
    def last_error(self) -> EngineError | None:
        """Why the engine is not there, while it is not."""
        return self._last_error

    async def start(self) -> None:
        """Start the engine, wait until it serves, and hold it up from then on. Raises its own
        ModelLoadError or MemoryBudgetError, InsecureEndpointError, or EngineUnavailableError; then
        no child is left and none will be started."""
        await self._launch()
        self._holder = asyncio.create_task(self._hold_up(), name="engine-process")

    async def stop(self) -> int | None:
        """End the engine: what runs is aborted and metered. Kills it after `stop_timeout_s`.
        Returns its exit status, if there was one."""
        if self._holder is not None:
            self._holder.cancel()
            await asyncio.gather(self._holder, return_exceptions=True)
            self._holder = None
        status = await self._end_child()
        self.address.remove_socket()  # a killed child leaves it behind
        return status

    async def _launch(self) -> None:
        """Start a child and wait until it serves. Raises as `start`; then no child is left."""
        self.address.check()
        self._launched_s = time.monotonic()
        again = self._holder is not None
        try:
            async with asyncio.timeout(self._start_timeout_s):
                child = await self._spawn()
                listening = await self._next_report(child)
                loaded = await self._next_report(child)
                if not isinstance(listening, m.Listening) or not isinstance(loaded, m.Loaded):
                    raise EngineUnavailableError(
                        "the engine process sent an unknown message; is it another version?"
                    )
        except TimeoutError:
            await self._end_child()
            raise EngineUnavailableError(
                f"the engine was not ready within {self._start_timeout_s:g} s"
            ) from None
        except BaseException:
            await self._end_child()
            raise
        self._last_error = None
        if again:
            _log.warning("the engine process has been restarted (process %s)", child.pid)
        self._tell(Started(child.pid, again))

    async def _spawn(self) -> asyncio.subprocess.Process:
        # A session of its own: Ctrl-C in the terminal goes to the owner alone, who ends the child.
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tenora_engine.transport.server",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log_file,
            start_new_session=True,
        )
        if child.stdin is not None:  # it stays open: its end tells the child that we are gone
            child.stdin.write(msgspec.json.encode(self._boot) + b"\n")
        return child

    async def _next_report(self, child: asyncio.subprocess.Process) -> m.Report:
        """Raises the error that the child reports, or EngineUnavailableError when it ends."""
        line = await child.stdout.readline() if child.stdout is not None else b""
        if not line:
            raise EngineUnavailableError(
                f"the engine process ended while starting ({how_ended(await child.wait())}); "
                "see its log"
            )
        report: m.Report = _decode_report(line)
        if isinstance(report, m.LoadFailed):
            raise m.to_error(report.error)
        return report

    async def _hold_up(self) -> None:
        """Wait for the child's death, tell of it, start another; for as long as needed."""
        backoff = Backoff()
        while True:
            if self._child is not None:
                how = how_ended(await self._ended(self._child))
                error = EngineUnavailableError(f"the engine process died ({how})")
                self._note(Died(error))
            await asyncio.sleep(backoff.after(time.monotonic() - self._launched_s))
            try:
                await self._launch()
            except EngineError as error:
                self._note(NotStarted(error))
            except Exception as error:  # this task must not end: nobody else starts an engine
                reason = EngineUnavailableError(f"no engine could be started: {error!r}")
                self._note(NotStarted(reason))

    async def _ended(self, child: asyncio.subprocess.Process) -> int:
        """The exit status of a child that has ended, or was killed because it does not answer."""
        ended = asyncio.ensure_future(child.wait())
        pulse = Pulse(self.address)
        try:
            while not (await asyncio.wait((ended,), timeout=PING_S))[0]:
                silent_s = pulse.silent_s()
                if silent_s > self._hung_s:
                    _log.error("the engine has not answered for %.0f s and is killed", silent_s)
                    child.kill()
                    break
            return await ended
        finally:
            ended.cancel()
            pulse.close()

    def _note(self, event: Died | NotStarted) -> None:
        _log.error("%s; it is being restarted", event.error)
        self._last_error = event.error
        self._tell(event)

    def _tell(self, event: ChildEvent) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:  # the listener's trouble must not end who holds the engine up
                _log.exception("a listener to the engine process failed")

    async def _end_child(self) -> int | None:
        """The child's exit status, if there was one."""
        child, self._child = self._child, None
        if child is None:
            return None
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._stop_timeout_s):
                    await child.wait()
            except TimeoutError:
                _log.error("the engine process did not stop in time and is killed")
                child.kill()
                await child.wait()
        if child.stdin is not None:
            child.stdin.close()
        return child.returncode


def how_ended(status: int) -> str:
    """A child's exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
