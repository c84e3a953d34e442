"""Several processes share one engine: what becomes of what a client ran when it dies, stops or goes
on, and who is given the usage."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine_clients import (
    FOREVER,
    config,
    drained,
    everything,
    exhaust,
    first_of,
    no_text,
    process_client,
    take_usage,
    until_running,
)
from fake_step_engine import request
from tenora_engine.errors import EngineUnavailableError
from tenora_engine.events import UsageRecord
from tenora_engine.transport import wire
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.engine_process import EngineProcess
from tenora_engine.transport.link import EngineLink
from tenora_engine.transport.process import ProcessEngineClient
from tenora_engine.transport.remote import RemoteEngineClient

PATIENCE_S = 20.0

pytestmark = pytest.mark.usefixtures("importable_by_children")


@pytest.fixture(scope="module")
async def owner(
    tmp_path_factory: pytest.TempPathFactory, importable_by_children: None
) -> AsyncIterator[ProcessEngineClient]:
    client = process_client(tmp_path_factory.mktemp("engine"))
    await client.start()
    yield client
    await client.stop()


_OTHER = """
import asyncio, sys
from engine_clients import FOREVER, everything, exhaust, first_of, no_text
from fake_step_engine import request
from tenora_engine.errors import EngineUnavailableError
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.remote import RemoteEngineClient
async def main():
    client = RemoteEngineClient(EngineAddress(*sys.argv[1:3]), "fake", no_text)
    await client.start()
    events = client.submit(request(sys.argv[3], max_tokens=FOREVER, n=2))
    await first_of(events)
    print("runs", flush=True)
    try:
        await exhaust(events)
    except EngineUnavailableError as error:
        print(error, flush=True)
    await client._is_ready.wait()
    print(len(await everything(client, request("anew", max_tokens=2))), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@asynccontextmanager
async def another_process(address: EngineAddress, request_id: str) -> AsyncIterator[Process]:
    """It runs two sequences when this is entered."""
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _OTHER, address.endpoint, address.token, request_id),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await said(other) == "runs"
        yield other
    finally:
        if other.returncode is None:
            other.kill()
        await other.communicate()


async def said(other: Process) -> str:
    assert other.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return (await other.stdout.readline()).decode().strip()


@pytest.fixture(scope="module")
async def hasty(
    tmp_path_factory: pytest.TempPathFactory, importable_by_children: None
) -> AsyncIterator[ProcessEngineClient]:
    """One whose engine gives its clients leases of two seconds."""
    factory = "fake_step_engine:build_with_short_leases"
    client = process_client(tmp_path_factory.mktemp("hasty"), factory=factory)
    await client.start()
    yield client
    await client.stop()


_READER = """
import asyncio, sys, time
from engine_clients import no_text
from fake_step_engine import request
from tenora_engine.events import TokenEvent
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.remote import RemoteEngineClient
async def main():
    endpoint, token, name, most, stall_s = sys.argv[1:]
    client = RemoteEngineClient(EngineAddress(endpoint, token), "fake", no_text)
    await client.start()
    read = {0: [], 1: []}
    async for event in client.submit(request(name, max_tokens=int(most), n=2)):
        if not isinstance(event, TokenEvent):
            continue
        if not read[0]:
            print("runs", flush=True)
            time.sleep(float(stall_s))
        read[event.index] += event.token_ids
    print(all(ids == list(range(100, 100 + int(most))) for ids in read.values()), flush=True)
    await client.stop()
asyncio.run(main())
"""


