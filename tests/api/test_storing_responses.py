"""Which responses are stored: where plan and tenant want them, for as long as the tenant chose, for
nobody else, within bounds, and never without the client knowing whether."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy.exc import OperationalError

from api_harness import Api, TestTenant, running_api
from platform_fixtures import Connection, plain_url
from served_api import reset, until
from stored_harness import age, allow, call, choose, rows_of, status_of, storing
from tenora_platform.bootstrap import database_urls
from tenora_platform.installation import DEFAULT
from tenora_platform.receipts import stored_repository, stored_responses
from tenora_platform.settings import Settings

MOST = 40
MOST_BYTES = 200_000
TEXT = "the recipe is cinnamon"


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    return settings.model_copy(
        update={"max_stored_responses": MOST, "max_stored_responses_size": MOST_BYTES}
    )


@pytest.fixture(scope="module")
async def plans(api: Api) -> None:
    await allow(api)


@pytest.fixture(scope="module")
async def other(
    settings: Settings, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Api]:
    """A second process over the same database."""
    async with running_api(settings, tmp_path_factory.mktemp("other")) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_engines(api: Api, other: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (api, other):
        reset(each.engine)
        monkeypatch.setattr(each.engine, "model", replace(each.engine.model, context_tokens=4096))


@pytest.fixture
async def tenant(api: Api, plans: None) -> TestTenant:
    return await storing(api)


async def test_a_deletion_is_told_as_openai_does(api: Api, tenant: TestTenant) -> None:
    made = (await call(api, tenant.key)).json()
    answer = await api.call(tenant.key, "DELETE", f"/v1/responses/{made['id']}")
    assert answer.json() == {"id": made["id"], "object": "response", "deleted": True}


async def test_a_stored_response_is_not_streamed_again(api: Api, tenant: TestTenant) -> None:
    made = (await call(api, tenant.key)).json()
    path = f"/v1/responses/{made['id']}"
    answer = await api.call(tenant.key, "GET", f"{path}?stream=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
    more = "include_obfuscation=false&stream=false&include[]=message.output_text.logprobs"
    assert (await api.call(tenant.key, "GET", f"{path}?{more}")).json() == made


async def test_tokens_are_told_and_not_stored(api: Api, tenant: TestTenant) -> None:
    made = (await call(api, tenant.key, enable_response_messages=True)).json()
    assert made.pop("input_messages")[0]["tokens"]
    assert made.pop("output_messages")[0]["tokens"]
    path = f"/v1/responses/{made['id']}"
    assert (await api.call(tenant.key, "GET", path)).json() == made


@pytest.mark.parametrize("store", [None, True, False])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chosen", ["nothing", "plan", "both"])
async def test_plan_and_tenant_must_want_it(
    api: Api, plans: None, owner: Connection, chosen: str, stream: bool, store: bool | None
) -> None:
    if chosen == "nothing":
        tenant = await api.new_tenant("without")
    else:
        tenant = await storing(api, 7 if chosen == "both" else None)
    body = {"stream": stream} if store is None else {"stream": stream, "store": store}
    answer = await call(api, tenant.key, **body)
    assert answer.status_code == 200, answer.text
    if stream:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:5] == "data:"]
        shown = [event["response"] for event in events if "response" in event]
    else:
        shown = [answer.json()]
    is_stored = chosen == "both" and store is not False
    assert {each["store"] for each in shown} == {is_stored}
    assert {each["store_error"] for each in shown} == {None}
    assert rows_of(owner, tenant) == is_stored
    warning = answer.headers.get("x-tenora-warning", "")
    if store and not is_stored:
        assert "store has no effect" in warning
        assert ("plan" if chosen == "nothing" else "stored_response_days") in warning
    else:
        assert not warning
    assert await status_of(api, tenant.key, shown[-1]["id"]) == (200 if is_stored else 404)


async def test_a_plan_allows_it_first(api: Api, plans: None) -> None:
    tenant = await api.new_tenant("without")
    settings = (await api.call(tenant.key, "GET", "/v1/settings")).json()
    assert (settings["stored_responses_allowed"], settings["stored_response_days"]) == (False, None)
    wanted = {"stored_response_days": 3}
    answer = await api.call(tenant.key, "PATCH", "/v1/settings", json=wanted)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "stored_responses_not_in_plan"
    moved = await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"plan": "storing"})
    assert moved.status_code == 200
    settings = await choose(api, tenant, **wanted)
    assert (settings["stored_responses_allowed"], settings["stored_response_days"]) == (True, 3)


@pytest.mark.parametrize("days", [0, 91, "x", 1.5])
async def test_days_have_bounds(api: Api, tenant: TestTenant, days: Any) -> None:
    body = {"stored_response_days": days}
    answer = await api.call(tenant.key, "PATCH", "/v1/settings", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stored_response_days"


async def test_a_plan_without_it_stores_no_more(
    api: Api, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what is under way; what is stored can be read and gone on from until its time is over."""
    await api.put_plan("fading", {}, stored_responses=True)
    tenant = await api.new_tenant("fading", plan="fading")
    await choose(api, tenant, stored_response_days=7)
    before = (await call(api, tenant.key)).json()["id"]
    api.engine.gate = asyncio.Event()
    asking = asyncio.create_task(call(api, tenant.key))
    await until(lambda: len(api.engine.requests) == 2)
    await api.put_plan("fading", {}, stored_responses=False)
    api.engine.gate.set()
    answer = (await asking).json()
    assert (answer["store"], answer["store_error"]["code"]) == (False, "stored_responses_off")
    assert await status_of(api, tenant.key, answer["id"]) == 404
    later = await call(api, tenant.key, previous_response_id=before, store=True)
    assert (later.status_code, later.json()["store"]) == (200, False)
    assert "plan" in later.headers["x-tenora-warning"]
    assert await status_of(api, tenant.key, before) == 200
    assert rows_of(owner, tenant) == 1


