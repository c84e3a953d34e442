"""The HTTP server of the platform: uvicorn with our clock on each connection, and an end that lets
streams say why. Knows sockets and signals; the application is its caller's."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Sequence

import uvicorn
from starlette.types import ASGIApp

from tenora_engine.garbage import seldom_collect
from tenora_engine.machine import raise_open_files
from tenora_platform.connections import (
    FILES_KEPT,
    ConnectionLimits,
    Connections,
    guarded,
)
from tenora_platform.settings import Settings

_ARRIVING_S = 0.25
"""For requests whose connections were accepted before nobody new was: uvicorn closes a connection
that has none at once, and whoever was about to send one is refused without a word."""

CONNECTIONS_MIN = 16
_LAST_WORDS_S = 5  # for what was told to end, after which it is cut off


def connection_limits(settings: Settings) -> ConnectionLimits:
    """What the settings say, within what the process may open; raises its limit first."""
    files = raise_open_files()
    total = max(CONNECTIONS_MIN, min(settings.max_connections or files, files - FILES_KEPT))
    return ConnectionLimits(
        total=total,
        per_address=min(settings.max_address_connections, total),
        head_s=settings.head_timeout_s,
        body_rate=settings.min_body_rate,
    )


class PlatformServer(uvicorn.Server):
    """Serves `app`; `started` is called when it takes connections. When it is told to stop,
    `end_streams` is called at once and ends what would last for ever; requests have `drain_s`, then
    each of `end_all` ends some of them with words."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        *,
        limits: ConnectionLimits,
        end_all: Sequence[Callable[[], None]],
        end_streams: Callable[[], None] = lambda: None,
        lifespan: bool = True,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                lifespan="on" if lifespan else "off",
                http=guarded(Connections(limits)),
                ws="none",
                timeout_graceful_shutdown=math.ceil(settings.drain_s) + _LAST_WORDS_S,
                server_header=False,
                proxy_headers=settings.trusts_proxies,
                forwarded_allow_ips=settings.trusted_proxies,
            )
        )
        self._drain_s = settings.drain_s
        self._end_all = end_all
        self._end_streams = end_streams
        self._say_started = started

    def end_soon(self) -> None:
        """As SIGTERM; from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Else 4% of what a token costs goes to collections, and the oldest generation's stop all
        # streams for as long as it takes to look at routes, schemas and mappings once more.
        seldom_collect()
        if self.started:
            self._say_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(self._drain_s, end) for end in self._end_all]
        for server in self.servers:
            server.close()
        try:
            await asyncio.sleep(_ARRIVING_S)
            await super().shutdown(sockets)
        finally:
            for timer in timers:
                timer.cancel()
