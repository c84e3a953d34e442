"""Requests in flight end when their tenant is suspended, their key revoked or the server stops:
with an error event, billed to there, in every process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis.exceptions import ConnectionError
from sqlalchemy import select

from api_harness import Api, TestTenant
from platform_fixtures import MakeApi
from served_api import HELLO, reset, served
from tenora_platform.errors import ApiError
from tenora_platform.inference.flights import Flights
from tenora_platform.usage.reading import tenant_no
from tenora_platform.usage.tables import UsageEventRow

PATH = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def long_answers(api: Api) -> None:
    reset(api.engine)
    endless(api)


def endless(api: Api) -> None:
    """Answers of 400 tokens, given while the gate is open."""
    api.engine.answer = lambda request, index: "a" * 400
    api.engine.gate = asyncio.Event()


async def streamed(http: httpx.AsyncClient, key: str, path: str = PATH) -> AsyncIterator[Any]:
    """The events of a stream, parsed; the last is [DONE] or an error."""
    body = {"model": "fake-base", "messages": HELLO, "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    async with http.stream("POST", path, headers=headers, json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def begin(api: Api, *streams: AsyncIterator[Any]) -> None:
    """Let a few tokens of each through, then hold the engine again. Once it has all requests: until
    then what is open to one would let another run to its end."""
    assert api.engine.gate is not None
    asked = len(api.engine.requests) + len(streams)
    first = asyncio.gather(*(anext(events) for events in streams))
    async with asyncio.timeout(20):
        while len(api.engine.requests) < asked:  # noqa: ASYNC110 - the engine sets no event
            await asyncio.sleep(0.01)
    api.engine.gate.set()
    for event in await first:
        assert "choices" in event
    for events in streams:
        for _ in range(3):
            assert "choices" in await anext(events)
    api.engine.gate.clear()


async def last_of(api: Api, events: AsyncIterator[Any]) -> Any:
    assert api.engine.gate is not None
    api.engine.gate.set()
    last = None
    async with asyncio.timeout(20):
        async for event in events:
            last = event
    return last


async def billed(api: Api, tenant: TestTenant) -> int:
    """Output tokens of the tenant's one sequence, which was aborted, once they are stored."""
    query = select(UsageEventRow).where(UsageEventRow.tenant_no == tenant_no(tenant.id))
    async with asyncio.timeout(20):
        while True:
            async with api.state.db.admin_session() as session:
                rows = (await session.scalars(query)).all()
            if rows:
                assert [row.finish_reason for row in rows] == ["abort"]
                return int(rows[0].output_tokens)
            await asyncio.sleep(0.05)


async def suspend(api: Api, tenant: TestTenant) -> None:
    path, body = f"/admin/v1/tenants/{tenant.id}", {"status": "suspended"}
    assert (await api.admin("PATCH", path, json=body)).status_code == 200


async def revoke(api: Api, tenant: TestTenant) -> None:
    path = f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
    assert (await api.admin("DELETE", path)).status_code == 200


@pytest.mark.parametrize(
    ("end", "code", "tokens"),
    [(suspend, "tenant_suspended", range(1)), (revoke, "key_revoked", range(3, 400))],
)
async def test_a_stream_ends_with_its_tenant_or_key(
    api: Api, end: Any, code: str, tokens: range
) -> None:
    """What the operator cuts off is charged to nobody, what a tenant does to its key is."""
    mine, others = await api.new_tenant("mine"), await api.new_tenant("others")
    async with served(api) as url, httpx.AsyncClient(base_url=url.removesuffix("/v1")) as http:
        ending = streamed(http, mine.key)
        await begin(api, ending)
        headers = {"authorization": f"Bearer {others.key}"}
        body = {"model": "fake-base", "messages": HELLO}
        going_on = asyncio.create_task(http.post(PATH, headers=headers, json=body, timeout=20))
        async with asyncio.timeout(10):
            while len(api.engine.requests) < 2:  # noqa: ASYNC110 - the engine sets no event
                await asyncio.sleep(0.01)
        await end(api, mine)
        last = await last_of(api, ending)
        assert last["error"]["code"] == code
        assert (await going_on).status_code == 200
    assert await billed(api, mine) in tokens
    tenant = await api.state.auth.tenant(others.key)
    assert (await api.state.limits.now(tenant)).parallel == 0


