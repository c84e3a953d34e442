"""Several processes share one engine: what becomes of what a client ran when it dies, stops or goes
on, and who is given the usage."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine_clients import (
    drained,
    everything,
    no_text,
    process_client,
    take_usage,
    until_running,
)
from fake_step_engine import request
from tenora_engine.events import UsageRecord
from tenora_engine.transport import serving, wire
from tenora_engine.transport.address import EngineAddress
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


def test_silence_is_noticed_within_five_seconds() -> None:
    assert wire.SILENCE_MAX_S + serving._POLL_MS / 1000 < 5
    assert wire.SILENCE_MAX_S > 3 * wire.PING_S, "a ping or two may be late"


async def test_a_stopped_client_loses_what_it_ran_and_begins_anew(
    owner: ProcessEngineClient,
) -> None:
    await drained(owner)
    async with another_process(owner.address, "stopped") as other:
        await until_running(owner, 2)
        began_s = time.monotonic()
        other.send_signal(signal.SIGSTOP)
        await until_running(owner, 0)  # gives up after 20 s; a client used to have 30
        assert time.monotonic() - began_s > 2, "it was not given up for a moment's silence"
        usage = await drained(owner)
        assert [(u.event_id, u.finish_reason) for u in usage] == [
            ("stopped:0", "abort"),
            ("stopped:1", "abort"),
        ]
        assert all(u.output_tokens > 0 for u in usage)
        other.send_signal(signal.SIGCONT)
        assert await said(other) == "the engine does not know this client any more"
        assert await said(other) == "3"
    assert owner.ready


async def test_a_killed_client_loses_what_it_ran(owner: ProcessEngineClient) -> None:
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
