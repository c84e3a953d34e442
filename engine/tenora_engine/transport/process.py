"""ProcessEngineClient: starts the engine as a child process, speaks to it as `remote` does, starts
it again when it dies or hangs, and ends it cleanly."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from tenora_engine.backoff import Backoff
from tenora_engine.config import EngineConfig
from tenora_engine.errors import EngineError, EngineUnavailableError
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport import messages as m
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_engine.transport.routing import stopped_error
from tenora_engine.transport.wire import choose_endpoint

_FAREWELL_S = 2.0
_HUNG_S = 60.0
"""A child silent for so long is killed and started again: longer than what stops a process and lets
it go on (a snapshot of its machine, a debugger), for what runs would be lost."""

_decode_report = msgspec.json.Decoder(m.Report).decode
_log = logging.getLogger(__name__)


class ProcessEngineClient(RemoteEngineClient):
    """An EngineClient that owns its engine process.

    `socket_dir` is where the unix socket goes (a private temporary directory when it is None or too
    long a path). `engine_factory` names the function that makes the engine in the child. The child
    logs to `log`, by default to this process's standard error.
    """

    def __init__(
        self,
        config: EngineConfig,
        socket_dir: Path | None = None,
        engine_factory: str = "tenora_engine.engine:build_engine",
        text_factory: Callable[[str], TextProcessor] = TextProcessor,
        start_timeout_s: float = 600.0,
        stop_timeout_s: float = 15.0,
        log: IO[bytes] | None = None,
        hung_s: float = _HUNG_S,
    ) -> None:
        super().__init__("", secrets.token_urlsafe(32), config.model, text_factory, start_timeout_s)
        self._config = config
        self._socket_dir = socket_dir
        self._factory = engine_factory
        self._stop_timeout_s = stop_timeout_s
        self._log_file = log
        self._hung_s = hung_s
        self._launched_s = 0.0
        self._made_dir: Path | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._last_error: EngineError | None = None

    @property
    def pid(self) -> int | None:
        """The engine process's id while there is one."""
        return None if self._child is None else self._child.pid

    @property
    def last_error(self) -> EngineError | None:
        """Why the engine is not there, while it is not."""
        return self._last_error

    async def start(self) -> None:
        """See `EngineClient.start`."""
        self._endpoint, self._made_dir = choose_endpoint(self._socket_dir)
        text = asyncio.create_task(asyncio.to_thread(self._text_factory, self._model_folder))
        try:
            await self._launch()
            self._text = await text
        except BaseException:
            text.cancel()
            await asyncio.gather(text, return_exceptions=True)
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the engine: what runs is aborted and metered. Kills it after `stop_timeout_s`."""
        self._stopped.set()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        if await self._end_child() == 0:
            await self._farewell()
        await self._disconnect(stopped_error())
        self._remove_socket()

    async def _farewell(self) -> None:
        """Read what a child that ended well has sent to the last."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._said_goodbye.wait()
        except TimeoutError:
            _log.warning("the engine's last events did not arrive")

    def _remove_socket(self) -> None:
        if self._endpoint.startswith("ipc://"):  # a killed child leaves it behind
            Path(self._endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
        if self._made_dir is not None:
            shutil.rmtree(self._made_dir, ignore_errors=True)
            self._made_dir = None

    async def _launch(self) -> None:
        """Start a child and wait until it serves. Raises its own ModelLoadError or
        MemoryBudgetError, or EngineUnavailableError; then no child is left."""
        self._launched_s = time.monotonic()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                child = await self._spawn()
                listening = await self._next_report(child)
                loaded = await self._next_report(child)
                if not isinstance(listening, m.Listening) or not isinstance(loaded, m.Loaded):
                    raise EngineUnavailableError("the engine process speaks another language")
                await self._disconnect(stopped_error())  # from the child before
                self._endpoint = listening.endpoint
                self._connect(listening.endpoint)
                await self._greeted(child)
        except TimeoutError:
            await self._end_child()
            raise EngineUnavailableError(
                f"the engine was not ready within {self._start_timeout_s:g} s"
            ) from None
        except BaseException:
            await self._end_child()
            raise
        self._last_error = None

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
        boot = m.Boot(self._config, self._endpoint, self._token, self._factory)
        if child.stdin is not None:  # it stays open: its end tells the child that we are gone
            child.stdin.write(msgspec.json.encode(boot) + b"\n")
        return child

    async def _next_report(self, child: asyncio.subprocess.Process) -> m.Report:
        """Raises the error that the child reports, or EngineUnavailableError when it ends."""
        line = await child.stdout.readline() if child.stdout is not None else b""
        if not line:
            raise EngineUnavailableError(
                f"the engine process ended while starting ({_how(await child.wait())});"
                " its log says more"
            )
        report: m.Report = _decode_report(line)
        if isinstance(report, m.LoadFailed):
            raise m.to_error(report.error)
        return report

    async def _greeted(self, child: asyncio.subprocess.Process) -> None:
        """Wait for the child's answer to Hello. Raises EngineUnavailableError when it ends."""
        ready = asyncio.ensure_future(self._is_ready.wait())
        ended = asyncio.ensure_future(child.wait())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise EngineUnavailableError(f"the engine process ended ({_how(ended.result())})")
        finally:
            ready.cancel()
            ended.cancel()

    async def _supervise(self) -> None:
        """Wait for the child's death, tell all who wait, start another; for as long as needed."""
        backoff = Backoff()
        while True:
            if self._child is not None:
                how = _how(await self._child.wait())
                self._note_loss(EngineUnavailableError(f"the engine process died ({how})"))
            await asyncio.sleep(backoff.after(time.monotonic() - self._launched_s))
            try:
                await self._launch()
            except EngineError as error:
                self._note_loss(error)
            except Exception as error:  # this task must not end: nobody else starts an engine
                self._note_loss(EngineUnavailableError(f"no engine could be started: {error!r}"))
            else:
                _log.warning("the engine process has been started again (process %s)", self.pid)

    def _judge_silence(self, silent_s: float) -> None:
        super()._judge_silence(silent_s)
        if self._silent and silent_s > self._hung_s and self._child is not None:
            _log.error("the engine has not answered for %.0f s and is killed", silent_s)
            self._child.kill()

    def _note_loss(self, error: EngineError) -> None:
        _log.error("%s; it is started again", error)
        self._last_error = error
        self._lost(error)

    async def _end_child(self) -> int | None:
        """The child's exit status, if there was one."""
        child, self._child = self._child, None
        if child is None:
            return None
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._stop_timeout_s):
                    await child.wait()
            except TimeoutError:
                _log.error("the engine process did not end in time and is killed")
                child.kill()
                await child.wait()
        if child.stdin is not None:
            child.stdin.close()
        return child.returncode


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
