"""Connections as sockets: unfinished heads, stalled bodies and too many of one address are closed
in time, and the probes answer meanwhile."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from api_harness import Api, TestTenant
from served_api import HELLO, reset, served
from tenora_engine.machine import OPEN_FILES_MAX, raise_open_files
from tenora_platform.connections import ConnectionLimits

Socket = tuple[asyncio.StreamReader, asyncio.StreamWriter]
UNFINISHED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: tenora\r\n"


class Sockets:
    """Raw connections to one server, closed at the end."""

    def __init__(self, base_url: str) -> None:
        url = httpx.URL(base_url)
        self.host, self.port = url.host, url.port
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"") -> Socket:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        self._open.append(writer)
        writer.write(data)
        return reader, writer

    def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes."""
    async with asyncio.timeout(20):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant()


@pytest.fixture
async def strict(api: Api) -> AsyncIterator[str]:
    limits = ConnectionLimits(
        total=40, per_address=20, head_s=0.5, body_rate=1000, body_window_s=0.5
    )
    async with served(api, limits) as url:
        yield url.removesuffix("/v1")


def test_the_soft_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        raised = raise_open_files()
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised == OPEN_FILES_MAX if hard == -1 else min(hard, OPEN_FILES_MAX)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_probes_answer_beside_a_thousand_unfinished_heads(api: Api) -> None:
    """More than 1,000 of them from one address, none of which is late yet."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        pytest.skip("this machine lets a process open too few files for both ends")
    raise_open_files()
    async with served(api, ConnectionLimits(total=600, per_address=500)) as url:
        sockets = Sockets(url)
        for _ in range(1100):
            await sockets.connect(UNFINISHED)
        async with httpx.AsyncClient(base_url=url.removesuffix("/v1")) as http:
            assert (await http.get("/healthz", timeout=20)).status_code == 200
            assert (await http.get("/readyz", timeout=20)).status_code == 200
        sockets.close()


async def test_a_late_head_is_cut(strict: str) -> None:
    sockets = Sockets(strict)
    late = [await sockets.connect(data) for data in (b"", b"GET", UNFINISHED)]
    for reader, _ in late:
        assert b"408" in await answer_of(reader)
    sockets.close()


async def test_a_head_without_end_is_refused(strict: str) -> None:
    sockets = Sockets(strict)
    reader, writer = await sockets.connect(UNFINISHED)
    writer.write(b"x-long: " + b"x" * 100_000)
    assert b"431" in await answer_of(reader)
    sockets.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", "application/json"),
        ("/v1/adapters", "multipart/form-data; boundary=b"),
    ],
)
async def test_a_stalled_body_is_cut_and_a_slow_one_is_not(
    strict: str, tenant: TestTenant, path: str, kind: str
) -> None:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {tenant.key}\r\n"
        f"content-type: {kind}\r\ncontent-length: 20000\r\n\r\n"
    ).encode()
    sockets = Sockets(strict)
    stalled = [await sockets.connect(head + b"--b\r\n") for _ in range(5)]
    slow, writing = await sockets.connect(head)
    for _ in range(20):  # 2 s in all, four windows
        writing.write(b"-" * 1000)
        await asyncio.sleep(0.1)
    for reader, _ in stalled:
        assert b"408" in await answer_of(reader)
    async with asyncio.timeout(20):
        assert b"400" in await slow.readline()  # read to its end, and neither
    sockets.close()


async def test_a_stream_that_nobody_reads_is_ended_and_a_slow_reader_is_not(
    api: Api, strict: str
) -> None:
    """Of an answer much larger than what the kernel holds for a connection. What the client does
    not take waits in no memory of ours beyond a connection's buffer, and not for long."""
    await api.put_plan("unlimited", {})
    tenant = await api.new_tenant("reader", plan="unlimited")
    api.engine.answer = lambda *_: "x" * 400
    body = json.dumps(
        {"model": "fake-base", "messages": HELLO, "n": 128, "max_tokens": 400, "stream": True}
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {tenant.key}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    url = httpx.URL(strict)
    ends = [socket.socket() for _ in range(2)]
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.setblocking(False)
        await asyncio.get_running_loop().sock_connect(end, (url.host, url.port))
        await asyncio.get_running_loop().sock_sendall(end, head + body)
    idle, reading = ends

    async def read_slowly() -> int:
        taken = 0
        while len(api.engine.aborted) < 1:
            taken += len(await asyncio.get_running_loop().sock_recv(reading, 4096))
            await asyncio.sleep(0.02)
        return taken

    try:
        async with asyncio.timeout(30):
            taken = await read_slowly()
        assert taken > 100_000, "it took its part meanwhile"
        assert len(api.engine.requests) == 2
        ended = {request_id for request_id, _, _ in api.engine.aborted}
        assert len(ended) == 1
        assert await asyncio.get_running_loop().sock_recv(reading, 4096), "the other one goes on"
    finally:
        for end in (idle, reading):
            end.close()
        reset(api.engine)


async def test_an_address_with_too_many_is_told_and_its_idle_ones_make_room(
    api: Api, strict: str, tenant: TestTenant
) -> None:
    """Twenty busy connections of one address: the next is refused, a probe is not. An idle one, in
    contrast, makes room."""
    api.engine.gate = asyncio.Event()
    headers = {"authorization": f"Bearer {tenant.key}"}
    body = {"model": "fake-base", "messages": HELLO}
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=strict, limits=limits, timeout=20) as http:
        path = "/v1/chat/completions"
        busy = [asyncio.create_task(http.post(path, headers=headers, json=body)) for _ in range(20)]
        async with asyncio.timeout(10):
            while len(api.engine.requests) < 20:  # noqa: ASYNC110 - the engine sets no event
                await asyncio.sleep(0.01)
        refused = await http.post(path, headers=headers, json=body)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "too_many_connections"
        assert (await http.get("/healthz")).status_code == 200
        api.engine.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*busy)} == {200}
        await asyncio.sleep(1.1)  # they are idle now, and so are the probe's
        async with httpx.AsyncClient(base_url=strict, timeout=20) as other:
            assert (await other.post(path, headers=headers, json=body)).status_code == 200
