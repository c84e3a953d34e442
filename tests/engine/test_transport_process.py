"""What only an engine process can do: die, be restarted, refuse to start, outlive nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine_clients import (
    FOREVER,
    everything,
    exhaust,
    first_of,
    in_process_client,
    is_healthy,
    process_client,
    serves,
    sockets_in,
    take_usage,
)
from fake_step_engine import EXITS, RAISES, request
from tenora_engine.client import EngineClient
from tenora_engine.errors import (
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    GrammarsUnavailableError,
    InvalidRequestError,
    MemoryBudgetError,
    ModelLoadError,
    QueueFullError,
)
from tenora_engine.events import FinishEvent
from tenora_engine.request import Grammar
from tenora_engine.transport.address import choose_endpoint
from tenora_engine.transport.messages import error_info, to_error
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_engine.transport.wire import ANSWER_MAX_S, PING_S

pytestmark = pytest.mark.usefixtures("importable_by_children")


async def test_a_killed_engine_is_named_and_restarted(tmp_path: Path) -> None:
    client = process_client(tmp_path)
    await client.start()
    try:
        await everything(client, request("before", max_tokens=2))
        running = client.submit(request("running", max_tokens=FOREVER))
        await first_of(running)
        waiting_for_usage = asyncio.create_task(take_usage(client))
        async with asyncio.timeout(20):
            assert [u.event_id for u in await waiting_for_usage] == ["before:0"]
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailableError, match="SIGKILL"):
            await exhaust(running)
        assert not client.ready
        assert "SIGKILL" in str(client.last_error)
        with pytest.raises(EngineUnavailableError):
            await first_of(client.submit(request("between")))
        # Waits through the restart; what was not acknowledged comes again.
        async with asyncio.timeout(60):
            assert [u.event_id for u in await take_usage(client)] == ["before:0"]
        assert is_healthy(client)
        assert len(await everything(client, request("after", max_tokens=2))) == 3
        exits = client.submit(request("exits", EXITS))
        with pytest.raises(EngineUnavailableError, match="exit status 9"):
            await first_of(exits)
    finally:
        await client.stop()
    assert sockets_in(tmp_path) == []


async def test_who_shares_an_engine_hears_of_its_death_at_once(tmp_path: Path) -> None:
    """And not only from the next one, which knows nothing of the request."""
    owner = process_client(tmp_path)
    await owner.start()
    other = RemoteEngineClient(owner.address, "fake", text_factory=None)
    try:
        await other.start()
        running = other.submit(request("shared", max_tokens=FOREVER))
        await first_of(running)
        assert owner.pid is not None
        os.kill(owner.pid, signal.SIGKILL)
        async with asyncio.timeout(ANSWER_MAX_S - PING_S):
            with pytest.raises(EngineUnavailableError, match="has disconnected"):
                await exhaust(running)
        assert not serves(other)
        async with asyncio.timeout(60):
            while not serves(other):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert len(await everything(other, request("next", max_tokens=2))) == 3
    finally:
        await other.stop()
        await owner.stop()


async def test_a_defect_in_the_engine_ends_the_process_and_what_ran_is_metered(
    tmp_path: Path,
) -> None:
    for client in (process_client(tmp_path), in_process_client(tmp_path / "other")):
        await client.start()
        try:
            running = client.submit(request("running", max_tokens=FOREVER))
            await first_of(running)
            (raises,) = await everything(client, request("raises", RAISES))
            assert isinstance(raises, FinishEvent)
            assert raises.reason == "error"
            *_, end = [event async for event in running]
            assert isinstance(end, FinishEvent)
            assert end.reason == "error"
            assert end.usage.output_tokens > 0
            async with asyncio.timeout(60):  # from the disk, after another has been started
                found = {record.event_id for record in await take_usage(client)}
            assert found == {"running:0", "raises:0"}
        finally:
            await client.stop()


async def test_a_lost_device_ends_the_process_and_another_is_started(tmp_path: Path) -> None:
    client = process_client(tmp_path, factory="sick_engine:build")
    await client.start()
    first_pid = client.pid
    try:
        (end,) = await everything(client, request("r"))
        assert isinstance(end, FinishEvent)
        assert "CUDA error" in (end.error or "")
        async with asyncio.timeout(60):
            while client.pid == first_pid or not client.ready:
                await take_usage(client)  # waits while there is no engine
        assert [record.event_id for record in await take_usage(client)] == ["r:0"]
    finally:
        await client.stop()


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        ("large", MemoryBudgetError, "the budget is 2 GB"),
        ("defect", EngineError, "RuntimeError: a defect while loading"),
        ("exits", EngineUnavailableError, "exit status 5"),
    ],
)
async def test_start_says_why_it_failed(
    model: str, error: type[EngineError], words: str, tmp_path: Path
) -> None:
    client = process_client(tmp_path, model)
    with pytest.raises(error, match=words):
        await client.start()
    assert client.pid is None
    assert not client.ready


async def test_start_in_this_process_says_so_too(tmp_path: Path) -> None:
    client = in_process_client(tmp_path, "missing")
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        await client.start()
    assert not client.ready
    await client.stop()


async def test_stop_meters_what_runs_and_leaves_no_process(tmp_path: Path) -> None:
    client = process_client(tmp_path)
    await client.start()
    pid = client.pid
    assert pid is not None
    events = client.submit(request("cut", max_tokens=FOREVER))
    await first_of(events)
    usage = asyncio.create_task(_forever(client))
    await client.stop()
    assert not _alive(pid)
    *_, last = [event async for event in events]
    assert isinstance(last, FinishEvent)
    assert last.reason == "abort"
    with pytest.raises(EngineUnavailableError, match="stopped"):
        await usage
    with pytest.raises(EngineUnavailableError, match="stopped"):
        await first_of(client.submit(request("late")))
    again = in_process_client(tmp_path)
    await again.start()
    assert [record.event_id for record in await take_usage(again)] == ["cut:0"]
    await again.stop()


async def _forever(client: EngineClient) -> None:
    while True:
        await client.unacknowledged_usage()
        await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


_OWNER = """
import asyncio, os, sys
from pathlib import Path
import fake_step_engine
from tenora_engine.config import EngineConfig
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.process import ProcessEngineClient
async def main():
    config = EngineConfig(model="fake", served_name="base")
    client = ProcessEngineClient(
        config, Path(sys.argv[1]), "fake_step_engine:build", lambda folder: None
    )
    await client.start()
    print(client.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_the_engine_ends_with_its_owner_and_ignores_ctrl_c(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, signal.SIGINT)
        assert _alive(pid)
        parent.kill()
    for _ in range(2000):
        if not _alive(pid) or _is_zombie(pid):
            return
        signal.sigtimedwait([], 0.01)
    pytest.fail("the engine process outlived its owner")


def _is_zombie(pid: int) -> bool:
    """Ended, but nobody has asked how: in a container init may not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_endpoints_fit_a_unix_socket(tmp_path: Path) -> None:
    endpoint, made = choose_endpoint(tmp_path / "run")
    assert endpoint.startswith("ipc://" + str(tmp_path))
    assert made is None
    deep = tmp_path / ("d" * 120)
    endpoint, made = choose_endpoint(deep)
    assert made is not None
    assert endpoint.startswith(f"ipc://{made}")
    assert not deep.exists()
    assert not made.exists(), "the engine makes it"


async def test_loopback_when_no_path_is_short_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    client = process_client(deep)
    await client.start()
    assert client.address.endpoint.startswith("tcp://127.0.0.1:")
    assert len(await everything(client, request("tcp", max_tokens=2))) == 3
    await client.stop()
    assert os.listdir(deep) == ["outbox"]


@pytest.mark.parametrize(
    "error",
    [
        ContextLengthError("too long", "messages"),
        InvalidRequestError("bad"),
        QueueFullError("full", 250),
        MemoryBudgetError("small"),
        ModelLoadError("none"),
        GrammarsUnavailableError("no process"),
    ],
)
def test_errors_cross_processes_unchanged(error: EngineError) -> None:
    again = to_error(error_info(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


async def test_a_request_that_cannot_be_taken_ends_nobody_else_s(tmp_path: Path) -> None:
    """This engine knows no grammars: to be asked for one raises what nobody foresaw."""
    client = process_client(tmp_path)
    await client.start()
    try:
        running = client.submit(request("running", max_tokens=FOREVER))
        await first_of(running)
        odd = request("odd")
        sampling = msgspec.structs.replace(odd.sampling, grammar=Grammar("regex", "a"))
        with pytest.raises(EngineError, match="AttributeError"):
            await everything(client, msgspec.structs.replace(odd, sampling=sampling))
        await first_of(running)
    finally:
        await client.stop()