@asynccontextmanager
async def a_reader(
    address: EngineAddress, request_id: str, max_tokens: int, stall_s: float = 0.0
) -> AsyncIterator[Process]:
    """Another process that reads one request to its end, and then says whether each of its two
    sequences had every token once and in order. Its loop stalls once, after the first token."""
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _READER, address.endpoint, address.token),
        *(request_id, str(max_tokens), str(stall_s)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await said(other) == "runs"
        yield other
    finally:
        if other.returncode is None:
            other.kill()
        await other.communicate()


async def test_a_client_that_was_stopped_for_a_while_reads_on(owner: ProcessEngineClient) -> None:
    """It was dropped after four seconds. Others are served meanwhile."""
    await drained(owner)
    async with a_reader(owner.address, "resumed", 4000) as other:
        other.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 5.5:
            assert len(await everything(owner, request("meanwhile", max_tokens=500))) == 501
        other.send_signal(signal.SIGCONT)
        assert await said(other) == "True"
    usage = [record for record in await drained(owner) if record.request_id == "resumed"]
    assert [(u.event_id, u.finish_reason, u.output_tokens) for u in usage] == [
        ("resumed:0", "length", 4000),
        ("resumed:1", "length", 4000),
    ]


async def test_a_thread_vouches_for_a_loop_that_stalls(hasty: ProcessEngineClient) -> None:
    """For longer than the lease."""
    await drained(hasty)
    async with a_reader(hasty.address, "stalled", 500, stall_s=4.0) as other:
        assert await said(other) == "True"
    usage = await drained(hasty)
    assert [(u.finish_reason, u.output_tokens) for u in usage] == [("length", 500)] * 2


async def test_an_engine_started_again_meanwhile_knows_nothing_of_a_stopped_clients_requests(
    tmp_path: Path,
) -> None:
    owner = process_client(tmp_path)
    await owner.start()
    try:
        async with another_process(owner.address, "before") as other:
            other.send_signal(signal.SIGSTOP)
            first_pid = owner.pid
            assert first_pid is not None
            os.kill(first_pid, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while owner.pid == first_pid or not owner.ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            other.send_signal(signal.SIGCONT)
            assert await said(other) == "the engine has disconnected; try again later"
            assert await said(other) == "3"
    finally:
        await owner.stop()


async def test_a_stopped_client_loses_what_it_ran_with_its_lease_and_begins_anew(
    hasty: ProcessEngineClient,
) -> None:
    owner = hasty
    await drained(owner)
    async with another_process(owner.address, "stopped") as other:
        await until_running(owner, 2)
        other.send_signal(signal.SIGSTOP)
        await until_running(owner, 0)
        usage = await drained(owner)
        assert [(u.event_id, u.finish_reason) for u in usage] == [
            ("stopped:0", "abort"),
            ("stopped:1", "abort"),
        ]
        assert all(u.output_tokens > 0 for u in usage)
        other.send_signal(signal.SIGCONT)
        assert await said(other) == "the engine no longer knows this client"
        assert await said(other) == "3"
    assert owner.ready


async def test_a_killed_client_loses_what_it_ran(owner: ProcessEngineClient) -> None:
    """Not by its lease: `until_running` gives up sooner."""
    assert PATIENCE_S < wire.CLIENT_LEASE_S
    await drained(owner)
    async with another_process(owner.address, "killed") as other:
        await until_running(owner, 2)
        other.kill()
        await until_running(owner, 0)
        assert [u.finish_reason for u in await drained(owner)] == ["abort", "abort"]


async def test_usage_is_with_one_client_at_a_time(owner: ProcessEngineClient) -> None:
    """What one has been given the other is not, until the first has left."""
    await drained(owner)
    first, second = [RemoteEngineClient(owner.address, "fake", no_text) for _ in range(2)]
    await asyncio.gather(first.start(), second.start())
    try:
        await everything(owner, request("one", max_tokens=1))
        assert ids(await take_usage(first)) == ["one:0"]
        waits = asyncio.create_task(take_usage(second))
        await everything(owner, request("two", max_tokens=1))
        async with asyncio.timeout(PATIENCE_S):
            assert ids(await waits) == ["two:0"]
        assert ids(await take_usage(first)) == ["one:0"], "it may ask again"
        await first.stop()
        async with asyncio.timeout(PATIENCE_S):
            while ids(found := await take_usage(second)) != ["two:0", "one:0"]:
                assert ids(found) == ["two:0"]
        await second.acknowledge_usage(ids(found))
        assert await drained(owner) == []
    finally:
        await first.stop()
        await second.stop()


def ids(records: list[UsageRecord]) -> list[str]:
    return [record.event_id for record in records]


async def test_clients_survive_the_engine_and_may_come_before_it(tmp_path: Path) -> None:
    """Two clients of an engine that a third owns: all who wait are told at once when it dies, and
    both are ready again by themselves, at the same address and with what another model says."""
    address = EngineAddress(f"ipc://{tmp_path}/engine.sock", "token")
    clients = [RemoteEngineClient(address, "fake", no_text, 30) for _ in range(2)]
    starting = [asyncio.create_task(client.start()) for client in clients]
    await asyncio.sleep(0.3)
    assert not any(client.ready for client in clients)
    engine = EngineProcess(config(tmp_path / "outbox"), address, "fake_step_engine:build")
    await engine.start()
    await asyncio.gather(*starting)
    assert [client.model.id for client in clients] == ["base", "base"]
    running = [
        client.submit(request(f"running-{number}", max_tokens=FOREVER))
        for number, client in enumerate(clients)
    ]
    await asyncio.gather(*(first_of(events) for events in running))
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    for events in running:
        with pytest.raises(EngineUnavailableError, match="has disconnected"):
            async with asyncio.timeout(2):  # not by its silence: as soon as its socket closes
                await exhaust(events)
    assert not any(client.ready for client in clients)
    await engine.stop()
    other = msgspec.structs.replace(config(tmp_path / "outbox"), served_name="another")
    engine = EngineProcess(other, address, "fake_step_engine:build")
    await engine.start()
    try:
        for number, client in enumerate(clients):
            async with asyncio.timeout(PATIENCE_S):
                await client._is_ready.wait()
            assert client.model.id == "another"
            assert len(await everything(client, request(f"after-{number}", max_tokens=2))) == 3
    finally:
        await asyncio.gather(*(client.stop() for client in clients))
        await engine.stop()


async def test_a_wait_in_vain_says_what_is_there(
    tmp_path: Path, owner: ProcessEngineClient
) -> None:
    for address, words in [
        (EngineAddress(f"ipc://{tmp_path}/nobody.sock", "token"), "nothing listens there"),
        (EngineAddress(owner.address.endpoint, "guess"), "expects another token"),
    ]:
        client = RemoteEngineClient(address, "fake", no_text, start_timeout_s=0.7)
        with pytest.raises(EngineUnavailableError, match=words):
            await client.start()


async def test_the_last_words_of_an_engine_are_read(tmp_path: Path) -> None:
    """Also by a client that gets to them when the connection is gone already."""
    address = EngineAddress(f"ipc://{tmp_path}/engine.sock", "token")
    taken: list[bytes] = []
    order: list[bool] = []
    failures: list[Exception] = []
    ended = asyncio.Event()

    def changed(there_is_one: bool) -> None:
        order.append(there_is_one)
        if there_is_one:
            link.send(b"speak")
        else:
            assert len(taken) == 20_000
            ended.set()

    def speak() -> None:
        with address.listening() as router:
            client, _ = router.recv_multipart()
            for number in range(20_000):
                router.send_multipart([client, b"%d" % number])

    link = EngineLink(address, taken.append, changed, failures.append)
    speaking = asyncio.create_task(asyncio.to_thread(speak))
    async with asyncio.timeout(PATIENCE_S):
        while not taken:  # noqa: ASYNC110  # nothing tells of the first
            await asyncio.sleep(0.001)
        time.sleep(0.5)  # noqa: ASYNC251  # this loop stands still meanwhile
        await ended.wait()
        await speaking
    assert taken == [b"%d" % number for number in range(20_000)]
    assert (order, failures) == ([True, False], [])
    link.close()
