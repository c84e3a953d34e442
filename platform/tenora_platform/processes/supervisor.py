"""The supervisor: starts the parts of one machine, holds them up, replaces them on SIGHUP, ends
them in order. It stays small: what parts are made of (torch, FastAPI) is never imported here."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import structlog
from msgspec.structs import replace

from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.engine_process import ChildEvent, Died, EngineProcess, Started
from tenora_platform.gpu import choose_device
from tenora_platform.processes.handover import Handover
from tenora_platform.processes.held_process import HeldProcess
from tenora_platform.processes.metrics_dir import fresh_metrics_dir
from tenora_platform.processes.presence import Presence, Process, this_process
from tenora_platform.redis_client import open_redis, redis_seal
from tenora_platform.settings import Settings

API = "tenora_platform.processes.api"
WORKER = "tenora_platform.processes.worker"
_LAST_WORDS_S = 10  # for what was told to end, after which it is killed
_WORKER_END_S = 15.0
_log = structlog.get_logger(__name__)


class Supervisor:
    """`settings` are complete: servers' URLs, a model folder. `listener` is the API's port, ours
    until the end. Without `own_engine` the one at `engine` is somebody else's."""

    def __init__(
        self,
        settings: Settings,
        engine: EngineAddress,
        listener: socket.socket,
        *,
        own_engine: bool,
        own_worker: bool,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._address = engine
        self._metrics_dir = fresh_metrics_dir(settings.data_dir)
        self._engine: EngineProcess | None = None
        if own_engine:
            config = settings.to_engine_config()
            chosen = choose_device(settings.device)
            _log.info("device chosen", device=chosen.device, why=chosen.why)
            self._engine = EngineProcess(config, engine, on_event=self._note_engine)
        self._engine_restarts = 0
        self._process = this_process("supervisor")
        self._engine_record: Process | None = None
        self._apis = [self._api(f"api-{number}") for number in range(1, settings.workers + 1)]
        self._workers = [self._part("worker", WORKER, _WORKER_END_S)] if own_worker else []
        self._stopping = asyncio.Event()
        self._replacing: asyncio.Task[None] | None = None

    async def run(self, beside: Callable[[], Awaitable[None]]) -> None:
        """Until SIGINT or SIGTERM. `beside` is awaited beside the parts. Raises the engine's own
        error (ModelLoadError, MemoryBudgetError, EngineUnavailableError) if it cannot start."""
        self._take_signals()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stop_engine)
            stack.push_async_callback(_stop_all, self._workers)
            stack.push_async_callback(self._stop_apis)
            engine = asyncio.create_task(self._start_engine())
            for part in (*self._apis, *self._workers):
                await part.start()
            along = asyncio.create_task(_awaited(beside))
            present = asyncio.create_task(self._keep_presence())
            stack.push_async_callback(self._cancel, engine, along, present)
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait((engine, stopping), return_when=asyncio.FIRST_COMPLETED)
            if engine.done():
                engine.result()
            await stopping

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        # A terminal that is closed says SIGHUP too; who was started without one is told by it.
        on_hangup = self._stopping.set if sys.stdin.isatty() else self._begin_replacing
        loop.add_signal_handler(signal.SIGHUP, on_hangup)

    def _begin_replacing(self) -> None:
        if self._stopping.is_set():
            return
        if self._replacing is None or self._replacing.done():
            self._replacing = asyncio.create_task(self._replace())

    async def _replace(self) -> None:
        """All but the engine, one by one: what the disk holds now serves from then on."""
        _log.info("replacing processes one by one; the engine keeps running")
        for part in (*self._apis, *self._workers):
            await part.replace()
        _log.info("processes replaced")

    async def _cancel(self, *tasks: asyncio.Task[None]) -> None:
        there = [*tasks, *([] if self._replacing is None else [self._replacing])]
        for task in there:
            task.cancel()
        await asyncio.gather(*there, return_exceptions=True)

    async def _start_engine(self) -> None:
        if self._engine is not None:
            await self._engine.start()

    async def _stop_engine(self) -> None:
        if self._engine is not None:
            await self._engine.stop()

    async def _stop_apis(self) -> None:
        self._listener.close()  # who comes now is refused as soon as the API processes do the same
        await _stop_all(self._apis)

    def _api(self, name: str) -> HeldProcess:
        stop_s = math.ceil(self._settings.drain_s) + _LAST_WORDS_S
        return self._part(name, API, stop_s, self._listener.fileno())

    def _part(
        self, name: str, module: str, stop_s: float, listen_fd: int | None = None
    ) -> HeldProcess:
        def line(turn: int) -> bytes:
            counts_as = f"{name}.{turn}"
            return Handover(
                name, self._settings, self._address, self._metrics_dir, counts_as, listen_fd
            ).to_line()

        pass_fds = () if listen_fd is None else (listen_fd,)
        return HeldProcess(name, module, line, stop_s=stop_s, pass_fds=pass_fds)

    def _note_engine(self, event: ChildEvent) -> None:
        if isinstance(event, Started):
            self._engine_record = this_process("engine", pid=event.pid)
        elif isinstance(event, Died):
            self._engine_restarts += 1
        if self._engine_record is not None and not isinstance(event, Started):
            outages = {"engine": str(event.error)}
            self._engine_record = replace(self._engine_record, outages=outages)

    def _said(self) -> list[Process]:
        restarts = {part.name: part.restarts for part in (*self._apis, *self._workers)}
        if self._engine is not None:
            restarts["engine"] = self._engine_restarts
        records = [replace(self._process, restarts=restarts)]
        return records if self._engine_record is None else [*records, self._engine_record]

    async def _keep_presence(self) -> None:
        assert self._settings.redis_url is not None
        async with open_redis(self._settings.redis_url) as redis:
            seal = redis_seal(self._settings.server_secret())
            await Presence(redis, seal, self._said).keep()


async def _stop_all(parts: list[HeldProcess]) -> None:
    await asyncio.gather(*(part.stop() for part in parts))


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()
