"""HeldProcess: one part as a child process that is started again when it dies, and can be replaced
by a fresh one without a gap. Knows neither what the part does nor its settings."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable

import structlog

from tenora_engine.backoff import Backoff
from tenora_engine.transport.engine_process import how_ended
from tenora_platform.processes.handover import READY

_READY_S = 120.0
_KILLED_S = 5.0
_log = structlog.get_logger(__name__)


class HeldProcess:
    """`module` is run with a line on its standard input, which stays open as long as we live. The
    line is made for a turn, 0 or 1: one that replaces another has the other turn, for both run at
    once; one that follows a death has the same. `stop_s` is what it has to end after SIGTERM,
    before it is killed.
    """

    def __init__(
        self,
        name: str,
        module: str,
        line: Callable[[int], bytes],
        *,
        stop_s: float,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.restarts = 0
        self._turn = 0
        self._module = module
        self._line = line
        self._stop_s = stop_s
        self._pass_fds = pass_fds
        self._child: asyncio.subprocess.Process | None = None
        self._started: set[asyncio.subprocess.Process] = set()  # that may run still
        self._is_over = False
        self._launched_s = 0.0
        self._holder: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process that serves now."""
        child = self._child
        return child.pid if child is not None and child.returncode is None else None

    async def start(self) -> None:
        """Start it and hold it up from then on."""
        self._child = await self._spawn(self._turn)
        self._holder = asyncio.create_task(self._hold_up(), name=f"hold-{self.name}")

    async def stop(self) -> None:
        """End it for good, and what was to replace it or has been replaced: none is left of all
        that were started."""
        self._is_over = True
        if self._holder is not None:
            self._holder.cancel()
            await asyncio.gather(self._holder, return_exceptions=True)
            self._holder = None
        self._child = None
        await asyncio.gather(*(self._end(child) for child in list(self._started)))

    async def replace(self) -> bool:
        """Start a fresh one beside it, and end the old one when the fresh one works. If it does
        not come to that, the old one stays; says whether it was replaced."""
        if self._is_over:
            return False
        turn = 1 - self._turn
        fresh = await self._spawn(turn)
        try:
            async with asyncio.timeout(_READY_S):
                works = await _says_ready(fresh)
        except TimeoutError:
            works = False
        if not works or self._is_over:
            _log.error(
                "no new process could be started; the old one continues",
                process=self.name,
                pid=self.pid,
            )
            await self._end(fresh)
            return False
        old, self._child, self._turn = self._child, fresh, turn
        if old is not None:
            await self._end(old)
            _log.info("process replaced", process=self.name, old=old.pid, pid=fresh.pid)
        return True

    async def _spawn(self, turn: int) -> asyncio.subprocess.Process:
        self._launched_s = time.monotonic()
        # A session of its own: Ctrl-C in the terminal reaches the owner alone, who ends all.
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", self._module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=self._pass_fds,
        )
        self._started.add(child)  # nothing is awaited in between: a cancelled task leaves no child
        assert child.stdin is not None  # asked for
        child.stdin.write(self._line(turn))
        return child

    async def _hold_up(self) -> None:
        backoff = Backoff()
        while True:
            child = self._child
            if child is not None:
                status = await child.wait()
                if self._child is not child:
                    continue  # it was replaced
                _log.error(
                    "process died and is being restarted",
                    process=self.name,
                    pid=child.pid,
                    how=how_ended(status),
                )
                self._child = None
                self._started.discard(child)
                self.restarts += 1
            await asyncio.sleep(backoff.after(time.monotonic() - self._launched_s))
            if self._child is not None:
                continue  # replaced meanwhile
            try:
                self._child = await self._spawn(self._turn)
            except OSError as error:
                _log.error("process cannot be started", process=self.name, reason=str(error))
            else:
                _log.warning("process restarted", process=self.name, pid=self._child.pid)

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._stop_s):
                    await child.wait()
            except TimeoutError:
                _log.error("process did not stop in time and is killed", process=self.name)
                child.kill()
                await child.wait()
        if child.stdin is not None:
            child.stdin.close()
        self._started.discard(child)


async def _says_ready(child: asyncio.subprocess.Process) -> bool:
    assert child.stdout is not None
    return await child.stdout.readline() == READY