async def test_what_was_under_way_is_not_stored_behind_the_deletion(
    api: Api, tenant: TestTenant, owner: Connection
) -> None:
    await call(api, tenant.key)
    api.engine.gate = asyncio.Event()
    asking = asyncio.create_task(call(api, tenant.key))
    await until(lambda: len(api.engine.requests) == 2)
    await choose(api, tenant, stored_response_days=None, delete_stored_responses=True)
    api.engine.gate.set()
    assert (await asking).json()["store_error"]["code"] == "stored_responses_off"
    assert rows_of(owner, tenant) == 0
    path = f"/admin/v1/audit_logs?tenant_id={tenant.id}&action=settings.update"
    entry = (await api.admin("GET", path)).json()["data"][0]
    assert entry["details"]["deleted_responses"] == 1
    assert entry["after"]["stored_response_days"] is None


async def test_anothers_do_not_exist(api: Api, tenant: TestTenant) -> None:
    stranger = await storing(api)
    made = (await call(api, tenant.key)).json()["id"]
    for method in ("GET", "DELETE"):
        assert await status_of(api, stranger.key, made, method) == 404
    assert await status_of(api, stranger.key, f"{made}/input_items") == 404
    answer = await call(api, stranger.key, previous_response_id=made)
    assert answer.json()["error"]["code"] == "previous_response_not_found"
    assert await status_of(api, tenant.key, made) == 200


async def test_a_key_sees_its_own_unless_it_may_make_keys(api: Api, tenant: TestTenant) -> None:
    """As kept contents are read: by keys of the scope `keys`."""
    keys = []
    for scopes in (["inference"], ["inference", "usage"], ["usage"]):
        new = await api.call(
            tenant.key, "POST", "/v1/api_keys", json={"name": "k", "scopes": scopes}
        )
        keys.append(new.json()["key"])
    mine, others, reads = keys
    made = (await call(api, mine)).json()["id"]
    assert await status_of(api, mine, made) == 200
    for path in (made, f"{made}/input_items"):
        assert await status_of(api, others, path) == 404
        assert await status_of(api, reads, path) == 403
        assert await status_of(api, tenant.key, path) == 200
    assert await status_of(api, others, made, "DELETE") == 404
    answer = await call(api, others, previous_response_id=made)
    assert answer.json()["error"]["code"] == "previous_response_not_found"
    theirs = (await call(api, tenant.key, previous_response_id=made)).json()["id"]
    answer = await call(api, mine, previous_response_id=theirs)
    assert theirs in answer.json()["error"]["message"]
    assert await status_of(api, tenant.key, made, "DELETE") == 200


