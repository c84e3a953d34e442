"""Who owns an engine without using it, and an engine that nobody owns."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine_clients import FOREVER, config, everything, first_of, no_text, sockets_in, take_usage
from fake_step_engine import request
from tenora_engine.errors import EngineUnavailableError, MemoryBudgetError
from tenora_engine.events import FinishEvent
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.engine_process import (
    ChildEvent,
    Died,
    EngineProcess,
    NotStarted,
    Started,
)
from tenora_engine.transport.remote import RemoteEngineClient

pytestmark = pytest.mark.usefixtures("importable_by_children")


def owner(
    folder: Path, events: list[ChildEvent], factory: str = "fake_step_engine:build"
) -> EngineProcess:
    address = EngineAddress(f"ipc://{folder}/engine.sock", "token")
    made = config(folder / "outbox")
    return EngineProcess(made, address, factory, on_event=events.append, hung_s=3.0)


async def until(events: list[ChildEvent], count: int) -> None:
    async with asyncio.timeout(30):
        while len(events) < count:  # noqa: ASYNC110  # a list tells nobody
            await asyncio.sleep(0.02)


async def test_an_owner_without_a_client_holds_the_engine_up(tmp_path: Path) -> None:
    events: list[ChildEvent] = []
    engine = owner(tmp_path, events)
    await engine.start()
    try:
        first = engine.pid
        assert first is not None
        assert events == [Started(first, again=False)]
        os.kill(first, signal.SIGKILL)
        await until(events, 3)
        assert isinstance(events[1], Died)
        assert "SIGKILL" in str(events[1].error)
        second = engine.pid
        assert second is not None
        assert events[2] == Started(second, again=True)
        assert engine.last_error is None
        os.kill(second, signal.SIGSTOP)  # alive, and silent
        await until(events, 5)
        assert isinstance(events[3], Died)
        assert isinstance(events[4], Started)
        client = RemoteEngineClient(engine.address, "fake", no_text, start_timeout_s=20)
        await client.start()
        assert len(await everything(client, request("after", max_tokens=2))) == 3
        await client.stop()
    finally:
        assert await engine.stop() == 0
    assert engine.pid is None
    assert sockets_in(tmp_path) == []


async def test_what_cannot_be_started_again_is_told_apart_from_a_death(tmp_path: Path) -> None:
    """The engine's own words on each attempt, and it comes back by itself."""
    events: list[ChildEvent] = []
    engine = owner(tmp_path, events, "fake_step_engine:build_unless_forbidden")
    forbidden = tmp_path / "outbox" / "forbidden"
    await engine.start()
    try:
        forbidden.touch()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await until(events, 4)
        assert isinstance(events[2], NotStarted)
        assert isinstance(events[2].error, MemoryBudgetError)
        assert isinstance(engine.last_error, MemoryBudgetError)
        forbidden.unlink()
        async with asyncio.timeout(30):
            while not isinstance(events[-1], Started):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await engine.stop()


async def test_a_first_start_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    events: list[ChildEvent] = []
    address = EngineAddress(f"ipc://{tmp_path}/engine.sock", "token")
    engine = EngineProcess(
        config(model="large"), address, "fake_step_engine:build", on_event=events.append
    )
    with pytest.raises(MemoryBudgetError, match="the budget is 2 GB"):
        await engine.start()
    assert engine.pid is None
    assert events == []
    await engine.stop()


def test_who_holds_an_engine_up_pays_for_no_model_and_no_text() -> None:
    code = (
        "import sys, tenora_engine.transport.engine_process\n"
        "print({'torch', 'transformers', 'tokenizers', 'jinja2', 'numpy'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert shown.stdout.strip() == "set()"


_ALONE = """
import sys
from tenora_engine.config import EngineConfig
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.server import serve_engine
folder = sys.argv[1]
config = EngineConfig(model="fake", served_name="base", outbox_dir=folder + "/outbox")
address = EngineAddress(f"ipc://{folder}/engine.sock", "token")
failure = serve_engine(
    config, address, "fake_step_engine:build", lambda report: print(report, flush=True)
)
print("ended", failure, flush=True)
"""


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGINT])
async def test_an_engine_alone_ends_cleanly(tmp_path: Path, ends: signal.Signals) -> None:
    """Without an owner on its standard input; what runs is aborted and metered."""
    address = EngineAddress(f"ipc://{tmp_path}/engine.sock", "token")
    client = RemoteEngineClient(address, "fake", no_text, start_timeout_s=30)
    starting = asyncio.create_task(client.start())  # before there is an engine
    alone = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _ALONE, str(tmp_path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await starting
        events = client.submit(request("cut", max_tokens=FOREVER))
        await first_of(events)
        alone.send_signal(ends)
        *_, last = [event async for event in events]
        assert isinstance(last, FinishEvent)
        assert last.reason == "abort"
        async with asyncio.timeout(20):
            said, _ = await alone.communicate()
        assert said.decode().split()[0].startswith("Listening")
        assert said.decode().splitlines()[1:] == ["Loaded()", "ended None"]
        assert alone.returncode == 0
        with pytest.raises(EngineUnavailableError):
            await first_of(client.submit(request("late")))
    finally:
        await client.stop()
    again = owner(tmp_path, [])
    await again.start()
    other = RemoteEngineClient(again.address, "fake", no_text)
    await other.start()
    assert [record.event_id for record in await take_usage(other)] == ["cut:0"]
    await other.stop()
    await again.stop()
