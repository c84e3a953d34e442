"""Every form of EngineClient against the same engine: in this process, in a real child process, and
through another process's socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import zmq
import zmq.asyncio

import fake_step_engine
from engine_clients import (
    FOREVER,
    close,
    config,
    drained,
    everything,
    exhaust,
    first_of,
    in_process_client,
    no_text,
    process_client,
    take_usage,
    until_running,
    usage_in,
)
from fake_step_engine import LATE, TOO_LONG, request
from tenora_engine.client import EngineClient
from tenora_engine.errors import (
    AdapterLoadError,
    ContextLengthError,
    DeadlineError,
    EngineUnavailableError,
    InvalidRequestError,
)
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import AdapterRef, SamplingParams
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.inprocess import InProcessEngineClient
from tenora_engine.transport.messages import Hello, Ping, Submit
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.process import ProcessEngineClient
from tenora_engine.transport.remote import RemoteEngineClient
from tenora_engine.transport.serving import EngineServer
from tenora_engine.transport.wire import encode


@pytest.fixture(scope="module")
async def owner(
    tmp_path_factory: pytest.TempPathFactory, importable_by_children: None
) -> AsyncIterator[ProcessEngineClient]:
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
        made = RemoteEngineClient(owner.address, "fake", no_text)
    else:
        made = in_process_client(tmp_path)
    await made.start()
    yield made
    await made.stop()


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


async def test_what_waited_in_vain_is_refused_and_not_metered(client: EngineClient) -> None:
    await drained(client)
    with pytest.raises(DeadlineError, match="waited in vain") as refused:
        await first_of(client.submit(request("late", LATE, n=2)))
    assert refused.value.retry_after_ms == 700
    assert (await everything(client, request("late"))) != []  # the id is free again
    assert [usage.event_id for usage in await drained(client)] == ["late:0"]


async def test_an_id_in_flight_is_refused(client: EngineClient) -> None:
    twice = f"twice-{id(client)}"  # the one before may still be on its way to the disk
    events = client.submit(request(twice, max_tokens=FOREVER))
    await first_of(events)
    with pytest.raises(InvalidRequestError, match="in flight"):
        await first_of(client.submit(request(twice)))
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
    # An id of its own: it is in flight until its usage is on the disk, after it has run.
    asked = request(f"cancel {type(client).__name__}", max_tokens=FOREVER)
    reader = asyncio.create_task(everything(client, asked))
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


async def test_where_a_text_ended_is_told_after_the_sequence_has(client: EngineClient) -> None:
    await drained(client)
    await everything(client, request("told", max_tokens=6, n=2, ends_by_text=True))
    await client.abort("told", 1, "stop", output_tokens=2)
    await client.abort("told", reason="stop")
    usage = await drained(client)
    assert sorted((u.event_id, u.output_tokens, u.finish_reason) for u in usage) == [
        ("told:0", 6, "length"),
        ("told:1", 2, "stop"),
    ]
    assert (await everything(client, request("told"))) != []  # the id is free again


async def test_usage_is_given_until_acknowledged(client: EngineClient) -> None:
    await drained(client)
    waiting = asyncio.create_task(take_usage(client))
    await everything(client, request("usage", max_tokens=2))
    async with asyncio.timeout(20):
        records = await waiting
    assert [record.event_id for record in records] == ["usage:0"]
    assert records[0].context == {"adapter": "a"}
    assert await take_usage(client) == records
    await client.acknowledge_usage(["usage:0"])
    assert await drained(client) == []


async def test_questions(client: EngineClient) -> None:
    digest = "sha256:" + "0" * 64
    assert await client.residency(AdapterRef(digest, 1)) == "host"
    assert await client.residency(AdapterRef(digest, 2)) == "store"
    assert await client.residencies([digest, "other"]) == {digest: "shared", "other": "shared"}
    with pytest.raises(AdapterLoadError, match="gone"):
        await client.residencies(["gone"])
    takes = await client.footprint({"q_proj": [4, 0], "v_proj": [8, 2]})
    assert (takes.pages, takes.page_bytes, takes.host_bytes) == (14, 8, 9)
    with pytest.raises(AdapterLoadError, match="no such module"):
        await client.footprint({"unknown": [1]})
    before = (await client.stats()).counters["forgotten"]
    await client.forget_adapter("ns", digest)
    stats = await client.stats()
    assert stats.counters["forgotten"] == before + 1
    await client.forget_adapter("ns", digest, device_only=True)
    assert (await client.stats()).counters["forgotten"] == before + 102
    await client.forget_namespace("ns")
    assert (await client.stats()).counters["forgotten"] == before + 10_102
    assert stats.pool.page_map == "...."


@pytest.mark.parametrize("top_k", [2**64, -(2**64)])
async def test_what_cannot_be_sent_fails_its_own_request_only(
    owner: ProcessEngineClient, top_k: int
) -> None:
    running = owner.submit(request(f"goes-on-{top_k}", max_tokens=FOREVER))
    await first_of(running)
    odd = msgspec.structs.replace(request("odd"), sampling=SamplingParams(top_k=top_k))
    with pytest.raises(InvalidRequestError):
        await exhaust(owner.submit(odd))
    await first_of(running)
    assert (await everything(owner, request("after"))) != []
    await close(running)
    await until_running(owner, 0)


@pytest.mark.parametrize("method", ["recv", "send"])
async def test_a_connection_whose_work_fails_begins_anew(
    owner: ProcessEngineClient, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the socket raises: all who wait are told, the engine drops what ran, and soon it is
    ready again."""
    client = RemoteEngineClient(owner.address, "fake", no_text)
    await client.start()
    events = client.submit(request(f"cut-{method}", max_tokens=FOREVER))
    await first_of(events)
    real = getattr(zmq.Socket, method)
    assert client._link is not None
    unbroken, ours = iter([True]), client._link._socket

    def breaks_once(self: zmq.Socket[bytes], *args: Any, **more: Any) -> Any:
        if self is ours and next(unbroken, False):
            raise RuntimeError("a surprise")
        return real(self, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(zmq.Socket, method, breaks_once)
        with pytest.raises(EngineUnavailableError, match="a surprise"):
            await exhaust(events)
        assert not client.ready
    try:
        async with asyncio.timeout(20):
            await client._is_ready.wait()
        await until_running(owner, 0)
        assert (await everything(client, request("again"))) != []
    finally:
        await client.stop()


async def test_a_client_that_leaves_frees_what_it_ran(owner: ProcessEngineClient) -> None:
    other = RemoteEngineClient(owner.address, "fake", no_text)
    await other.start()
    events = other.submit(request("left", max_tokens=FOREVER))
    await first_of(events)
    await other.stop()
    with pytest.raises(EngineUnavailableError):
        await exhaust(events)
    await until_running(owner, 0)
    assert owner.ready


async def test_a_wrong_token_gets_nothing(owner: ProcessEngineClient) -> None:
    stranger = RemoteEngineClient(
        EngineAddress(owner.address.endpoint, "guess"), "fake", no_text, start_timeout_s=0.5
    )
    with pytest.raises(EngineUnavailableError, match="no engine answered"):
        await stranger.start()
    assert owner.ready


async def test_a_client_the_engine_does_not_know_is_told(owner: ProcessEngineClient) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.connect(owner.address.endpoint)
        await raw.send(encode(Submit(request("unknown"))))
        async with asyncio.timeout(20):
            assert msgspec.msgpack.decode(await raw.recv()) == {"type": "unknown"}
        await raw.send(b"\xffnot a message")
        await raw.send_multipart([b"three", b"parts", b"here"])
        await raw.send(encode(Hello(owner.address.token)))
        async with asyncio.timeout(20):
            assert msgspec.msgpack.decode(await raw.recv())["type"] == "ready"


async def test_a_silent_client_is_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_engine.transport.wire.CLIENT_LEASE_S", 0.2)
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
    assert [record.finish_reason for record in usage_in(outbox)] == ["abort"]


def test_messages_are_received_for_a_time_and_events_are_sent_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 prompts of 4,000 tokens were taken in one turn, 1.4 to 2.5 s in which nobody was sent a
    token. Here each takes 4 ms; what cannot be read counts as well."""
    now_s, taken = [0.0], list[float]()

    class Socket:
        def recv_multipart(self, _: int) -> list[bytes]:
            if len(taken) == 7:
                raise zmq.Again
            now_s[0] += 0.004
            taken.append(now_s[0])
            if len(taken) == 2:
                raise ValueError("not of two parts")
            return [b"client", b"nonsense" if len(taken) == 3 else encode(Ping())]

        def send_multipart(self, *_: object) -> None: ...

    monkeypatch.setattr("tenora_engine.transport.serving.steady", lambda: now_s[0])
    server = EngineServer(cast("zmq.Socket[bytes]", Socket()), "token", UsageOutbox(None))
    turns = []
    for _ in range(4):
        server._receive()
        turns.append(len(taken))
    assert turns == [3, 6, 7, 7]
    now_s[0] += 1.0  # one that takes longer than a turn is taken alone
    taken.pop()
    server._receive()
    assert len(taken) == 7
