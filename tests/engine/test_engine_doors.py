"""Who is let in to an engine: over TCP who proves the client key, over a unix socket who may open
it; what crosses TCP cannot be read on the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import fake_step_engine
from engine_clients import FOREVER, close, config, everything, first_of, no_text
from fake_step_engine import request
from tenora_engine.errors import (
    EngineUnavailableError,
    InsecureEndpointError,
    InvalidRequestError,
)
from tenora_engine.machine import OPEN_FILES_MAX, raise_open_files
from tenora_engine.transport.address import (
    MESSAGE_MAX_BYTES,
    CurveKeys,
    EngineAddress,
    choose_endpoint,
)
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.process import ProcessEngineClient
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_engine.transport.serving import EngineServer

GREETING = b"\xff" + bytes(8) + b"\x7f\3\0" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""Of ZMTP 3.0, from a client that will prove a key."""

TOKEN = "the-token-that-nobody-may-read"
PROMPT_CONTEXT = "a-prompt-that-nobody-may-read"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("tempfile.tempdir", "/" + "d" * 200)
    endpoint, _ = choose_endpoint(None)
    assert endpoint.startswith("tcp://127.0.0.1:")
    return endpoint


@asynccontextmanager
async def engine_at(address: EngineAddress) -> AsyncIterator[None]:
    with address.listening() as router:
        server = EngineServer(router, address.token, UsageOutbox(None))
        engine = fake_step_engine.build(config())
        serving = asyncio.create_task(asyncio.to_thread(server.serve, engine))
        try:
            yield
        finally:
            server.stop()
            assert await serving is None


async def ask_at(address: EngineAddress, name: str = "asked") -> None:
    client = RemoteEngineClient(address, "fake", no_text, start_timeout_s=5)
    await client.start()
    asked = msgspec.structs.replace(
        request(name, max_tokens=2), context={"adapter": PROMPT_CONTEXT}
    )
    assert len(await everything(client, asked)) == 3
    await client.stop()


class Sniffer:
    """A port before another that keeps all that crosses."""

    def __init__(self, endpoint: str) -> None:
        self._host, _, port = endpoint.removeprefix("tcp://").partition(":")
        self._port = int(port)
        self.seen = bytearray()
        self._server: asyncio.Server | None = None

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(self._copy(near, forth), self._copy(far, back))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            self.seen += data
            target.write(data)
        target.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


def test_seeds_make_the_keys() -> None:
    keys = CurveKeys.derive(b"\1" * 32, b"\2" * 32)
    assert keys == CurveKeys.derive(b"\1" * 32, b"\2" * 32)
    assert len(set(msgspec.structs.astuple(keys))) == 4
    other = CurveKeys.derive(b"\1" * 32, b"\3" * 32)
    assert (other.server_public, other.server_secret) == (keys.server_public, keys.server_secret)
    assert other.client_public != keys.client_public
    with pytest.raises(ValueError, match="32 bytes"):
        CurveKeys.derive(b"\1" * 31, b"\2" * 32)


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("tcp://127.0.0.1:5555", "needs CURVE keys"),
        ("tcp://*:5555", "needs CURVE keys"),
        ("inproc://engine", "is not an engine's address"),
        ("ipc://relative.sock", "is not an engine's address"),
        ("ipc:///tmp/engine.sock", "everybody can write to /tmp"),
    ],
)
async def test_an_address_where_strangers_could_listen_is_refused(
    endpoint: str, words: str
) -> None:
    address = EngineAddress(endpoint, TOKEN)
    with pytest.raises(InsecureEndpointError, match=words), address.listening():
        pass
    with pytest.raises(InsecureEndpointError, match=words):
        await RemoteEngineClient(address, "fake", no_text).start()


async def test_the_loopback_that_is_chosen_for_want_of_a_path_needs_keys_too(
    endpoint: str,
) -> None:
    with pytest.raises(InsecureEndpointError, match="CURVE"):
        EngineAddress(endpoint, TOKEN).check()


async def test_nothing_that_crosses_tcp_can_be_read(endpoint: str) -> None:
    address = EngineAddress(endpoint, TOKEN, CurveKeys.random())
    sniffer = Sniffer(endpoint)
    async with engine_at(address):
        through = await sniffer.listen()
        await ask_at(msgspec.structs.replace(address, endpoint=through))
        await sniffer.close()
    assert len(sniffer.seen) > 500
    assert b"CURVE" in sniffer.seen, "it is the connection that was looked at"
    for secret in (TOKEN, PROMPT_CONTEXT, "hello", "asked"):
        assert secret.encode() not in sniffer.seen


async def test_a_client_with_another_key_gets_nothing(endpoint: str) -> None:
    """Although it knows the token; and the engine goes on for those who have the key."""
    seed = b"\1" * 32
    address = EngineAddress(endpoint, TOKEN, CurveKeys.derive(seed, b"\2" * 32))
    async with engine_at(address):
        for keys in (CurveKeys.derive(seed, b"\3" * 32), CurveKeys.random()):
            stranger = RemoteEngineClient(
                EngineAddress(endpoint, TOKEN, keys), "fake", no_text, start_timeout_s=1
            )
            with pytest.raises(EngineUnavailableError, match="expects other keys"):
                await stranger.start()
        await ask_at(address)


