"""The id of the HTTP answer stands beside the usage it caused: the client's own or the one made for
it, also where a request has several sequences and where the record cannot be billed yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, text

from api_harness import Api
from tenora_platform.ids import new_id
from tenora_platform.usage.ids import x_request_id_of
from tenora_platform.usage.reading import tenant_no
from tenora_platform.usage.records import usage_event
from tenora_platform.usage.tables import UsageEventRow
from usage_records import usage_record

CHAT = {"model": "fake-base", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


async def events_of(api: Api, tenant_id: str, count: int) -> list[UsageEventRow]:
    query = select(UsageEventRow).where(UsageEventRow.tenant_no == tenant_no(tenant_id))
    async with asyncio.timeout(20):
        while True:
            async with api.state.db.admin_session() as session:
                rows = list(await session.scalars(query))
            if len(rows) >= count:
                return rows
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sent", [None, "trace:my-own.1", "x" * 128, "x" * 129, "no spaces"])
async def test_the_answers_id_is_kept(api: Api, sent: str | None, stream: bool) -> None:
    tenant = await api.new_tenant()
    headers = {} if sent is None else {"x-request-id": sent}
    body = CHAT | {"stream": stream, "n": 2}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    told = answer.headers["x-request-id"]
    assert (told == sent) == (sent in ("trace:my-own.1", "x" * 128))
    rows = await events_of(api, tenant.id, 2)
    assert {x_request_id_of(row.request, row.x_request_id) for row in rows} == {told}
    # One of the server's making is of the answer's own ULID, and takes no room.
    kept = None if told.startswith("req_") else told
    assert {row.x_request_id for row in rows} == {kept}


async def test_the_bodys_id_finds_the_request(api: Api) -> None:
    tenant = await api.new_tenant()
    body = CHAT | {"request_id": "by-body.1"}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.headers["x-request-id"] == "by-body.1"
    await events_of(api, tenant.id, 1)
    found = await api.call(tenant.key, "GET", "/v1/requests/by-body.1")
    assert found.json()["id"] == answer.json()["id"], found.text


async def test_it_is_shown_where_events_are(api: Api) -> None:
    tenant = await api.new_tenant()
    async with api.state.db.admin_session() as session:
        await session.execute(text("update price_versions set effective_from = '2199-01-01'"))
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=CHAT)
    await events_of(api, tenant.id, 1)
    shown = (await api.admin("GET", "/admin/v1/reconciliation")).json()["newest_unrated_events"]
    assert shown[0]["x_request_id"] == answer.headers["x-request-id"]
    assert shown[0]["request_id"] == answer.json()["id"]


def test_records_from_before_have_none() -> None:
    record: Any = usage_record("chatcmpl_1:0", "tenant_1")
    event = usage_event(record)
    assert x_request_id_of(event.id.request, event.x_request_id) is None


async def test_what_a_client_sends_is_no_answers_id(api: Api) -> None:
    """Usage is known by the ULID of the answer: one that a client could choose, it could choose
    twice, and the second request would be billed to nobody."""
    tenant = await api.new_tenant()
    sent = new_id("req")
    ids = set()
    for _ in range(2):
        answer = await api.call(
            tenant.key, "POST", "/v1/chat/completions", json=CHAT, headers={"x-request-id": sent}
        )
        assert answer.headers["x-request-id"] == sent
        ids.add(answer.json()["id"])
    assert len(ids) == 2
    rows = await events_of(api, tenant.id, 2)
    assert len({row.request for row in rows}) == 2
    assert {row.x_request_id for row in rows} == {sent}
