"""Prompts and answers are kept where a tenant chose so, for as long as it chose, for nobody else;
and nowhere otherwise."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from api_harness import Api, TestTenant
from platform_fixtures import Connection, MakeApi, plain_url
from tenora_platform.bootstrap import database_urls
from tenora_platform.installation import DEFAULT
from tenora_platform.receipts.contents import Seal
from tenora_platform.receipts.sweeper import sweep
from tenora_platform.secret import ServerSecret
from tenora_platform.usage.sink import UsageSink

SECRET_TEXT = "the recipe is cinnamon"
ANSWER = "I shall tell nobody"
CHAT = {"model": "fake-base", "messages": [{"role": "user", "content": SECRET_TEXT}]}
NOT_STORED = {"stored_response_days": None, "stored_responses_allowed": False}


@pytest.fixture(autouse=True)
def said(api: Api) -> None:
    api.engine.answer = lambda request, index: ANSWER


async def keeping(api: Api, days: int | None = 7) -> TestTenant:
    tenant = await api.new_tenant()
    answer = await api.call(tenant.key, "PATCH", "/v1/settings", json={"keep_contents_days": days})
    assert answer.status_code == 200, answer.text
    chosen = {"keep_contents_days": days, "draft_from_answers": False}
    assert answer.json() == {"object": "settings", **chosen, **NOT_STORED}
    return tenant


async def ask(
    api: Api, tenant: TestTenant, headers: dict[str, str] | None = None, **more: Any
) -> str:
    answer = await api.call(
        tenant.key, "POST", "/v1/chat/completions", json=CHAT | more, headers=headers or {}
    )
    assert answer.status_code == 200, answer.text
    if more.get("stream"):
        return str(json.loads(answer.text.partition("\n")[0].removeprefix("data: "))["id"])
    return str(answer.json()["id"])


async def contents(api: Api, tenant: TestTenant, request_id: str) -> dict[str, Any] | None:
    """Once what waited has been written."""
    await api.state.contents.finish()
    answer = await api.call(tenant.key, "GET", f"/v1/requests/{request_id}/contents")
    assert answer.status_code in (200, 404), answer.text
    found: dict[str, Any] | None = answer.json() if answer.status_code == 200 else None
    return found


async def test_answers_draft_later_ones_where_the_tenant_wants_it(api: Api) -> None:
    tenant = await keeping(api)
    for wanted in (False, True, False):
        change = {"draft_from_answers": wanted}
        answer = await api.call(tenant.key, "PATCH", "/v1/settings", json=change)
        chosen = {"keep_contents_days": 7, "draft_from_answers": wanted}
        assert answer.json() == {"object": "settings", **chosen, **NOT_STORED}
        await ask(api, tenant)
        assert api.engine.requests[-1].tenant.keeps_answers is wanted


async def test_nothing_is_kept_unless_asked_for(api: Api, owner: Connection) -> None:
    tenant = await api.new_tenant()
    settings = await api.call(tenant.key, "GET", "/v1/settings")
    assert settings.json()["keep_contents_days"] is None
    assert await contents(api, tenant, await ask(api, tenant)) is None
    assert owner.execute(
        "select count(*) from kept_contents where tenant_id = %s", [tenant.id]
    ).fetchone() == (0,)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_asked_and_answered_is_kept(
    api: Api, stream: bool, owner: Connection
) -> None:
    tenant = await keeping(api)
    asked: dict[str, Any] = {"n": 2, "max_tokens": 5, "stream": stream}
    request_id = await ask(api, tenant, None, **asked)
    found = await contents(api, tenant, request_id)
    assert found is not None
    assert found["id"] == request_id
    assert found["endpoint"] == "/v1/chat/completions"
    assert found["request"] == CHAT | asked
    assert found["choices"] == [
        {"index": 0, "text": ANSWER[:5], "finish_reason": "length"},
        {"index": 1, "text": ANSWER[:5], "finish_reason": "length"},
    ]
    kept = datetime.fromisoformat(found["expires_at"]) - datetime.fromisoformat(found["created_at"])
    assert kept == timedelta(days=7)
    row = owner.execute(
        "select sealed, bytes from kept_contents where request_id = %s", [request_id]
    ).fetchone()
    assert row is not None
    assert SECRET_TEXT.encode() not in bytes(row[0])
    assert row[1] > 100


async def test_completions_are_kept_too(api: Api) -> None:
    tenant = await keeping(api)
    body = {"model": "fake-base", "prompt": ["one", "two"], "max_tokens": 3}
    answer = await api.call(tenant.key, "POST", "/v1/completions", json=body)
    found = await contents(api, tenant, answer.json()["id"])
    assert found is not None
    assert found["request"] == body
    assert [choice["text"] for choice in found["choices"]] == [ANSWER[:3]] * 2


async def test_a_stream_that_is_cut_off_is_kept_as_far_as_it_came(api: Api) -> None:
    """Its tenant is suspended while it runs, so that the engine ends it."""
    tenant = await keeping(api)
    api.engine.gate = asyncio.Event()
    asking = asyncio.create_task(
        api.call(tenant.key, "POST", "/v1/chat/completions", json=CHAT | {"stream": True})
    )
    asked = api.engine.requests
    while not asked or asked[-1].tenant.key != tenant.id:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    request_id = api.engine.requests[-1].request_id
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"status": "suspended"})
    answer = await asking
    assert "suspended" in answer.text
    api.engine.gate = None
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"status": "active"})
    found = await contents(api, tenant, request_id)
    assert found is not None
    assert found["request"]["messages"] == CHAT["messages"]
    assert all(choice["finish_reason"] is None for choice in found["choices"])


@pytest.mark.parametrize("how", ["header", "store"])
async def test_one_request_can_stay_out(api: Api, how: str) -> None:
    tenant = await keeping(api)
    if how == "header":
        request_id = await ask(api, tenant, {"x-tenora-keep-contents": "false"})
    else:
        request_id = await ask(api, tenant, store=False)
    assert await contents(api, tenant, request_id) is None
    kept = await ask(api, tenant, {"x-tenora-keep-contents": "true"})
    assert await contents(api, tenant, kept) is not None
    odd = await api.call(
        tenant.key,
        "POST",
        "/v1/chat/completions",
        json=CHAT,
        headers={"x-tenora-keep-contents": "nope"},
    )
    assert odd.status_code == 400
    assert odd.json()["error"]["param"] == "x-tenora-keep-contents"


async def test_they_are_the_tenants_alone(api: Api, settings: Any) -> None:
    tenant, stranger = await keeping(api), await keeping(api)
    request_id = await ask(api, tenant)
    assert await contents(api, tenant, request_id) is not None
    assert await contents(api, stranger, request_id) is None
    deleted = await api.call(stranger.key, "DELETE", f"/v1/requests/{request_id}/contents")
    assert deleted.status_code == 404
    assert await contents(api, tenant, request_id) is not None
    key = {"name": "bills", "scopes": ["usage", "inference"]}
    made = await api.call(tenant.key, "POST", "/v1/api_keys", json=key)
    lesser = made.json()["key"]
    for method, path in (
        ("GET", f"/v1/requests/{request_id}/contents"),
        ("DELETE", f"/v1/requests/{request_id}/contents"),
        ("PATCH", "/v1/settings"),
    ):
        refused = await api.call(lesser, method, path, json={})
        assert refused.json()["error"]["code"] == "insufficient_scope", path
    urls = database_urls(settings.database_url, api.state.secret, DEFAULT)
    admin = plain_url(urls.admin.render_as_string(hide_password=False))
    with psycopg.connect(admin) as operator, pytest.raises(psycopg.errors.InsufficientPrivilege):
        operator.execute("select sealed from kept_contents")


def test_a_row_opens_for_its_own_request_only() -> None:
    seal = Seal(ServerSecret(b"one"))
    sealed = seal.close("tenant_a", "chatcmpl_1", {"text": "é" * 1000})
    assert sealed.bytes > 1000 > len(sealed.sealed)
    assert seal.open("tenant_a", "chatcmpl_1", sealed.sealed) == {"text": "é" * 1000}
    assert seal.open("tenant_b", "chatcmpl_1", sealed.sealed) is None
    assert seal.open("tenant_a", "chatcmpl_2", sealed.sealed) is None
    assert Seal(ServerSecret(b"two")).open("tenant_a", "chatcmpl_1", sealed.sealed) is None


async def test_their_days_end(api: Api, owner: Connection) -> None:
    tenant = await keeping(api)
    request_id, other = await ask(api, tenant), await ask(api, tenant)
    assert await contents(api, tenant, request_id) is not None
    owner.execute(
        "update kept_contents set created_at = created_at - interval '3 days',"
        " expires_at = expires_at - interval '3 days' where request_id = %s",
        [request_id],
    )
    assert await contents(api, tenant, request_id) is not None
    await api.call(tenant.key, "PATCH", "/v1/settings", json={"keep_contents_days": 2})
    assert await contents(api, tenant, request_id) is None, "shortened, and so over"
    assert await contents(api, tenant, other) is not None
    rows = "select count(*) from kept_contents where tenant_id = %s"
    assert owner.execute(rows, [tenant.id]).fetchone() == (2,)
    await sweep(api.state.db)
    assert owner.execute(rows, [tenant.id]).fetchone() == (1,)


async def test_switched_off_no_more_are_kept(api: Api) -> None:
    tenant = await keeping(api)
    before = await ask(api, tenant)
    assert await contents(api, tenant, before) is not None
    off = await api.call(tenant.key, "PATCH", "/v1/settings", json={"keep_contents_days": None})
    assert off.json()["keep_contents_days"] is None
    assert await contents(api, tenant, before) is not None, "until its days are over"
    assert await contents(api, tenant, await ask(api, tenant)) is None
    wipe = {"delete_kept_contents": True}
    assert (await api.call(tenant.key, "PATCH", "/v1/settings", json=wipe)).status_code == 200
    assert await contents(api, tenant, before) is None
    path = f"/admin/v1/audit_logs?tenant_id={tenant.id}&action=settings.update"
    entries = (await api.admin("GET", path)).json()["data"]
    assert [entry["after"]["keep_contents_days"] for entry in entries] == [None, None, 7]
    assert entries[0]["details"]["deleted_contents"] == 1


async def test_what_was_under_way_is_not_kept_behind_the_deletion(api: Api) -> None:
    tenant = await keeping(api)
    async with api.state.contents._writing:
        request_id = await ask(api, tenant)
        off = {"keep_contents_days": None, "delete_kept_contents": True}
        await api.call(tenant.key, "PATCH", "/v1/settings", json=off)
    assert await contents(api, tenant, request_id) is None


async def test_one_can_be_deleted(api: Api) -> None:
    tenant = await keeping(api)
    request_id = await ask(api, tenant)
    assert await contents(api, tenant, request_id) is not None
    await UsageSink(api.engine, api.state.db).store(api.engine.outbox)
    name = request_id.replace("chatcmpl", "req")  # the x-request-id
    assert (await contents(api, tenant, name) or {})["id"] == request_id
    path = f"/v1/requests/{name}/contents"
    assert (await api.call(tenant.key, "DELETE", path)).json()["deleted"] is True
    assert await contents(api, tenant, request_id) is None
    assert (await api.call(tenant.key, "DELETE", path)).status_code == 404


@pytest.mark.parametrize("days", [0, 367, "x", 1.5])
async def test_days_have_bounds(api: Api, days: Any) -> None:
    tenant = await api.new_tenant()
    answer = await api.call(tenant.key, "PATCH", "/v1/settings", json={"keep_contents_days": days})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "keep_contents_days"


async def test_while_too_much_waits_they_are_lost_and_counted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await keeping(api)
    monkeypatch.setattr("tenora_platform.receipts.keeper.WAITING_BYTES_MAX", 1)
    request_id = await ask(api, tenant)
    assert await contents(api, tenant, request_id) is None
    assert 'tenora_contents_lost_total{reason="full"} 1.0' in api.state.metrics.text().decode()


async def test_nothing_of_them_is_logged(
    make_api: MakeApi, capfd: pytest.CaptureFixture[str]
) -> None:
    async with make_api(log_level="debug") as api:
        api.engine.answer = lambda request, index: ANSWER
        tenant = await keeping(api)
        assert await contents(api, tenant, await ask(api, tenant)) is not None
        odd = CHAT | {"temperature": 9}
        await api.call(tenant.key, "POST", "/v1/chat/completions", json=odd)
    out, err = capfd.readouterr()
    assert SECRET_TEXT not in out + err
    assert ANSWER not in out + err
