"""Calls of the inference API that were answered with an error: each is found with its message,
field and key, nothing of a prompt is kept, and however many come, a tenant takes few rows."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import structlog
from fastapi.routing import iter_route_contexts
from sqlalchemy import func, select, text

from api_harness import Api, TestTenant
from fake_engine import FakeEngine
from tenora_engine.errors import EngineUnavailableError
from tenora_engine.events import SequenceEvent
from tenora_engine.request import GenerationRequest
from tenora_platform.app import create_app
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import ApiError, BadRequestError
from tenora_platform.history.sampler import HistorySampler
from tenora_platform.keys import hide_keys, make_key
from tenora_platform.logs import configure_logging
from tenora_platform.rejections import keeper, sweeper
from tenora_platform.rejections.keeper import RejectedCalls
from tenora_platform.rejections.tables import RejectedCallRow
from tenora_platform.rejections.wording import HIDDEN, message_of, param_of
from tenora_platform.settings import Settings

CHAT = "/v1/chat/completions"
SECRET = "swordfish"


@pytest.fixture
async def quiet(settings: Settings, tmp_path: Path) -> AsyncIterator[Api]:
    """An application beside which nothing runs: what it noted is stored when a test says so."""
    engine = FakeEngine(tmp_path / "model")
    app = create_app(settings, engine=engine, work=lambda _: {})
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://tenora") as http:
            await engine.start()
            yield Api(app, engine, http)


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "fake-base", "messages": [{"role": "user", "content": "hi"}], **more}


async def listed(api: Api, tenant: TestTenant, **query: Any) -> list[dict[str, Any]]:
    """All of them, page by page, newest first."""
    await api.state.rejected.flush()
    found: list[dict[str, Any]] = []
    after = None
    while True:
        params = {"limit": 100, **query} | ({"after": after} if after else {})
        answer = await api.call(tenant.key, "GET", "/v1/rejected_calls", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["data"]
        if not page["has_more"]:
            return found
        after = page["last_id"]


async def counted(api: Api, tenant: TestTenant) -> dict[str, int]:
    """Answers by status, as the charts have them."""
    await api.state.answers._flush()
    await HistorySampler(api.state).sample()
    query = {"metric": "answers"}
    answer = (await api.call(tenant.key, "GET", "/v1/timeseries", params=query)).json()
    return {
        each["kind"]: int(sum(filter(None, each["values"])))
        for each in answer["series"]
        if any(each["values"])
    }


async def test_only_inference_is_counted(quiet: Api) -> None:
    tenant = await quiet.new_tenant("looks")
    for path in ("/v1/me", "/v1/requests", "/v1/adapters/none", "/v1/models", "/v1/events"):
        await quiet.call(tenant.key, "GET", path)
    await quiet.call(tenant.key, "POST", "/v1/api_keys", json={"name": 7})
    assert await counted(quiet, tenant) == {}
    assert await listed(quiet, tenant) == []
    assert (await quiet.call(tenant.key, "POST", CHAT, json=chat())).status_code == 200
    for _ in range(2):
        assert (await quiet.call(tenant.key, "POST", CHAT, json=chat(model="no"))).is_error
    assert await counted(quiet, tenant) == {"200": 1, "404": 2}
    assert len(await listed(quiet, tenant)) == 2


STREAMS = {
    CHAT: chat(),
    "/v1/completions": {"model": "fake-base", "prompt": "hi", "max_tokens": 400},
    "/v1/responses": {"model": "fake-base", "input": "hi"},
    "/v1/messages": chat(max_tokens=400),
}


def fail_after(engine: FakeEngine, tokens: int, error: Exception) -> None:
    """Each request from now on fails when so much of it has come."""
    submit = engine.submit

    async def fails(request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        events = submit(request)
        for _ in range(tokens):
            yield await anext(events)
        raise error

    engine.submit = fails  # type: ignore[method-assign]


async def test_all_streams_of_inference_are_known(quiet: Api) -> None:
    """So that none is left out of the tests that follow."""
    found = (context.original_route for context in iter_route_contexts(quiet.app.routes))
    routes = [each for each in found if isinstance(each, EdgeRoute) and each.serves_inference]
    streamed = {each.path for each in routes if "text/event-stream" in str(each.responses)}
    assert streamed == set(STREAMS)


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_that_fails_after_its_start_is_a_failed_request(
    quiet: Api, path: str
) -> None:
    """Its status of 200 had been sent: it is counted and listed as what its last event said."""
    tenant = await quiet.new_tenant("cut")
    quiet.engine.answer = lambda request, index: f"{SECRET} " * 40
    await quiet.call(tenant.key, "POST", path, json=STREAMS[path] | {"stream": True})
    assert await counted(quiet, tenant) == {"200": 1}

    fail_after(quiet.engine, 20, EngineUnavailableError("it died"))
    answer = await quiet.call(tenant.key, "POST", path, json=STREAMS[path] | {"stream": True})
    assert answer.status_code == 200
    assert "engine_unavailable" in answer.text
    assert await counted(quiet, tenant) == {"200": 1, "503": 1}
    (row,) = await listed(quiet, tenant)
    assert (row["route"], row["status"]) == (f"POST {path}", 503)
    assert (row["code"], row["model"]) == ("engine_unavailable", "fake-base")
    assert row["request_id"] == answer.headers["x-request-id"]
    metrics = quiet.state.metrics.text().decode()
    counter = f'tenora_http_requests_total{{method="POST",route="{path}",status="503"}} 1.0'
    assert counter in metrics


async def test_a_stream_that_fails_unforeseen_is_a_failed_request(quiet: Api) -> None:
    tenant = await quiet.new_tenant("unforeseen")
    fail_after(quiet.engine, 3, RuntimeError(SECRET))
    await quiet.call(tenant.key, "POST", CHAT, json=chat(stream=True))
    assert await counted(quiet, tenant) == {"500": 1}
    (row,) = await listed(quiet, tenant)
    assert row["status"] == 500
    assert SECRET not in json.dumps(row)


async def test_what_a_client_gets_wrong_on_the_way_is_listed_as_its_tenants(quiet: Api) -> None:
    """A model, a response or a route that there is not, and a method that a route does not take."""
    tenant = await quiet.new_tenant("mistyped")
    asked = [
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/responses/resp_none", 404),
        ("POST", "/v1/chat/completion", 404),
        ("POST", "/v1/v1/chat/completions", 404),
        ("GET", CHAT, 405),
        ("GET", "/v1/\x00odd\u202e", 404),
    ]
    for method, path, status in asked:
        assert (await quiet.call(tenant.key, method, quote(path))).status_code == status
    await quiet.call("tn_unknown", "POST", "/v1/chat/completion")
    rows = await listed(quiet, tenant)
    assert [each["status"] for each in reversed(rows)] == [status for *_, status in asked]
    routes = [each["route"] for each in reversed(rows)]
    assert routes[2:4] == ["POST /v1/chat/completion", "POST /v1/v1/chat/completions"]
    assert routes[5] == "GET /v1/ odd "
    assert all(each["api_key_id"] for each in rows)
    # Of the others the successes, were there any, would not be counted either.
    assert await counted(quiet, tenant) == {"405": 1}


async def test_no_key_is_kept_wherever_it_was_put(quiet: Api) -> None:
    tenant = await quiet.new_tenant("pasted")
    secret = tenant.key.split("_")[2]
    named = {"x-request-id": tenant.key}
    await quiet.call(tenant.key, "POST", CHAT, json=chat(model=tenant.key))
    await quiet.call(tenant.key, "GET", f"/v1/{tenant.key}")
    await quiet.call(tenant.key, "GET", f"/v1/models/{tenant.key}")
    await quiet.call(tenant.key, "POST", CHAT, json=chat(**{tenant.key: 1}))
    await quiet.call(
        tenant.key, "POST", CHAT, json=chat(model=f"my {tenant.key}, {make_key('tna').text}")
    )
    answer = await quiet.call(tenant.key, "POST", CHAT, json=chat(model="no"), headers=named)
    assert answer.headers["x-request-id"].startswith("req_")
    answer = await quiet.call(tenant.key, "POST", CHAT, json=chat(request_id=tenant.key))
    assert answer.headers["x-request-id"].startswith("req_")
    rows = await listed(quiet, tenant)
    assert len(rows) == 6
    assert secret not in json.dumps(rows)
    assert "_".join(tenant.key.split("_")[:2]) + "_…" in {each["model"] for each in rows}
    async with quiet.state.db.admin_session() as session:
        kept = await session.scalar(
            select(func.string_agg(text("r::text"), text("' '"))).select_from(
                text("rejected_calls r")
            )
        )
    assert secret not in str(kept)


def test_a_log_has_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    key = make_key("tna").text
    try:
        configure_logging("info")
        structlog.get_logger().warning(f"of {key}", path=f"/v1/{key}")
    finally:
        structlog.reset_defaults()
    said = capsys.readouterr().err
    assert key.split("_")[1] in said
    assert key.split("_")[2] not in said


def test_what_only_looks_like_a_key_stays() -> None:
    key = make_key().text
    other = key[:-1] + ("0" if key[-1] != "0" else "1")
    assert hide_keys(f"{other} tn_a") == f"{other} tn_a"
    assert hide_keys(f"x{key}y{key}") == f"x{key[:12]}…y{key[:12]}…"


def odd_calls() -> list[tuple[dict[str, Any], int, str | None]]:
    """What is sent, and the status and field that come of it."""
    return [
        ({"json": chat(model="none-such")}, 404, "model"),
        ({"json": chat(temperature=9)}, 400, "temperature"),
        ({"json": chat(max_tokens=-1)}, 400, "max_tokens"),
        ({"json": chat(messages=[])}, 400, "messages"),
        ({"json": chat(messages=[{"role": "user", "content": [{"type": "x"}]}])}, 400, None),
        ({"json": chat(tools=[{"type": "nothing"}])}, 400, None),
        ({"json": {"messages": []}}, 400, "model"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, None),
        ({"content": b"x", "headers": {"content-type": "text/csv"}}, 415, "content-type"),
        ({"json": chat(n=10_000)}, 400, "n"),
    ]


async def test_thirty_random_rejected_calls_are_all_found(quiet: Api) -> None:
    tenant = await quiet.new_tenant("thirty", plan="premium")
    other = await quiet.new_tenant("other", plan="premium")
    draw = random.Random(33)
    sent: dict[str, tuple[int, dict[str, Any]]] = {}
    for number in range(30):
        body, status, param = draw.choice(odd_calls())
        path = CHAT
        headers = {**body.get("headers", {}), "x-request-id": f"call-{number}"}
        begun = datetime.now(UTC)
        answer = await quiet.call(tenant.key, "POST", path, **{**body, "headers": headers})
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert param is None or error["param"] == param
        sent[f"call-{number}"] = answer.status_code, {**error, "at": begun}
    found = await listed(quiet, tenant)
    assert {each["request_id"] for each in found} == set(sent)
    for each in found:
        status, error = sent[each["request_id"]]
        assert (each["status"], each["code"]) == (status, error["code"])
        assert each["param"] == error["param"]
        assert each["message"] == error["message"]
        assert each["api_key_id"] == tenant.key_id
        assert each["api_key_name"] == "test"
        assert each["route"] == f"POST {CHAT}"
        assert error["at"] <= datetime.fromisoformat(each["at"]) <= datetime.now(UTC)
        assert (each["calls"], each["last_at"]) == (1, None)
    by_status: dict[str, int] = {}
    for status, _ in sent.values():
        by_status[str(status)] = by_status.get(str(status), 0) + 1
    assert await counted(quiet, tenant) == by_status
    assert await listed(quiet, other) == []
    only = await listed(quiet, tenant, status="404", q="none-such")
    assert len(only) == by_status.get("404", 0)
    assert len(await listed(quiet, tenant, status="4xx")) == 30
    assert await listed(quiet, tenant, status="5xx") == []
    assert await listed(quiet, tenant, start="2199-01-01T00:00:00Z") == []


async def test_a_limit_is_told_with_its_code(quiet: Api) -> None:
    await quiet.put_plan("one", {"requests_per_min": 1})
    tenant = await quiet.new_tenant("limited", plan="one")
    answers = [await quiet.call(tenant.key, "POST", CHAT, json=chat()) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 429, 429]
    found = await listed(quiet, tenant, status="429", code="rate_limit_exceeded")
    told = [each.json()["error"]["message"] for each in answers[1:]]
    assert sorted(each["message"] for each in found) == sorted(told)


async def test_calls_with_a_key_that_is_no_good(quiet: Api) -> None:
    """A key's secret that has ended is proof enough of whose it was; an unknown key is nobody's."""
    tenant = await quiet.new_tenant("ended")
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    second = (await quiet.admin("POST", path, json={"name": "second"})).json()
    await quiet.call(tenant.key, "DELETE", f"/v1/api_keys/{second['id']}")
    for key in (second["key"], "tn_nobodys", second["key"][:-4] + "aaaa"):
        answer = await quiet.call(key, "POST", CHAT, json=chat())
        assert answer.status_code == 401
    await quiet.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"status": "suspended"})
    assert (await quiet.call(tenant.key, "POST", CHAT, json=chat())).status_code == 403
    await quiet.state.rejected.flush()
    query = {"tenant": tenant.id}
    own = (await quiet.admin("GET", "/admin/v1/rejected_calls", params=query)).json()["data"]
    assert [each["code"] for each in own] == ["tenant_suspended", "key_revoked"]
    assert {each["tenant_name"] for each in own} == {"ended"}
    nobodys = (await quiet.admin("GET", "/admin/v1/rejected_calls", params={"tenant": ""})).json()
    assert [each["code"] for each in nobodys["data"]][:2] == ["invalid_api_key"] * 2
    assert {each["tenant_id"] for each in nobodys["data"]} == {None}


async def test_a_flood_takes_few_rows_and_every_call_is_counted(
    quiet: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two processes: what they count together is one row of both."""
    monkeypatch.setattr("tenora_platform.rejections.keeper.time.time", lambda: 1_790_000_000.0)
    await quiet.put_plan("endless", {})
    tenant = await quiet.new_tenant("flood", plan="endless")
    for number in range(100):
        body = chat(**{f"field_{number % 90}": 1}) if number % 2 else chat(model=f"no-{number}")
        await quiet.call(tenant.key, "POST", CHAT, json=body)
    one, other = quiet.state.rejected, RejectedCalls(quiet.state.db, quiet.state.metrics)
    other._waiting = {key: each for key, each in one._waiting.items() if each.last_at is not None}
    alike = sum(each.calls for each in other._waiting.values())
    await one.flush()
    await other.flush()
    found = await listed(quiet, tenant)
    single = [each for each in found if each["last_at"] is None]
    assert len(single) == keeper.EACH_PER_MINUTE
    assert sum(each["calls"] for each in found) == 100 + alike
    assert len(found) <= keeper.EACH_PER_MINUTE + keeper.KINDS_PER_MINUTE + 1


