"""ProcessEngineClient: an EngineProcess and the client of it, for whoever wants both in one."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tenora_engine.config import EngineConfig
from tenora_engine.errors import EngineError
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport.address import CurveKeys, EngineAddress, choose_endpoint
from tenora_engine.transport.engine_process import (
    BUILD_ENGINE,
    HUNG_S,
    ChildEvent,
    EngineProcess,
    Started,
)
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_engine.transport.routing import stopped_error

_FAREWELL_S = 2.0

_log = logging.getLogger(__name__)


class ProcessEngineClient(RemoteEngineClient):
    """An EngineClient that owns its engine process.

    `socket_dir` is where the unix socket goes (a private temporary directory when it is None or too
    long a path). The rest is EngineProcess's and RemoteEngineClient's.
    """

    def __init__(
        self,
        config: EngineConfig,
        socket_dir: Path | None = None,
        engine_factory: str = BUILD_ENGINE,
        text_factory: Callable[[str], TextProcessor] = TextProcessor,
        start_timeout_s: float = 600.0,
        stop_timeout_s: float = 15.0,
        log: IO[bytes] | None = None,
        hung_s: float = HUNG_S,
    ) -> None:
        endpoint, self._temporary_dir = choose_endpoint(socket_dir)
        address = EngineAddress(endpoint, secrets.token_urlsafe(32), CurveKeys.random())
        super().__init__(address, config.model, text_factory, start_timeout_s)
        self._ended: EngineError | None = None  # what the child died of, until those who wait know
        self._process = EngineProcess(
            config,
            address,
            engine_factory,
            start_timeout_s,
            stop_timeout_s,
            hung_s,
            log,
            self._take_note,
        )

    @property
    def pid(self) -> int | None:
        """See `EngineProcess`."""
        return self._process.pid

    @property
    def last_error(self) -> EngineError | None:
        """See `EngineProcess`."""
        return self._process.last_error

    async def start(self) -> None:
        """See `EngineClient.start`."""
        opened = asyncio.create_task(self._open())
        try:
            await self._process.start()
            await opened
        except BaseException:
            opened.cancel()
            await asyncio.gather(opened, return_exceptions=True)
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the engine: what runs is aborted and metered."""
        self._stopped.set()
        if await self._process.stop() == 0:
            await self._farewell()
        self._disconnect(stopped_error())
        if self._temporary_dir is not None:
            shutil.rmtree(self._temporary_dir, ignore_errors=True)

    async def _farewell(self) -> None:
        """Read what a child that ended well has sent to the last."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._said_goodbye.wait()
        except TimeoutError:
            _log.warning("the last events of the engine did not arrive")

    def _note_connection(self, there_is_one: bool) -> None:
        """What ends a connection is the child's end, of which Died knows more; it comes through
        another pipe, before this or after it."""
        if there_is_one:
            self._fail_ended()
            super()._note_connection(there_is_one)
        elif self._ended is not None:
            self._fail_ended()

    def _take_note(self, event: ChildEvent) -> None:
        if isinstance(event, Started):
            return
        self._ended = event.error
        if self._link is not None and self._link.connected:  # its last words are still to be read
            asyncio.get_running_loop().call_later(_FAREWELL_S, self._fail_ended)
        else:
            self._fail_ended()

    def _fail_ended(self) -> None:
        error, self._ended = self._ended, None
        if error is not None:
            self._lost(error)