async def test_streams_of_another_process_end_too(api: Api, make_api: MakeApi) -> None:
    """The word goes through Redis; who asks there is one process, who streams another."""
    mine = await api.new_tenant("mine")
    async with make_api() as second:
        endless(second)
        async with (
            served(second) as url,
            httpx.AsyncClient(base_url=url.removesuffix("/v1")) as http,
        ):
            ending = streamed(http, mine.key)
            await begin(second, ending)
            await suspend(api, mine)
            async with asyncio.timeout(10):
                while not second.engine.aborted:  # noqa: ASYNC110 - set on the other side
                    await asyncio.sleep(0.02)
            assert (await last_of(second, ending))["error"]["code"] == "tenant_suspended"


async def test_a_stream_ends_with_its_secret_and_not_with_the_keys_other_one(
    api: Api, make_api: MakeApi
) -> None:
    """A rotation without overlap, while the key streams by both of its secrets elsewhere."""
    mine = await api.new_tenant("mine")
    rotation = f"/admin/v1/tenants/{mine.id}/api_keys/{mine.key_id}/rotate"
    answer = await api.admin("POST", rotation, json={"overlap_s": 600})
    second_key = str(answer.json()["key"])
    async with make_api() as second:
        endless(second)
        async with (
            served(second) as url,
            httpx.AsyncClient(base_url=url.removesuffix("/v1")) as http,
        ):
            old, new = streamed(http, mine.key), streamed(http, second_key)
            await begin(second, old, new)
            await api.state.flights.secret_ended(mine.key.split("_")[1])
            async with asyncio.timeout(10):
                while not second.engine.aborted:  # noqa: ASYNC110 - set on the other side
                    await asyncio.sleep(0.02)
            await api.admin("POST", rotation, json={"overlap_s": 0})
            async with asyncio.timeout(10):
                while len({entry[0] for entry in second.engine.aborted}) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            for events in (old, new):
                assert (await last_of(second, events))["error"]["code"] == "key_rotated"


async def test_what_redis_did_not_take_is_said_again(
    api: Api, make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = await api.new_tenant("mine")

    async def away(*_: object) -> None:
        raise ConnectionError("away")

    async with make_api() as second:
        endless(second)
        async with (
            served(second) as url,
            httpx.AsyncClient(base_url=url.removesuffix("/v1")) as http,
        ):
            ending = streamed(http, mine.key)
            await begin(second, ending)
            with monkeypatch.context() as patch:
                patch.setattr(api.state.redis, "eval", away)
                await api.state.flights.tenant_suspended(mine.id)
            assert not second.engine.aborted
            async with asyncio.timeout(10):
                while not second.engine.aborted:  # noqa: ASYNC110 - set on the other side
                    await asyncio.sleep(0.02)
            assert (await last_of(second, ending))["error"]["code"] == "tenant_suspended"


async def test_what_was_said_before_the_first_look_is_read(api: Api) -> None:
    """Redis was away when the process began, or it was only slow."""
    tenant = await api.state.auth.tenant((await api.new_tenant("early")).key)
    ended = asyncio.Event()

    class Run:
        async def end(self, error: ApiError) -> None:
            assert error.code == "tenant_suspended"
            ended.set()

    flights = Flights(api.state.redis, api.state.seal)
    async with flights.flight(tenant, (Run(),)):
        await api.state.flights.tenant_suspended(tenant.tenant_id)
        watching = asyncio.create_task(flights.keep_watch())
        async with asyncio.timeout(10):
            await ended.wait()
    watching.cancel()


async def test_what_a_stopping_server_cuts_is_told_so(make_api: MakeApi) -> None:
    """After `drain_s`, with an error event where the stream has begun and 503 where not."""
    async with make_api(drain_s=0.3) as api:
        endless(api)
        tenant = await api.new_tenant()
        async with httpx.AsyncClient(timeout=20) as http:
            async with served(api) as url:
                events = streamed(http, tenant.key, f"{url}/chat/completions")
                await begin(api, events)
                headers = {"authorization": f"Bearer {tenant.key}"}
                body = {"model": "fake-base", "messages": HELLO}
                whole = asyncio.create_task(
                    http.post(f"{url}/chat/completions", headers=headers, json=body)
                )
                async with asyncio.timeout(10):
                    while len(api.engine.requests) < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                reading = asyncio.create_task(told_to_end(api, events))
            assert (await reading)["error"]["code"] == "server_stopping"
            answer = await whole
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "server_stopping"


async def told_to_end(api: Api, events: AsyncIterator[Any]) -> Any:
    """The last event of a stream whose engine goes on once it was asked to abort."""
    async with asyncio.timeout(20):
        while not api.engine.aborted:  # noqa: ASYNC110 - set on the other side
            await asyncio.sleep(0.01)
    return await last_of(api, events)