async def test_it_is_sealed(
    api: Api, tenant: TestTenant, owner: Connection, database_url: str
) -> None:
    api.engine.answer = lambda request, index: TEXT
    made, second = [(await call(api, tenant.key, input=TEXT)).json()["id"] for _ in range(2)]
    query = "select input, response, bytes from stored_responses where id = %s"
    row = owner.execute(query, [made]).fetchone()
    assert row is not None
    for sealed in row[:2]:
        assert TEXT.encode() not in bytes(sealed)
    assert int(str(row[2])) > 2 * len(TEXT)
    urls = database_urls(database_url, api.state.secret, DEFAULT)
    with psycopg.connect(plain_url(urls.admin.render_as_string(hide_password=False))) as operator:
        for column in ("input", "response", "*"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                operator.execute(f"select {column} from stored_responses".encode())
            operator.rollback()
    owner.execute(
        "update stored_responses set response = %s, input = %s where id = %s",
        [row[0], row[1], second],
    )
    answer = await api.call(tenant.key, "GET", f"/v1/responses/{second}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "contents_unreadable")
    answer = await call(api, tenant.key, previous_response_id=second)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "contents_unreadable")


async def test_no_more_are_stored_than_a_tenant_may_have(
    api: Api, other: Api, tenant: TestTenant, owner: Connection
) -> None:
    """At once at two processes; who is not stored is told so, and nothing else is different."""
    answers = await asyncio.gather(
        *(call(each, tenant.key, stream=False) for each in (api, other) * ((MOST + 20) // 2))
    )
    told = [answer.json() for answer in answers]
    assert {each["status"] for each in told} == {"completed"}
    assert sum(each["store"] for each in told) == MOST == rows_of(owner, tenant)
    codes = {each["store_error"]["code"] for each in told if not each["store"]}
    assert codes == {"stored_responses_full"}
    one = next(each["id"] for each in told if each["store"])
    age(owner, one, 8)  # over, if not yet swept
    assert (await call(api, tenant.key)).json()["store"] is True
    assert (await call(api, tenant.key)).json()["store"] is False
    answer = await call(api, tenant.key, stream=True)
    last = json.loads(answer.text.rstrip().rpartition("data: ")[2])["response"]
    assert (last["status"], last["store"]) == ("completed", False)
    assert last["store_error"]["code"] == "stored_responses_full"


async def test_their_size_has_a_bound_too(
    api: Api, tenant: TestTenant, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.engine, "model", replace(api.engine.model, context_tokens=100_000))
    told = [(await call(api, tenant.key, input="x" * 60_000)).json() for _ in range(4)]
    assert [each["store"] for each in told] == [True, True, True, False]
    assert told[-1]["store_error"]["code"] == "stored_responses_full"
    monkeypatch.setattr(stored_responses, "BYTES_MAX", 500)
    large = (await call(api, tenant.key)).json()
    assert large["store_error"]["code"] == "stored_response_too_large"
    assert await status_of(api, tenant.key, large["id"]) == 404
    assert rows_of(owner, tenant) == 3


async def test_a_database_that_is_away_for_a_moment_stores_it(
    api: Api, tenant: TestTenant, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was stored, and only its answer got lost."""
    store = stored_repository.store
    failed: list[None] = []

    async def failing(*given: Any) -> Any:
        outcome = await store(*given)
        if not failed:
            failed.append(await given[0].commit())
            raise OperationalError("lost", None, Exception("connection lost"))
        return outcome

    monkeypatch.setattr(stored_repository, "store", failing)
    made = (await call(api, tenant.key)).json()
    assert (failed, made["store"], rows_of(owner, tenant)) == ([None], True, 1)


async def test_waiting_for_a_conversation_is_bounded(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In number and in time, and told with when to come again; nothing of it stays."""
    made = (await call(api, tenant.key)).json()
    more = {"previous_response_id": made["id"]}
    begun, going_on = asyncio.Event(), asyncio.Event()
    chain = stored_repository.chain

    async def slow(*args: Any) -> Any:
        begun.set()
        await going_on.wait()
        return await chain(*args)

    monkeypatch.setattr(stored_repository, "chain", slow)
    monkeypatch.setattr(api.state.responses._reading, "_waiting_max", 1)
    reading = asyncio.create_task(call(api, tenant.key, **more))
    await begun.wait()
    refused = await call(api, tenant.key, **more)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_conversations")
    assert refused.headers["retry-after"] == "1"
    going_on.set()
    assert (await reading).status_code == 200
    going_on.clear()
    monkeypatch.setattr(stored_responses, "READ_S", 0.01)
    late = await call(api, tenant.key, **more)
    error = late.json()["error"]
    assert (late.status_code, error["code"]) == (503, "previous_response_unavailable")
    assert (error["param"], late.headers["retry-after"]) == ("previous_response_id", "5")
    monkeypatch.undo()
    assert (await call(api, tenant.key, **more)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_database_that_stays_away_is_told(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async def failing(*given: Any) -> None:
        raise OperationalError("lost", None, Exception("connection lost"))

    monkeypatch.setattr(stored_repository, "store", failing)
    monkeypatch.setattr(stored_responses, "STORE_S", 0.05)
    answer = await call(api, tenant.key, stream=stream)
    assert answer.status_code == 200
    last = json.loads(answer.text.rstrip().rpartition("data: ")[2])["response"] if stream else None
    made = last or answer.json()
    assert (made["status"], made["store"]) == ("completed", False)
    assert made["store_error"]["code"] == "stored_responses_unavailable"
    name = 'tenora_responses_not_stored_total{reason="unavailable"}'
    assert name in api.state.metrics.text().decode()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"store": "yes, please"}, "store"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"previous_response_id": "x" * 129}, "previous_response_id"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_response_id": "resp_\x00"}, "previous_response_id"),
    ],
)
async def test_refusals(api: Api, tenant: TestTenant, body: dict[str, Any], param: str) -> None:
    answer = await call(api, tenant.key, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_wrong_items_are_named_by_their_place_in_the_body(
    api: Api, tenant: TestTenant
) -> None:
    first = (await call(api, tenant.key)).json()["id"]
    answer = await call(api, tenant.key, previous_response_id=first, input=[{"role": "user"}])
    assert answer.json()["error"]["param"] == "input[0].content"


async def test_a_plan_without_it_lets_the_days_be_shortened(api: Api) -> None:
    """What is stored is the tenant's: only more of it is the plan's matter."""
    await api.put_plan("waning", {}, stored_responses=True)
    tenant = await api.new_tenant("waning", plan="waning")
    await choose(api, tenant, stored_response_days=7)
    await api.put_plan("waning", {}, stored_responses=False)
    for days in (7, 3, 1):
        assert (await choose(api, tenant, stored_response_days=days))[
            "stored_response_days"
        ] == days
    for first in ({}, {"stored_response_days": None}):
        await choose(api, tenant, **first)
        wanted = {"stored_response_days": 2}
        answer = await api.call(tenant.key, "PATCH", "/v1/settings", json=wanted)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "stored_responses_not_in_plan"


async def test_changes_at_once_know_of_each_other(api: Api, other: Api, plans: None) -> None:
    """Each answer and audit row shows what the changes before it have made, the first row's too."""
    tenant = await storing(api, days=None)
    changes: list[dict[str, Any]] = [
        {"stored_response_days": 5},
        {"keep_contents_days": 6},
        {"draft_from_answers": True},
    ] * 2
    answers = await asyncio.gather(
        *(choose(each, tenant, **change) for each in (api, other) for change in changes)
    )
    path = f"/admin/v1/audit_logs?tenant_id={tenant.id}&action=settings.update&limit=100"
    entries = (await api.admin("GET", path)).json()["data"][::-1]
    names = ("stored_response_days", "keep_contents_days", "draft_from_answers")
    states = [dict.fromkeys(names) | {"draft_from_answers": False}]
    for entry in entries:
        assert entry["before"] == states[-1]
        states.append(entry["after"])
    assert len(states) == 1 + len(answers)
    assert states[-1] == dict(zip(names, (5, 6, True), strict=True))
    for answer in answers:
        assert {name: answer[name] for name in names} in states