async def test_a_unix_socket_is_its_owners(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    address = EngineAddress(f"ipc://{folder}/engine.sock", TOKEN)
    before = os.umask(0)
    try:
        async with engine_at(address):
            assert mode_of(folder) == 0o700
            assert mode_of(folder / "engine.sock") == 0o600
            assert os.umask(0) == 0, "the process's own is as it was"
            await ask_at(address)
    finally:
        os.umask(before)


@pytest.fixture
async def engine_behind_tcp(
    endpoint: str, importable_by_children: None
) -> AsyncIterator[ProcessEngineClient]:
    """In a process of its own, whose files and memory are its own too."""
    client = ProcessEngineClient(
        config(), None, "fake_step_engine:build", no_text, start_timeout_s=60
    )
    assert client.address.endpoint.startswith("tcp://")
    await client.start()
    yield client
    await client.stop()


def place_of(client: ProcessEngineClient) -> tuple[str, int]:
    host, _, port = client.address.endpoint.removeprefix("tcp://").partition(":")
    return host, int(port)


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def test_a_thousand_strangers_shut_nobody_out(
    engine_behind_tcp: ProcessEngineClient,
) -> None:
    """Connections that say nothing, and some that begin a handshake, for as long as they may."""
    engine, pid = engine_behind_tcp, engine_behind_tcp.pid
    if raise_open_files() < 2048:
        pytest.skip("this machine lets a process open too few files")
    running = engine.submit(request("runs", max_tokens=FOREVER))
    await first_of(running)
    with ExitStack() as stack:
        for number in range(1000):
            stranger = stack.enter_context(socket.create_connection(place_of(engine)))
            if number % 2:
                stranger.sendall(GREETING)
        async with asyncio.timeout(20):
            while len(os.listdir(f"/proc/{pid}/fd")) > 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await ask_at(engine.address)
        assert (await engine.stats()).running == 1, "a friend is no stranger, however old"
        await first_of(running)
        more = [stack.enter_context(socket.create_connection(place_of(engine))) for _ in range(200)]
        await ask_at(engine.address, "again")
        assert more
    await close(running)


async def test_a_handshake_is_no_way_to_the_engines_memory(
    engine_behind_tcp: ProcessEngineClient,
) -> None:
    """A first frame that announces three gigabytes, and sends what it can."""
    engine, pid = engine_behind_tcp, engine_behind_tcp.pid
    assert pid is not None
    before, sent = resident_bytes(pid), 0
    piece = bytes(2**20)
    with socket.create_connection(place_of(engine)) as stranger:
        stranger.settimeout(20)
        stranger.sendall(GREETING + b"\6" + (3 * 2**30).to_bytes(8, "big"))
        with contextlib.suppress(OSError):
            while sent < 256 * 2**20:
                stranger.sendall(piece)
                sent += len(piece)
    assert sent < 256 * 2**20, "it was disconnected"
    assert resident_bytes(pid) - before < 64 * 2**20
    await ask_at(engine.address)


async def test_a_request_too_large_to_be_sent_is_its_senders_trouble_alone(
    engine_behind_tcp: ProcessEngineClient,
) -> None:
    engine = engine_behind_tcp
    running = engine.submit(request("runs", max_tokens=FOREVER))
    await first_of(running)
    vast = msgspec.structs.replace(
        request("vast", max_tokens=1), prompt_token_ids=[2**31] * (MESSAGE_MAX_BYTES // 4)
    )
    with pytest.raises(InvalidRequestError, match="shorten it"):
        await everything(engine, vast)
    assert engine.ready
    await first_of(running)
    await close(running)


async def test_an_engine_may_open_as_many_files_as_its_machine_lets_it(
    engine_behind_tcp: ProcessEngineClient,
) -> None:
    pid = engine_behind_tcp.pid
    assert pid is not None
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == (OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_an_address_is_not_taken_from_the_engine_that_has_it(
    tmp_path: Path, endpoint: str
) -> None:
    """ZeroMQ binds a unix path that is in use by taking it away."""
    at_path = EngineAddress(f"ipc://{tmp_path}/engine.sock", TOKEN)
    at_port = EngineAddress(endpoint, TOKEN, CurveKeys.random())
    for address, words in [
        (at_path, "another engine is listening"),
        (at_port, "cannot listen at tcp"),
    ]:
        async with engine_at(address):
            with pytest.raises(EngineUnavailableError, match=words), address.listening():
                pass
            await ask_at(address)


async def test_a_socket_that_a_killed_engine_left_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    address = EngineAddress(f"ipc://{path}", TOKEN)
    async with engine_at(address):
        await ask_at(address)
