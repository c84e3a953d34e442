"""Live updates: what is committed anywhere is told to who listens, only their own, and nothing is
done while nobody does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from api_harness import ADMIN_KEY, Api
from people import session_of_key, signed_in
from served_api import HELLO, served, until
from tenora_platform.app import openapi_document
from tenora_platform.db import Base
from tenora_platform.errors import UnauthorizedError
from tenora_platform.live import hub as hubs
from tenora_platform.live.changes import EVERYBODY, Changes
from tenora_platform.live.hub import Hub
from tenora_platform.live.sources import Source
from tenora_platform.live.stream import WAITING_MAX, Stream
from tenora_platform.live.topics import BY_TABLE, FOR_WORKERS, SILENT, TOPICS, topics_of_action
from tenora_platform.operations.metrics import Metrics
from tenora_platform.people import service
from tenora_platform.people.tables import PersonRow

OWN = "/v1/events/stream"
ALL = "/admin/v1/events"
Event = tuple[str, dict[str, Any]]


def parsed(text: str) -> Event:
    """One event of the wire."""
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return fields["event"], json.loads(fields["data"])


@asynccontextmanager
async def listening(
    url: str, path: str, headers: dict[str, str]
) -> AsyncIterator[AsyncGenerator[Event]]:
    """The events of one stream, as they come; hello has been."""
    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream("GET", url.removesuffix("/v1") + path, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")

        async def events() -> AsyncGenerator[Event]:
            rest = ""
            async for more in answer.aiter_text():
                *whole, rest = (rest + more).split("\n\n")
                for each in whole:
                    yield parsed(each)

        async with aclosing(events()) as each:
            name, payload = await anext(each)
            assert name == "hello"
            assert payload["interval"] == 5
            yield each


async def changed(events: AsyncGenerator[Event], topic: str) -> set[str]:
    """Wait for a change of it; all topics that were told of until then."""
    seen: set[str] = set()
    async with asyncio.timeout(15):
        async for name, payload in events:
            if name == "change":
                seen |= set(payload["topics"])
            if topic in seen:
                return seen
    raise AssertionError(f"the stream ended; {seen}")


async def ended(events: AsyncGenerator[Event]) -> str | None:
    """The code that a stream ends with."""
    code: str | None = None
    async with asyncio.timeout(10):
        async for name, payload in events:
            code = payload["code"] if name == "end" else code
    return code


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_tenant_hears_of_its_own_changes_and_of_no_others(api: Api) -> None:
    mine, other = await api.new_tenant("mine"), await api.new_tenant("other")
    async with (
        served(api) as url,
        listening(url, OWN, bearer(mine.key)) as own,
        listening(url, OWN, bearer(other.key)) as others,
        listening(url, ALL, bearer(ADMIN_KEY)) as all_,
    ):
        await api.call(mine.key, "POST", "/v1/api_keys", json={"name": "second"})
        assert await changed(own, "keys") >= {"keys"}
        assert "keys" in await changed(all_, "keys")
        await api.call(other.key, "PATCH", "/v1/settings", json={"retain_contents": False})
        body = {"url": "https://example.com/hook", "types": ["adapter.active"]}
        made = await api.call(other.key, "POST", "/v1/webhook_endpoints", json=body)
        assert made.status_code == 201, made.text
        assert "keys" not in await changed(others, "webhooks")


async def test_a_request_shows_as_usage_once_it_is_stored(api: Api) -> None:
    tenant = await api.new_tenant("asks")
    async with served(api) as url, listening(url, OWN, bearer(tenant.key)) as events:
        body = {"model": "fake-base", "messages": HELLO, "max_tokens": 2}
        answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert await changed(events, "usage") >= {"usage", "requests"}


async def test_what_was_rolled_back_is_not_told(api: Api) -> None:
    told: list[tuple[str | None, set[str]]] = []
    tenant = await api.new_tenant("undone")
    db = api.state.db.patient()
    db._told = lambda whose, topics: told.append((whose, set(topics)))

    async def change(undo: bool) -> None:
        async with db.tenant_session(tenant.id) as session:
            await api.state.audit.append(
                session, actor="t", action="api_key.update", target="k", tenant_id=tenant.id
            )
            if undo:
                raise KeyError

    with pytest.raises(KeyError):
        await change(undo=True)
    assert told == []
    await change(undo=False)
    assert told == [(tenant.id, {"audit", "keys"})]


async def test_using_a_key_changes_nothing_that_is_shown(api: Api) -> None:
    told: list[object] = []
    tenant = await api.new_tenant("quiet")
    before = api.state.db._told
    api.state.db._told = lambda *change: told.append(change)
    try:
        assert (await api.call(tenant.key, "GET", "/v1/me")).status_code == 200
    finally:
        api.state.db._told = before
    assert told == []


async def test_a_revoked_key_and_an_ended_session_close_their_streams(api: Api) -> None:
    tenant = await api.new_tenant("leaves")
    made = await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "second"})
    second = made.json()
    person = await session_of_key(api, tenant.key)
    owner = await signed_in(api, (None, "owner"))
    async with (
        served(api) as url,
        listening(url, OWN, bearer(second["key"])) as by_key,
        listening(url, OWN, {"cookie": person.headers["cookie"]}) as by_session,
        listening(url, ALL, {"cookie": owner.headers["cookie"]}) as by_owner,
    ):
        await api.call(tenant.key, "DELETE", f"/v1/api_keys/{second['id']}")
        assert (await person.call("POST", "/auth/logout")).status_code < 300
        assert (await owner.call("POST", "/auth/logout")).status_code < 300
        begun = time.monotonic()
        assert await ended(by_key) == "key_revoked"
        assert await ended(by_session) == "session_over"
        assert await ended(by_owner) == "session_over"
        assert time.monotonic() - begun < 6


async def test_a_stream_ends_for_who_belongs_to_another_tenant_by_now(api: Api) -> None:
    """Also for one who need not say which tenant, since there is one of theirs at any time."""
    before, *others = [await api.new_tenant(name) for name in ("before", "after", "third")]
    owner = await signed_in(api, (before.id, "owner"))
    person = await signed_in(api, (before.id, "viewer"))
    async with (
        served(api) as url,
        listening(url, OWN, {"cookie": person.headers["cookie"]}) as stream,
    ):
        async with api.state.db.admin_session() as session:
            row = await session.get_one(PersonRow, person.id)
            for each in others:
                await service.join(
                    session, api.state.audit, row, each.id, "viewer", invitation=None
                )
        await owner.call("DELETE", f"/v1/people/{person.id}")
        assert await ended(stream) == "not_a_member"


async def test_a_person_of_several_tenants_says_which_in_the_address(api: Api) -> None:
    one, two = await api.new_tenant("one"), await api.new_tenant("two")
    person = await signed_in(api, (one.id, "viewer"), (two.id, "viewer"))
    unsaid = await person.call("GET", f"{OWN}?lasts_s=0")
    assert unsaid.status_code == 400
    assert unsaid.json()["error"]["code"] == "tenant_required"
    said = await person.call("GET", f"{OWN}?lasts_s=0&tenant={two.id}")
    assert said.status_code == 200
    foreign = await api.new_tenant("three")
    assert (await person.call("GET", f"{OWN}?tenant={foreign.id}")).status_code == 403


async def test_who_comes_again_hears_that_anything_may_have_changed(api: Api) -> None:
    tenant = await api.new_tenant("returns")
    first = await api.call(tenant.key, "GET", f"{OWN}?lasts_s=0")
    assert first.text.startswith("retry: 2000\nid: ")
    assert [parsed(each.split("\n", 1)[1])[0] for each in first.text.split("\n\n")[:1]] == ["hello"]
    again = await api.call(
        tenant.key, "GET", f"{OWN}?lasts_s=0", headers={"last-event-id": "1700000000000"}
    )
    name, payload = parsed(again.text.split("\n\n")[1])
    assert name == "change"
    assert set(payload["topics"]) == TOPICS


async def test_other_processes_are_heard(api: Api) -> None:
    tenant = await api.new_tenant("far")
    elsewhere = Redis.from_url(str(api.state.settings.redis_url))
    async with served(api) as url, listening(url, OWN, bearer(tenant.key)) as events:
        far = Changes(elsewhere, api.state.seal)
        far.tell(tenant.id, {"adapters"})
        assert "adapters" in await changed(events, "adapters")
        await far.finish()
    await elsewhere.aclose()


async def test_the_server_does_not_wait_for_its_streams_to_end(api: Api) -> None:
    tenant = await api.new_tenant("stays")
    begun = time.monotonic()
    async with served(api) as url, listening(url, OWN, bearer(tenant.key)) as events:
        api.state.live.end_all()
        assert await ended(events) == "server_stops"
    assert time.monotonic() - begun < 5


async def test_a_caller_has_so_many_streams_and_others_have_theirs(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "STREAMS_PER_CALLER", 1)
    mine, other = await api.new_tenant("many"), await api.new_tenant("few")
    async with served(api) as url:
        async with listening(url, OWN, bearer(mine.key)):
            refused = await api.call(mine.key, "GET", OWN)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "too_many_streams"
            assert (await api.call(other.key, "GET", f"{OWN}?lasts_s=0")).status_code == 200
        await until(lambda: not api.state.live._streams)
        assert (await api.call(mine.key, "GET", f"{OWN}?lasts_s=0")).status_code == 200


async def test_the_operator_sees_the_engine_and_billing_only_changes(api: Api) -> None:
    billing = await signed_in(api, (None, "billing"))
    async with (
        served(api) as url,
        listening(url, ALL, bearer(ADMIN_KEY)) as owner,
        listening(url, ALL, {"cookie": billing.headers["cookie"]}) as money,
    ):
        seen: dict[str, dict[str, Any]] = {}
        async with asyncio.timeout(10):
            async for name, payload in owner:
                seen.setdefault(name, payload)
                if {"engine", "processes"} <= set(seen):
                    break
        assert seen["engine"]["ready"] is True
        kinds = seen["engine"]["pool"]
        assert kinds["total"] == sum(kinds[kind] for kind in set(kinds) - {"total"})
        await api.put_plan("other", {})
        async with asyncio.timeout(10):
            async for name, _ in money:
                assert name in ("change", "ping")
                if name == "change":
                    break


async def test_a_source_is_sampled_once_however_many_listen_and_never_for_nobody() -> None:
    samples = 0

    async def sample() -> object:
        nonlocal samples
        samples += 1
        return {"n": samples}

    hub = Hub(_Deaf(), Metrics())
    source = Source("counted", 0.05, lambda _: sample)
    keeping = asyncio.create_task(hub.keep([source], lambda _: sample))
    await asyncio.sleep(0.2)
    assert samples == 0
    streams = [Stream(None, "owner", f"key{n}", _fine) for n in range(5)]
    tenant = Stream("tenant", None, "key", _fine)
    async with _all_joined(hub, [*streams, tenant]):
        await asyncio.sleep(0.5)
    at_end = samples
    assert 5 <= at_end <= 12
    await asyncio.sleep(0.2)
    assert samples == at_end
    for stream in streams:
        assert 4 <= len(stream._waiting) <= at_end
    assert not tenant._waiting
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_reader_that_does_not_read_is_dropped() -> None:
    stream = Stream(None, "owner", "slow", _fine)
    for _ in range(WAITING_MAX):
        stream.send(b"x")
    assert stream._end is None
    stream.send(b"x")
    rest = [event async for event in stream.events(None, frozenset())]
    assert len(rest) == 2
    assert parsed(rest[1].decode())[1]["code"] == "too_slow"


async def test_many_changes_are_told_of_once() -> None:
    stream = Stream("t", None, "k", _fine)
    for _ in range(1000):
        stream.change(frozenset({"adapters"}))
    stream.change(frozenset({"usage"}))
    told = [event.decode() async for event in stream.events(1.0, frozenset())]
    assert [parsed(each)[1]["topics"] for each in told[1:]] == [["adapters", "usage"]]


async def test_an_outage_of_the_database_ends_no_stream() -> None:
    asked = 0

    async def check() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RedisConnectionError("away")
        raise UnauthorizedError("gone")

    stream = Stream("t", None, "k", check)
    await stream._look()
    last = [event async for event in stream.events(0, frozenset())][-1]
    assert parsed(last.decode().removeprefix("retry: 2000\n"))[0] == "hello"
    await stream._look()
    last = [event async for event in stream.events(0, frozenset())][-1]
    assert parsed(last.decode())[1]["code"] == "invalid_api_key"


async def test_after_redis_was_away_everything_may_have_changed(api: Api) -> None:
    heard: list[tuple[str | None, frozenset[str]]] = []
    changes = Changes(_Flaky(str(api.state.settings.redis_url)), api.state.seal)
    listening = asyncio.Event()
    task = asyncio.create_task(
        changes.listen(lambda whose, topics: heard.append((whose, topics)), listening)
    )
    async with asyncio.timeout(10):
        await listening.wait()
        while not heard:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert heard == [(EVERYBODY, TOPICS | FOR_WORKERS)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_every_table_has_a_topic_or_is_silent() -> None:
    openapi_document()  # so that every mapping is there
    tables = set(Base.metadata.tables)
    assert set(BY_TABLE) | SILENT >= tables
    assert not set(BY_TABLE) & SILENT
    assert frozenset().union(*BY_TABLE.values()) <= TOPICS
    assert topics_of_action("something.new") == TOPICS


async def _fine() -> None:
    return None


@asynccontextmanager
async def _all_joined(hub: Hub, streams: list[Stream]) -> AsyncIterator[None]:
    if not streams:
        yield
        return
    async with hub.joined(streams[0]), _all_joined(hub, streams[1:]):
        yield


class _Deaf(Changes):
    def __init__(self) -> None:
        """Hears nothing, and says that it listens."""

    async def listen(self, heard: object, listening: asyncio.Event) -> None:
        listening.set()
        await asyncio.Event().wait()


class _Flaky(Redis):
    """Fails at first."""

    def __init__(self, url: str) -> None:
        other = Redis.from_url(url)
        super().__init__(connection_pool=other.connection_pool)
        self._failed = False

    def pubsub(self, **options: Any) -> Any:
        if not self._failed:
            self._failed = True
            raise RedisConnectionError("away")
        return super().pubsub(**options)
