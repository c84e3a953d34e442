"""An engine that stops answering shows at once and goes on where it was; one that hangs or dies is
started again, soon also after many deaths in a row."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

import fake_step_engine
from engine_clients import FOREVER, config, everything, exhaust, first_of, process_client
from fake_step_engine import request
from tenora_engine.backoff import Backoff
from tenora_engine.errors import EngineError, EngineUnavailableError
from tenora_engine.transport.engine_process import EngineProcess
from tenora_engine.transport.messages import Hello, Ping
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.serving import EngineServer
from tenora_engine.transport.wire import encode

pytestmark = pytest.mark.usefixtures("importable_by_children")


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """How long it took."""
    started = time.monotonic()
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.02)
    return time.monotonic() - started


async def test_a_stopped_engine_shows_and_goes_on_where_it_was(tmp_path: Path) -> None:
    client = process_client(tmp_path)
    await client.start()
    try:
        with pytest.raises(TimeoutError):  # idle, only its Pongs say that it lives
            await until(lambda: not client.ready, 3.5)
        running = client.submit(request("running", max_tokens=FOREVER))
        await first_of(running)
        assert client.pid is not None
        pid = client.pid
        os.kill(pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        await until(lambda: not client.ready, 5)
        with pytest.raises(EngineUnavailableError, match="does not answer"):
            await first_of(client.submit(request("meanwhile")))
        await asyncio.sleep(stopped_s + 5 - time.monotonic())
        os.kill(pid, signal.SIGCONT)
        await until(lambda: client.ready, 20)
        assert client.pid == pid
        for _ in range(2000):  # more than can have been on its way: it generates again
            await first_of(running)
        assert len(await everything(client, request("after", max_tokens=2))) == 3
    finally:
        await client.stop()


async def test_the_transports_own_standstill_is_not_its_clients_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on after longer than a silent client is waited for, with all their pings unread."""
    monkeypatch.setattr("tenora_engine.transport.wire.CLIENT_LEASE_S", 2.0)
    monkeypatch.setattr("tenora_engine.transport.clients._STANDSTILL_S", 1.5)
    endpoint = f"ipc://{tmp_path}/still.sock"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(endpoint)
        server = EngineServer(router, "token", UsageOutbox(None))
        serving = asyncio.create_task(
            asyncio.to_thread(server.serve, fake_step_engine.build(config()))
        )
        with zmq.asyncio.Context() as clients, clients.socket(zmq.DEALER) as raw:
            raw.setsockopt(zmq.LINGER, 0)
            raw.connect(endpoint)
            await raw.send(encode(Hello("token")))
            assert await kind_of(raw) == "ready"
            server._later(lambda: time.sleep(3))
            for _ in range(12):
                await raw.send(encode(Ping()))
                await asyncio.sleep(0.3)
            answers = [await kind_of(raw) for _ in range(12)]
        server.stop()
        await serving
    assert answers == ["pong"] * 12


async def kind_of(raw: zmq.asyncio.Socket) -> str:
    async with asyncio.timeout(20):
        return str(msgspec.msgpack.decode(await raw.recv())["type"])


async def test_a_hung_engine_is_killed_and_started_again(tmp_path: Path) -> None:
    client = process_client(tmp_path, hung_s=4.5)
    await client.start()
    try:
        running = client.submit(request("running", max_tokens=FOREVER))
        await first_of(running)
        assert client.pid is not None
        hung = client.pid
        os.kill(hung, signal.SIGSTOP)
        with pytest.raises(EngineUnavailableError, match="SIGKILL"):
            async with asyncio.timeout(30):
                await exhaust(running)
        await until(lambda: client.ready, 30)
        assert client.pid != hung
        assert len(await everything(client, request("after", max_tokens=2))) == 3
    finally:
        await client.stop()


async def test_what_keeps_an_engine_from_starting_again_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever `_launch` raises, the next attempt comes: nobody else starts an engine."""
    client = process_client(tmp_path)
    await client.start()
    launch, failures = client._process._launch, [OSError("no more files"), EngineError("no memory")]

    async def sometimes(self: EngineProcess) -> None:
        if failures:
            raise failures.pop()
        await launch()

    monkeypatch.setattr(EngineProcess, "_launch", sometimes)
    try:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: not client.ready, 10)
        await until(lambda: client.ready, 30)
        assert not failures
    finally:
        await client.stop()


def test_deaths_in_a_row_wait_little_and_a_healthy_run_begins_anew() -> None:
    backoff = Backoff()
    waits = [backoff.after(ran_s=0.0) for _ in range(8)]
    assert waits == sorted(waits)
    assert waits[0] <= 0.2
    assert waits[4] > 2, "not a tight loop"
    assert waits[-1] <= 5, "with a start of ten seconds it is back within fifteen"
    assert backoff.after(ran_s=1.0) == waits[-1] - 1.0, "starts are kept apart, not added to"
    assert backoff.after(ran_s=5.0) == 0.0, "its own start took longer than that"
    assert backoff.after(ran_s=60.0) == 0.0
    assert backoff.after(ran_s=0.0) == waits[1], "as after the first end"