async def test_a_flood_of_kinds_is_one_kind_of_each_status(
    quiet: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "EACH_PER_MINUTE", 2)
    monkeypatch.setattr(keeper, "KINDS_PER_MINUTE", 3)
    monkeypatch.setattr("tenora_platform.rejections.keeper.time.time", lambda: 1_790_000_000.0)
    await quiet.put_plan("endless", {})
    tenant = await quiet.new_tenant("kinds", plan="endless")
    for number in range(20):
        body = (
            chat(top_k="x", **{f"field_{number}": 1})
            if number < 2
            else chat(response_format={"type": f"kind_{number}"}, **{f"name_{number}": {}})
        )
        answer = await quiet.call(tenant.key, "POST", f"{CHAT}", json=body)
        assert answer.status_code == 400
    assert (await quiet.call(tenant.key, "POST", CHAT, json=chat(model="no"))).status_code == 404
    kept = keeper.KINDS_PER_MINUTE + keeper.EACH_PER_MINUTE + 1
    found = await listed(quiet, tenant)
    assert len(found) <= kept + 1
    assert sum(each["calls"] for each in found) == 21
    assert [each["calls"] for each in found if each["status"] == 404] == [1], "by its own status"


async def test_a_database_that_is_away_loses_nothing(
    quiet: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await quiet.new_tenant("away")
    await quiet.call(tenant.key, "POST", CHAT, json=chat(model="no"))
    store = RejectedCalls._store

    async def fails(self: RejectedCalls, batch: Any) -> None:
        await store(self, batch)
        raise OSError("the connection broke after the commit")

    monkeypatch.setattr(RejectedCalls, "_store", fails)
    with pytest.raises(OSError, match="broke"):
        await quiet.state.rejected.flush()
    monkeypatch.setattr(RejectedCalls, "_store", store)
    (only,) = await listed(quiet, tenant)
    assert only["calls"] == 1, "a call that is stored twice is one"


def with_secrets() -> list[dict[str, Any]]:
    """Bodies with a secret in every place in which something of the user's may be, each wrong."""
    said = f"my {SECRET} 'quoted {SECRET}'"
    message = {"role": "user", "content": said}
    tool = {"type": "function", "function": {"name": SECRET, "parameters": {SECRET: 1}}}
    schema = {"type": "object", "properties": {SECRET: {"type": SECRET, "pattern": f"({SECRET}"}}}
    of_schema = {"type": "json_schema", "json_schema": {"name": SECRET, "schema": schema}}
    return [
        chat(messages=[message], temperature=99),
        chat(messages=[{"role": "user", "content": [{"type": "image_url", SECRET: said}]}]),
        chat(messages=[{"role": "tool", "content": said, "name": SECRET}]),
        chat(messages=[message], tools=[tool, tool]),
        chat(tools=[tool], tool_choice={"type": "function", "function": {"name": SECRET + "x"}}),
        chat(messages=[message], stop=[SECRET] * 99),
        chat(messages=[message], stop=SECRET * 9999),
        chat(response_format=of_schema, n=99),
        chat(response_format={"type": SECRET}),
        chat(messages=[message], logit_bias={SECRET: 1}),
        chat(messages=[message], metadata={SECRET: {said: said}}),
        chat(messages=[message], **{f"{SECRET} {said}": said}),
        chat(messages=[message], **{said: 1}),
        chat(messages=[message], guided_regex=f"({SECRET}", n=99),
        chat(messages=[message], user={SECRET: SECRET}),
        chat(messages=[{"role": "user", "content": said, "tool_calls": [{SECRET: SECRET}]}]),
    ]


async def test_nothing_of_what_was_asked_is_kept(quiet: Api) -> None:
    tenant = await quiet.new_tenant("private", plan="premium")
    paths = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/tokenize")
    refused = 0
    for path in paths:
        for body in with_secrets():
            answer = await quiet.call(tenant.key, "POST", path, json=body)
            refused += answer.is_error
    assert refused > 40
    found = await listed(quiet, tenant)
    assert sum(each["calls"] for each in found) == refused
    told = [each for each in found if SECRET in json.dumps(each)]
    assert not told, [(each["message"], each["param"], each["model"]) for each in told]


@pytest.mark.parametrize("value", [f"x' {SECRET} \"", f"\\' {SECRET} \" '", f"\n'\\\" {SECRET}"])
def test_a_quoted_value_with_quotes_in_it_is_left_out(value: str) -> None:
    for message in (f"{value!r} is no choice.", f"not {json.dumps(value)} but others"):
        assert SECRET not in message_of(BadRequestError(message), {"messages": [value]})


def test_what_a_message_quotes() -> None:
    def kept(message: str, asked: Any, **more: Any) -> str:
        return message_of(BadRequestError(message, **more), asked)

    asked = {"model": "m@1", "messages": [{"role": "user", "content": "none"}], "stop": ["x'y"]}
    assert kept("There is no model 'm@1'.", asked) == "There is no model 'm@1'."
    assert kept("The model's stop is 'none'.", asked) == f"The model's stop is {HIDDEN}."
    assert kept("One of 'auto', \"x'y\".", asked) == f"One of 'auto', {HIDDEN}."
    assert kept("a b is no field", {}, param="a b") == f"{HIDDEN} is no field"
    assert kept("x\0\x1b[31m\u202ey", {}) == "x  [31m y"
    assert len(kept("x" * 10_000, {})) == 500
    assert kept("'x'", {"prompt": [1] * 300_000}) == HIDDEN
    assert kept("all", {}, kept="some") == "some"
    error = ApiError("", param="messages[0].content[12].my secret.type")
    assert param_of(error) == f"messages[0].content[12].{HIDDEN}.type"


async def test_old_rows_and_too_many_are_forgotten(
    quiet: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "KEPT_MAX", 3)
    monkeypatch.setattr(sweeper, "AT_ONCE", 2)
    tenant, other = await quiet.new_tenant("many"), await quiet.new_tenant("few")
    for each, count in ((tenant, 8), (other, 2)):
        for _ in range(count):
            await quiet.call(each.key, "POST", CHAT, json=chat(model="no"))
    newest = [each["id"] for each in await listed(quiet, tenant)][:3]
    await sweeper.sweep(quiet.state.db, 14)
    assert [each["id"] for each in await listed(quiet, tenant)] == newest
    assert len(await listed(quiet, other)) == 2
    await sweeper.sweep(quiet.state.db, 14, datetime.now(UTC) + timedelta(days=15))
    async with quiet.state.db.admin_session() as session:
        assert await session.scalar(select(func.count()).select_from(RejectedCallRow)) == 0


async def test_a_tenant_neither_sees_nor_writes_others(quiet: Api) -> None:
    tenant, other = await quiet.new_tenant("mine"), await quiet.new_tenant("theirs")
    for key in (tenant.key, other.key, "tn_nobodys"):
        await quiet.call(key, "POST", CHAT, json=chat(model="no"))
    await quiet.state.rejected.flush()
    async with quiet.state.db.tenant_session(tenant.id) as session:
        whose = await session.scalars(select(RejectedCallRow.tenant_id))
        assert set(whose) == {tenant.id}
    for statement in ("delete from rejected_calls", "update rejected_calls set calls = 0"):
        with pytest.raises(Exception, match="permission denied"):
            async with quiet.state.db.tenant_session(tenant.id) as session:
                await session.execute(text(statement))
    only = await quiet.new_tenant("narrow", scopes=["inference"])
    answer = await quiet.call(only.key, "GET", "/v1/rejected_calls")
    assert answer.status_code == 403


async def test_many_at_once_while_they_are_stored(quiet: Api) -> None:
    tenant = await quiet.new_tenant("busy", plan="premium")

    async def store() -> None:
        for _ in range(5):
            await quiet.state.rejected.flush()

    calls = [quiet.call(tenant.key, "POST", CHAT, json=chat(model="no")) for _ in range(30)]
    await asyncio.gather(store(), *calls)
    assert sum(each["calls"] for each in await listed(quiet, tenant)) == 30
