"""Every form of EngineClient against the same engine: in this process, in a real child process, and
through another process's socket. Then what only a process can do: die."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
import zmq
import zmq.asyncio

import fake_step_engine
from fake_step_engine import EXITS, RAISES, TOO_LONG, request
from tenora_engine.client import EngineClient
from tenora_engine.config import EngineConfig
from tenora_engine.errors import (
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    InvalidRequestError,
    MemoryBudgetError,
    ModelLoadError,
    QueueFullError,
)
from tenora_engine.events import Event, FinishEvent, TokenEvent, UsageRecord
from tenora_engine.request import AdapterRef, GenerationRequest
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport.inprocess import InProcessEngineClient
from tenora_engine.transport.messages import Hello, Ping, Submit, error_info, to_error
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.process import ProcessEngineClient
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_engine.transport.serving import EngineServer
from tenora_engine.transport.wire import choose_endpoint, encode

SUPPORT = Path(__file__).parent.parent / "support"
FOREVER = 10**9


@pytest.fixture(autouse=True, scope="module")
def importable_by_children() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        yield


def no_text(folder: str) -> TextProcessor:
    return cast(TextProcessor, object())


def config(outbox_dir: Path | None = None, model: str = "fake") -> EngineConfig:
    return EngineConfig(
        model=model,
        served_name="base",
        outbox_dir=None if outbox_dir is None else str(outbox_dir),
    )


def process_client(
    folder: Path, model: str = "fake", factory: str = "fake_step_engine:build"
) -> ProcessEngineClient:
    return ProcessEngineClient(
        config(folder / "outbox", model),
        socket_dir=folder,
        engine_factory=factory,
        text_factory=no_text,
        start_timeout_s=60,
    )


def in_process_client(folder: Path, model: str = "fake") -> InProcessEngineClient:
    made = config(folder / "outbox", model)
    return InProcessEngineClient(made, fake_step_engine.build, no_text)


@pytest.fixture(scope="module")
async def owner(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProcessEngineClient]:
    client = process_client(tmp_path_factory.mktemp("engine"))
    await client.start()
    yield client
    await client.stop()


@pytest.fixture(params=["in-process", "process", "remote"])
async def client(
    request: pytest.FixtureRequest, owner: ProcessEngineClient, tmp_path: Path
) -> AsyncIterator[EngineClient]:
    if request.param == "process":
        yield owner
        return
    made: InProcessEngineClient | RemoteEngineClient
    if request.param == "remote":
        made = RemoteEngineClient(owner.endpoint, owner.token, "fake", no_text)
    else:
        made = in_process_client(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def everything(client: EngineClient, asked: GenerationRequest) -> list[Event]:
    return [event async for event in client.submit(asked)]


async def first_of(events: AsyncIterator[Event]) -> Event:
    return await anext(events)


async def close(events: AsyncIterator[Event]) -> None:
    assert isinstance(events, AsyncGenerator)
    await events.aclose()


async def exhaust(events: AsyncIterator[Event]) -> None:
    async for _ in events:
        continue


async def until_running(client: EngineClient, count: int) -> None:
    """Ask until so many sequences run; every question is answered after another step."""
    async with asyncio.timeout(20):
        while (await client.stats()).running != count:
            continue


_MARKERS = itertools.count()


async def drained(client: EngineClient) -> list[UsageRecord]:
    """All usage up to now, acknowledged: a request of our own marks its end."""
    marker = f"marker-{next(_MARKERS)}"
    await everything(client, request(marker, max_tokens=1))
    found: list[UsageRecord] = []
    while all(record.request_id != marker for record in found):
        records = await client.unacknowledged_usage()
        await client.acknowledge_usage([record.event_id for record in records])
        found += records
    return [record for record in found if record.request_id != marker]


async def test_events_come_in_order_and_end_with_the_last_finish(client: EngineClient) -> None:
    events = await everything(client, request("order", max_tokens=3, n=2))
    for index in (0, 1):
        mine = [event for event in events if event.index == index]
        tokens = [event.token_ids for event in mine if isinstance(event, TokenEvent)]
        assert tokens == [[100], [101], [102]]
        assert isinstance(mine[-1], FinishEvent)
        assert (mine[-1].reason, mine[-1].usage.output_tokens) == ("length", 3)
    assert isinstance(events[-1], FinishEvent)
    assert client.ready
    assert client.model.id == "base"


async def test_many_requests_do_not_mix(client: EngineClient) -> None:
    asked = [request(f"many-{i}", max_tokens=1 + i % 7) for i in range(60)]
    answers = await asyncio.gather(*(everything(client, one) for one in asked))
    for one, events in zip(asked, answers, strict=True):
        assert {event.request_id for event in events} == {one.request_id}
        assert len(events) == one.sampling.max_tokens + 1


async def test_a_refusal_is_raised_at_the_first_anext(client: EngineClient) -> None:
    events = client.submit(request("long", TOO_LONG))
    with pytest.raises(ContextLengthError, match="do not fit 512") as refused:
        await first_of(events)
    assert refused.value.param == "messages"
    assert (await everything(client, request("long"))) != []  # the id is free again


async def test_an_id_in_flight_is_refused(client: EngineClient) -> None:
    events = client.submit(request("twice", max_tokens=FOREVER))
    await first_of(events)
    with pytest.raises(InvalidRequestError, match="in flight"):
        await first_of(client.submit(request("twice")))
    await first_of(events)  # the first is not harmed
    await close(events)
    await until_running(client, 0)


async def test_closing_the_iterator_aborts_and_is_metered(client: EngineClient) -> None:
    await drained(client)
    events = client.submit(request("gone", max_tokens=FOREVER, n=2))
    await first_of(events)
    await close(events)
    await until_running(client, 0)
    usage = await drained(client)
    assert [(u.event_id, u.finish_reason) for u in usage] == [
        ("gone:0", "abort"),
        ("gone:1", "abort"),
    ]
    assert all(u.output_tokens >= 1 for u in usage)


async def test_a_cancelled_reader_aborts(client: EngineClient) -> None:
    reader = asyncio.create_task(everything(client, request("cancel", max_tokens=FOREVER)))
    await until_running(client, 1)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await until_running(client, 0)


async def test_a_stop_string_ends_one_sequence(client: EngineClient) -> None:
    events = client.submit(request("stop", max_tokens=FOREVER, n=2))
    await first_of(events)
    await client.abort("stop", 0, "stop", output_tokens=1)
    event = await first_of(events)
    while isinstance(event, TokenEvent):
        event = await first_of(events)
    assert (event.index, event.reason, event.usage.output_tokens) == (0, "stop", 1)
    after = await first_of(events)
    assert after.index == 1
    await client.abort("stop")
    *_, last = [event async for event in events]
    assert isinstance(last, FinishEvent)
    assert last.reason == "abort"


async def test_usage_is_given_until_acknowledged(client: EngineClient) -> None:
    await drained(client)
    waiting = asyncio.create_task(_take(client))
    await everything(client, request("usage", max_tokens=2))
    async with asyncio.timeout(20):
        records = await waiting
    assert [record.event_id for record in records] == ["usage:0"]
    assert records[0].context == {"adapter": "a"}
    assert await _take(client) == records
    await client.acknowledge_usage(["usage:0"])
    assert await drained(client) == []


def is_healthy(client: ProcessEngineClient) -> bool:
    return client.ready and client.last_error is None


def sockets_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.sock"))


async def _take(client: EngineClient) -> list[UsageRecord]:
    return list(await client.unacknowledged_usage())


async def test_questions(client: EngineClient) -> None:
    digest = "sha256:" + "0" * 64
    assert await client.residency(AdapterRef(digest, 1)) == "host"
    assert await client.residency(AdapterRef(digest, 2)) == "store"
    before = (await client.stats()).counters["forgotten"]
    await client.forget_adapter("ns", digest)
    stats = await client.stats()
    assert stats.counters["forgotten"] == before + 1
    assert stats.pool.page_map == "...."


async def test_a_client_that_leaves_frees_what_it_ran(owner: ProcessEngineClient) -> None:
    other = RemoteEngineClient(owner.endpoint, owner.token, "fake", no_text)
    await other.start()
    events = other.submit(request("left", max_tokens=FOREVER))
    await first_of(events)
    await other.stop()
    with pytest.raises(EngineUnavailableError):
        await exhaust(events)
    await until_running(owner, 0)
    assert owner.ready


async def test_a_wrong_token_gets_nothing(owner: ProcessEngineClient) -> None:
    stranger = RemoteEngineClient(owner.endpoint, "guess", "fake", no_text, start_timeout_s=0.5)
    with pytest.raises(EngineUnavailableError, match="no engine answered"):
        await stranger.start()
    assert owner.ready


async def test_a_client_the_engine_does_not_know_is_told(owner: ProcessEngineClient) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.connect(owner.endpoint)
        await raw.send(encode(Submit(request("unknown"))))
        async with asyncio.timeout(20):
            assert msgspec.msgpack.decode(await raw.recv()) == {"type": "unknown"}
        await raw.send(b"\xffnot a message")
        await raw.send_multipart([b"three", b"parts", b"here"])
        await raw.send(encode(Hello(owner.token)))
        async with asyncio.timeout(20):
            assert msgspec.msgpack.decode(await raw.recv())["type"] == "ready"


async def test_a_silent_client_is_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_engine.transport.serving.SILENCE_MAX_S", 0.2)
    outbox = UsageOutbox(None)
    endpoint = f"ipc://{tmp_path}/silent.sock"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(endpoint)
        server = EngineServer(router, "token", outbox)
        engine = fake_step_engine.build(config())
        serving = asyncio.create_task(asyncio.to_thread(server.serve, engine))
        with zmq.asyncio.Context() as client_context, client_context.socket(zmq.DEALER) as raw:
            raw.setsockopt(zmq.LINGER, 0)
            raw.connect(endpoint)
            await raw.send(encode(Hello("token")))
            await raw.send(encode(Submit(request("silent", max_tokens=FOREVER))))
            while await raw.poll(1000):  # reading is not enough: it must speak
                await raw.recv()
            await raw.send(encode(Ping()))
            async with asyncio.timeout(20):
                assert msgspec.msgpack.decode(await raw.recv()) == {"type": "unknown"}
        server.stop()
        assert await serving is None
    assert [record.finish_reason for record in outbox.oldest()] == ["abort"]


async def test_a_killed_engine_is_named_and_restarted(tmp_path: Path) -> None:
    client = process_client(tmp_path)
    await client.start()
    try:
        await everything(client, request("before", max_tokens=2))
        running = client.submit(request("running", max_tokens=FOREVER))
        await first_of(running)
        waiting_for_usage = asyncio.create_task(_take(client))
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
            assert [u.event_id for u in await _take(client)] == ["before:0"]
        assert is_healthy(client)
        assert len(await everything(client, request("after", max_tokens=2))) == 3
        exits = client.submit(request("exits", EXITS))
        with pytest.raises(EngineUnavailableError, match="exit status 9"):
            await first_of(exits)
    finally:
        await client.stop()
    assert sockets_in(tmp_path) == []


async def test_a_defect_in_the_engine_ends_the_process(tmp_path: Path) -> None:
    client = process_client(tmp_path)
    await client.start()
    try:
        with pytest.raises(EngineUnavailableError, match="exit status 1"):
            await first_of(client.submit(request("raises", RAISES)))
    finally:
        await client.stop()
    in_process = in_process_client(tmp_path / "other")
    await in_process.start()
    with pytest.raises(EngineUnavailableError, match="a defect"):
        await first_of(in_process.submit(request("raises", RAISES)))
    assert not in_process.ready
    await in_process.stop()


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
    assert [record.event_id for record in await _take(again)] == ["cut:0"]
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
    made.rmdir()


async def test_loopback_when_no_path_is_short_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    client = process_client(deep)
    await client.start()
    assert client.endpoint.startswith("tcp://127.0.0.1:")
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
    ],
)
def test_errors_cross_processes_unchanged(error: EngineError) -> None:
    again = to_error(error_info(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
