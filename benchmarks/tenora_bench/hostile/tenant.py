"""The hostile tenant: a process of its own, in cores that nobody else wants, which sends what
`inputs` makes over a bounded number of connections while it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tenora_bench.hostile.inputs import SHOTS, Shot, Target, target_of
from tenora_bench.intake.client import How, Uploader
from tenora_bench.intake.files import File, good, harmful
from tenora_engine.priority import stand_behind

AT_ONCE = 64  # requests of a burst
SLOW = 8  # connections whose bodies never end
ENDPOINTS = 20
ADAPTER = "mine"
_TIMEOUT_S = 60.0
_SLOW_PIECE_S = 0.1
_LATE_S = 3.0  # after which nothing more comes of a request that was cut
NICENESS = 10

OWN_KINDS = ("burst", "slow-bodies", "uploads", "webhooks")
KINDS = (*SHOTS, *OWN_KINDS)


@dataclass(frozen=True)
class Orders:
    """Orders to a hostile tenant."""

    url: str
    key: str
    model: Path
    kinds: tuple[str, ...] = KINDS
    connections: int = 32
    niceness: int = NICENESS


@dataclass
class Done:
    """The result of one hostile spell: by kind, how often each status was answered ("cut": the
    connection was)."""

    statuses: dict[str, dict[str, int]] = field(default_factory=dict)
    cpu_s: float = 0.0


@contextmanager
def hostile_tenant(orders: Orders) -> Iterator[HostileTenant]:
    """A process that waits to be told. Raises what its beginning raises, as BenchError does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_live, args=(orders, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield HostileTenant(ours)
    finally:
        process.kill()
        process.join()


class HostileTenant:
    """The other end of its process."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    async def begin(self) -> None:
        await self._ask("begin")

    async def stop(self) -> Done:
        """Returns once what it began has ended at the server, too, as far as it can be seen."""
        return Done(**await self._ask("stop"))

    async def _ask(self, what: str) -> Any:
        self._line.send(what)
        return await asyncio.to_thread(self._line.recv)


def _live(orders: Orders, line: Connection) -> None:
    os.setsid()  # Linux shares the cores among sessions first
    stand_behind(orders.niceness)
    asyncio.run(_obey(orders, line))


async def _obey(orders: Orders, line: Connection) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    headers = {"authorization": f"Bearer {orders.key}"}
    async with aiohttp.ClientSession(orders.url, connector=connector, timeout=timeout) as http:
        tenant = _Tenant(orders, http, headers)
        while True:
            with contextlib.suppress(EOFError):
                if await asyncio.to_thread(line.recv) == "begin":
                    async with tenant.at_it() as done:
                        line.send("begun")
                        await asyncio.to_thread(line.recv)
                    await tenant.clean_up()
                    line.send(asdict(done))


class _Tenant:
    def __init__(
        self, orders: Orders, http: aiohttp.ClientSession, headers: dict[str, str]
    ) -> None:
        self._orders = orders
        self._http = http
        self._headers = headers
        self._making: dict[str, Callable[[], Awaitable[None]]] = {}
        self._statuses: dict[str, Counter[str]] = {}

    @asynccontextmanager
    async def at_it(self) -> AsyncIterator[Done]:
        """While the block runs. What it is given is complete when the block has ended."""
        if not self._making:
            target = await self._look_around()
            self._making = {kind: self._doing(kind, target) for kind in self._of_connections()}
        self._statuses, done, before_s = {}, Done(), _cpu_s()
        async with self._silence() as silent:
            working = [asyncio.create_task(each) for each in self._all(silent)]
            try:
                yield done
            finally:
                for task in working:
                    task.cancel()
                await asyncio.gather(*working, return_exceptions=True)
        done.cpu_s = _cpu_s() - before_s
        done.statuses = {kind: dict(found) for kind, found in self._statuses.items()}

    async def _look_around(self) -> Target:
        """With an adapter of its own."""
        uploader = Uploader(self._http, self._headers["authorization"].removeprefix("Bearer "))
        await uploader.upload(good(self._orders.model, 1), ADAPTER, "form")
        while await uploader.waiting():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.2)
        async with self._http.get("/openapi.json") as reply:
            document = await reply.json()
        async with self._http.get("/v1/models", headers=self._headers) as reply:
            models = (await reply.json())["data"]
        return target_of(document, models[0]["id"], ADAPTER)

    def _of_connections(self) -> list[str]:
        """The kinds with which each connection is busy, one after the other."""
        return [kind for kind in self._orders.kinds if kind not in ("slow-bodies", "webhooks")]

    def _all(self, silent: str) -> Iterator[Any]:
        kinds = list(self._making)
        slow = SLOW if "slow-bodies" in self._orders.kinds else 0
        paths = ("/v1/adapters", "/v1/chat/completions", "/v1/evaluations")
        for number in range(slow):
            yield self._drip(paths[number % len(paths)])
        if "webhooks" in self._orders.kinds:
            yield self._wait_for_events(silent)
        for number in range(self._orders.connections - slow if kinds else 0):
            turn = number % len(kinds)
            yield self._go_on([self._making[kind] for kind in (*kinds[turn:], *kinds[:turn])])

    async def _go_on(self, doing: Sequence[Callable[[], Awaitable[None]]]) -> None:
        for do in cycle(doing):
            await do()

    def _doing(self, kind: str, target: Target) -> Callable[[], Awaitable[None]]:
        """Return the call that does the next of a kind."""
        if kind == "uploads":
            files = harmful(self._orders.model)
            hows: list[tuple[File, How]] = [(file, "form") for file in files]
            hows += [(file, "broken off") for file in files if len(file.weights) > 10_000]
            hows += [(file, "abandoned") for file in files[:3]]
            coming = cycle(hows)
            return lambda: self._upload(*next(coming))
        if kind == "burst":
            shots = SHOTS["reads"](target)
            return lambda: self._burst([next(shots) for _ in range(AT_ONCE)])
        of_kind = SHOTS[kind](target)
        return lambda: self._send(kind, next(of_kind))

    async def _burst(self, shots: Sequence[Shot]) -> None:
        await asyncio.gather(*(self._send("burst", shot) for shot in shots))

    async def _upload(self, file: File, how: How) -> None:
        key = self._headers["authorization"].removeprefix("Bearer ")
        uploaded = await Uploader(self._http, key).upload(file, "trash", how)
        self._note("uploads", uploaded.answer.split(" ")[0] or "cut")

    async def _send(self, kind: str, shot: Shot) -> None:
        headers = {**self._headers, "content-type": "application/json", **shot.headers}
        if shot.key is not None:
            headers["authorization"] = f"Bearer {shot.key}"
        try:
            async with self._http.request(
                shot.method, shot.path, data=shot.body, headers=headers
            ) as reply:
                async for _ in reply.content.iter_chunked(2**16):
                    pass
            self._note(kind, str(reply.status))
        except (aiohttp.ClientError, TimeoutError, OSError):
            self._note(kind, "cut")

    def _note(self, kind: str, status: str) -> None:
        self._statuses.setdefault(kind, Counter())[status] += 1

    async def _drip(self, path: str) -> None:
        """A body of which a byte comes now and then, again and again."""
        to = urlsplit(self._orders.url)
        kind = "multipart/form-data; boundary=b" if "adapters" in path else "application/json"
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n"
            f"authorization: {self._headers['authorization']}\r\ncontent-length: 500000\r\n\r\n"
        )
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(to.hostname, to.port)
                try:
                    writer.write(head.encode())
                    while not reader.at_eof() and not writer.is_closing():
                        writer.write(b"[")
                        await writer.drain()
                        await asyncio.sleep(_SLOW_PIECE_S)
                finally:
                    writer.close()
            self._note("slow-bodies", "cut")
            await asyncio.sleep(_SLOW_PIECE_S)

    @asynccontextmanager
    async def _silence(self) -> AsyncIterator[str]:
        """The URL of a receiver that takes everything and answers nothing."""

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                while await reader.read(2**16):
                    pass
            writer.close()

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        finally:
            server.close()

    async def _wait_for_events(self, silent: str) -> None:
        """Endpoints that never answer, and keys, of which they are told."""
        for number in range(ENDPOINTS):
            body = json.dumps({"url": f"{silent}{number}"}).encode()
            await self._send("webhooks", Shot("POST", "/v1/webhook_endpoints", body))
        for number in count():
            body = json.dumps({"name": f"w{number}"}).encode()
            await self._send("webhooks", Shot("POST", "/v1/api_keys", body))
            await asyncio.sleep(0.2)

    async def clean_up(self) -> None:
        """So that the next measurement is of a quiet server."""
        uploader = Uploader(self._http, self._headers["authorization"].removeprefix("Bearer "))
        for one in await self._listed("/v1/webhook_endpoints"):
            await self._send("end", Shot("DELETE", f"/v1/webhook_endpoints/{one['id']}"))
        await self._end_evaluations()
        until_s = time.monotonic() + _TIMEOUT_S
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError):
            while time.monotonic() < until_s and await uploader.waiting():  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        await uploader.delete("trash")

    async def _end_evaluations(self) -> None:
        """Those, too, whose requests were cut and are being worked on all the same."""
        none_s, until_s = time.monotonic(), time.monotonic() + _TIMEOUT_S
        while none_s + _LATE_S > time.monotonic() < until_s:
            states = ("queued", "running")
            for one in await self._listed("/v1/evaluations"):
                if one["state"] in states:
                    none_s = time.monotonic()
                    await self._send("end", Shot("POST", f"/v1/evaluations/{one['id']}/cancel"))
            await asyncio.sleep(0.5)

    async def _listed(self, path: str) -> list[dict[str, Any]]:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError):
            async with self._http.get(f"{path}?limit=100", headers=self._headers) as reply:
                found: list[dict[str, Any]] = (await reply.json())["data"]
                return found
        return []


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
