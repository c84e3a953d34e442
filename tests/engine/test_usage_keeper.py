"""Usage is on the disk before the end of its sequence is told, and nobody else waits for that."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import zmq

import fake_step_engine
from engine_clients import FOREVER, close, config, everything, first_of, in_process_client, no_text
from fake_step_engine import request, usage_record
from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineUnavailableError
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.keeper import UsageKeeper
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_engine.transport.serving import EngineServer

PATIENCE_S = 20.0


class SlowDisk:
    """`os.fdatasync` begins, and ends when it is let to."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.syncs = self.synced = 0
        self._sync = os.fdatasync

    def fdatasync(self, descriptor: int) -> None:
        self.syncs += 1
        self.begun.set()
        self.may_end.wait(5)  # no longer, so that who waits in vain is seen to
        self._sync(descriptor)
        self.synced += 1


def on_disk(outbox: Path) -> bytes:
    return b"".join(path.read_bytes() for path in outbox.glob("*.segment"))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    slow = SlowDisk()
    monkeypatch.setattr("os.fdatasync", slow.fdatasync)
    yield slow
    slow.may_end.set()


@pytest.fixture(params=["in this process", "through a socket"])
async def client(
    request: pytest.FixtureRequest, tmp_path: Path, disk: SlowDisk
) -> AsyncIterator[EngineClient]:
    if request.param == "in this process":
        here = in_process_client(tmp_path)
        await here.start()
        yield here
        disk.may_end.set()
        await here.stop()
        return
    endpoint = f"ipc://{tmp_path}/engine.sock"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(endpoint)
        server = EngineServer(router, "token", UsageOutbox(tmp_path / "outbox"))
        engine = fake_step_engine.build(config())
        serving = asyncio.create_task(asyncio.to_thread(server.serve, engine))
        remote = RemoteEngineClient(EngineAddress(endpoint, "token"), "fake", no_text)
        await remote.start()
        yield remote
        disk.may_end.set()
        await remote.stop()
        server.stop()
        assert await serving is None


async def test_others_tokens_do_not_wait_for_the_disk(client: EngineClient, disk: SlowDisk) -> None:
    running = client.submit(request("running", max_tokens=FOREVER))
    await first_of(running)
    ends = client.submit(request("ends", max_tokens=2))
    assert [type(await first_of(ends)) for _ in range(2)] == [TokenEvent, TokenEvent]
    assert await asyncio.to_thread(disk.begun.wait, PATIENCE_S)
    for _ in range(200):
        assert isinstance(await first_of(running), TokenEvent)
    end = asyncio.ensure_future(first_of(ends))
    await asyncio.sleep(0.05)
    assert not end.done(), "its record is not on the disk yet"
    assert (disk.syncs, disk.synced) == (1, 0)
    disk.may_end.set()
    assert isinstance(await end, FinishEvent)
    assert disk.synced == 1
    await close(running)


async def test_an_end_is_told_after_its_tokens_and_its_record(
    client: EngineClient, disk: SlowDisk, tmp_path: Path
) -> None:
    disk.may_end.set()

    async def check(name: str, tokens: int) -> None:
        events = await everything(client, request(name, max_tokens=tokens, n=2))
        written = on_disk(tmp_path / "outbox")
        assert all(f"{name}:{index}".encode() in written for index in (0, 1))
        for index in (0, 1):
            kinds = [type(event) for event in events if event.index == index]
            assert kinds == [TokenEvent] * tokens + [FinishEvent]

    await asyncio.gather(*(check(f"r{number}", 1 + number % 5) for number in range(30)))
    assert disk.synced < 60, "ends that come together are written together"


def test_what_comes_while_the_disk_is_busy_is_written_at_once(
    tmp_path: Path, disk: SlowDisk
) -> None:
    keeper = UsageKeeper(UsageOutbox(tmp_path))
    first = keeper.append([usage_record("first")])
    assert disk.begun.wait(PATIENCE_S)
    others = [keeper.append([usage_record(f"r{number}")]) for number in range(50)]
    assert not first.done()
    disk.may_end.set()
    for future in (first, *others):
        future.result(PATIENCE_S)
    assert disk.syncs == 2
    names = [record.event_id for record in keeper.oldest().result(PATIENCE_S)]
    assert names == ["first:0", *(f"r{number}:0" for number in range(50))]
    keeper.acknowledge(["first:0"]).result(PATIENCE_S)
    assert len(keeper.oldest().result(PATIENCE_S)) == 50
    keeper.close()
    with pytest.raises(EngineUnavailableError):
        keeper.append([])


def test_closing_writes_what_was_given(tmp_path: Path, disk: SlowDisk) -> None:
    keeper = UsageKeeper(UsageOutbox(tmp_path))
    futures = [keeper.append([usage_record(f"r{number}")]) for number in range(5)]
    threading.Timer(0.05, disk.may_end.set).start()
    keeper.close()
    assert all(future.done() for future in futures)
    again = UsageOutbox(tmp_path)
    assert len(again.oldest()) == 5
    again.close()
