"""A TCP proxy before a server of ours that refuses, swallows, delays or garbles what passes, and
goes back to passing it on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from sqlalchemy.engine import make_url

from tenora_platform.db import psycopg_url

State = Literal["works", "refused", "hanging", "slow", "garbage"]
Upstream = str | int
"""The path of a unix socket, or a port of this machine."""

_SLOW_S = 0.01
_GARBAGE = b"\xffH\x00 what this is nobody knows\r\n" * 20


class FaultProxy:
    """On a port of its own. A new state is everybody's: connections of the one before are cut,
    unless they are to hang."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.state: State = "works"
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def set(self, state: State) -> None:
        self.state = state
        if state != "hanging":
            self.cut()
        if state == "refused":
            await self._close()
        elif self._server is None:
            await self.listen()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        await self._close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._open.add(writer)
        with contextlib.suppress(OSError):
            if isinstance(self.upstream, int):
                out, back = await asyncio.open_connection("127.0.0.1", self.upstream)
            else:
                out, back = await asyncio.open_unix_connection(self.upstream)
            self._open.add(back)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, back, writer))
                    both.create_task(self._pass(out, writer, writer))
            except* OSError:
                pass
            finally:
                self._open.discard(back)
                back.transport.abort()
        self._open.discard(writer)
        writer.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        while data := await reader.read(65536):
            if self.state == "hanging":
                continue
            if self.state == "garbage":
                client.write(_GARBAGE)
                await client.drain()
                continue
            if self.state == "slow":
                await asyncio.sleep(_SLOW_S)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one end's end is both ends'


@asynccontextmanager
async def fault_proxy(upstream: Upstream) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(upstream)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()


def postgres_place(url: str) -> Upstream:
    """Where an embedded PostgreSQL of this URL is."""
    query = make_url(url).query
    if "host" in query:
        return f"{query['host']}/.s.PGSQL.{query['port']}"
    port = make_url(url).port
    assert port is not None
    return port


def postgres_by(url: str, proxy: FaultProxy) -> str:
    """The same database through the proxy."""
    direct = psycopg_url(url).difference_update_query(["host", "port"])
    through = direct.set(host="127.0.0.1", port=proxy.port)
    return through.render_as_string(hide_password=False)
