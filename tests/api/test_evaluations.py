"""Evaluations through the application over a fake engine: scores, turns, limits, what is asked
twice and who pays for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DataError

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from fake_engine import default_answer
from platform_fixtures import MakeApi
from tenora_engine.request import GenerationRequest
from tenora_platform.evaluations import worker
from tenora_platform.evaluations.tables import EvaluationRow
from tenora_platform.evaluations.worker import EvaluationWorker
from tenora_platform.locks import try_lock
from tenora_platform.registry.worker import IntakeWorker

RUN = EvaluationWorker.run


@pytest.fixture(scope="module", autouse=True)
def only_when_told() -> Iterator[None]:
    """The application's own worker of evaluations rests: turns are these tests' to give."""

    async def rest(self: EvaluationWorker) -> None:
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvaluationWorker, "run", rest)
        yield


@pytest.fixture
async def tenant(api: Api) -> AsyncIterator[TestTenant]:
    made = await evaluating(api, "evaluating")
    api.engine.answer = parrot
    yield made
    api.engine.answer = default_answer
    async with api.state.db.admin_session() as session:
        await session.execute(text("update evaluations set state = 'cancelled'"))


async def evaluating(api: Api, name: str) -> TestTenant:
    """A tenant with an adapter."""
    made = await api.new_tenant(name, plan="premium")
    files = adapter_form(api.engine.model, "helper")
    assert (await api.call(made.key, "POST", "/v1/adapters", files=files)).status_code == 202
    while (await api.call(made.key, "GET", "/v1/adapters/helper")).json()["state"] != "active":
        await IntakeWorker(api.state).run_once()
    api.engine.requests.clear()
    return made


def parrot(request: GenerationRequest, index: int) -> str:
    """An adapter agrees to everything, the base to nothing."""
    return "yes" if request.adapter else "no"


async def create(api: Api, tenant: TestTenant, **changes: Any) -> dict[str, Any]:
    body = {
        "adapter": "helper",
        "versions": ["base", 1],
        "scoring": "exact",
        "items": [{"prompt": f"Is {number} a number?", "expected": "yes"} for number in range(3)],
    }
    answer = await api.call(tenant.key, "POST", "/v1/evaluations", json=body | changes)
    assert answer.status_code == 202, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def turns(api: Api) -> None:
    async with asyncio.timeout(30):
        while await EvaluationWorker(api.state).run_once():
            pass


async def get(api: Api, tenant: TestTenant, made: dict[str, Any], more: str = "") -> Any:
    answer = await api.call(tenant.key, "GET", f"/v1/evaluations/{made['id']}{more}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(api: Api) -> list[GenerationRequest]:
    return [each for each in api.engine.requests if each.request_id.startswith("eval_")]


async def test_versions_side_by_side(api: Api, tenant: TestTenant) -> None:
    made = await create(api, tenant)
    assert made["state"] == "queued"
    await turns(api)
    found = await get(api, tenant, made)
    assert found["state"] == "completed"
    base, first = found["results"]
    assert (base["version"], base["passed"], base["score"]) == ("base", 0, 0.0)
    assert (first["version"], first["passed"], first["score"]) == (1, 3, 1.0)
    assert first["low"] == pytest.approx(0.4385, abs=1e-4)
    assert first["high"] == pytest.approx(1.0)
    page = await get(api, tenant, made, "/items?limit=2")
    assert page["has_more"] is True
    answers = page["data"][0]["answers"]
    assert [(each["version"], each["answer"]) for each in answers] == [("base", "no"), (1, "yes")]
    assert {each.tenant.tier for each in asked(api)} == {"flex"}
    assert {each.context["tenant_id"] for each in asked(api)} == {tenant.id}
    assert len(asked(api)) == 6
    [request_id] = answers[1]["request_ids"]
    async with asyncio.timeout(10):
        while True:
            receipt = await api.call(tenant.key, "GET", f"/v1/requests/{request_id}")
            if receipt.status_code == 200:
                break
            await asyncio.sleep(0.05)
    events = (await api.call(tenant.key, "GET", "/v1/events")).json()["data"]
    assert "evaluation.completed" in [each["type"] for each in events]


async def test_one_that_has_ended_can_be_deleted(api: Api, tenant: TestTenant) -> None:
    made, kept = await create(api, tenant), await create(api, tenant)
    path = f"/v1/evaluations/{made['id']}"
    refused = await api.call(tenant.key, "DELETE", path)
    assert (refused.status_code, "Cancel it before you delete it" in refused.text) == (409, True)
    await turns(api)
    other = await api.new_tenant("other")
    assert (await api.call(other.key, "DELETE", path)).status_code == 404
    async with api.state.db.admin_session() as session:  # a worker's turn, not over yet
        assert await try_lock(session, f"evaluation:{made['id']}")
        assert (await api.call(tenant.key, "DELETE", path)).status_code == 409
    gone = await api.call(tenant.key, "DELETE", path)
    assert gone.json() == {"id": made["id"], "object": "evaluation", "deleted": True}
    for more in ("", "/items"):
        assert (await api.call(tenant.key, "GET", f"{path}{more}")).status_code == 404
    assert len((await get(api, tenant, kept, "/items"))["data"]) == 3
    assert await rows_of(api, made["id"]) == 0
    assert await rows_of(api, kept["id"]) == 1 + 3 + 6
    log = (await api.call(tenant.key, "GET", "/v1/audit_logs")).json()["data"]
    assert "evaluation.delete" in [each["action"] for each in log]


async def test_old_ones_go_where_the_operator_says_so(
    make_api: MakeApi, api: Api, tenant: TestTenant
) -> None:
    made, runs = await create(api, tenant), await create(api, tenant)
    await api.call(tenant.key, "POST", f"/v1/evaluations/{made['id']}/cancel")
    in_days = datetime.now(UTC) + timedelta(days=31)
    assert await EvaluationWorker(api.state).sweep(in_days) == 0, "kept for ever"
    async with make_api(evaluation_retention_days=30) as other:
        assert await EvaluationWorker(other.state).sweep() == 0
        assert await EvaluationWorker(other.state).sweep(in_days) >= 1
    assert await rows_of(api, made["id"]) == 0
    assert await rows_of(api, runs["id"]) == 1 + 3


async def rows_of(api: Api, evaluation_id: str) -> int:
    """In all three tables."""
    query = " + ".join(
        f"(select count(*) from {table} where {column} = :id)"
        for table, column in (
            ("evaluations", "id"),
            ("evaluation_items", "evaluation_id"),
            ("evaluation_answers", "evaluation_id"),
        )
    )
    async with api.state.db.admin_session() as session:
        return int(await session.scalar(text(f"select {query}"), {"id": evaluation_id}) or 0)


async def test_a_turn_is_not_for_ever(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TURN", 2)
    long = await create(api, tenant)
    short = await create(api, tenant, versions=[1], items=[{"prompt": "x", "expected": "yes"}])
    await EvaluationWorker(api.state).run_once()
    await EvaluationWorker(api.state).run_once()
    assert (await get(api, tenant, short))["results"][0]["answered"] == 1
    assert (await get(api, tenant, long))["state"] == "running"
    await turns(api)
    assert (await get(api, tenant, long))["state"] == "completed"


async def test_tenants_take_turns_whatever_they_ask(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with eight had eight turns of nine."""
    monkeypatch.setattr(worker, "TURN", 2)
    many = [await create(api, tenant) for _ in range(8)]
    other = await evaluating(api, "other")
    one = await create(api, other)
    for turn in range(6):
        await EvaluationWorker(api.state).run_once()
        assert Counter(each.context["tenant_id"] for each in asked(api)) in (
            {tenant.id: 2 * (turn // 2 + 1), other.id: 2 * ((turn + 1) // 2)},
            {tenant.id: 2},
        )
    assert (await get(api, other, one))["state"] == "running"
    states = [(await get(api, tenant, each))["state"] for each in many]
    assert Counter(states) == {"running": 3, "queued": 5}, "and its own have theirs"


async def test_a_tenant_has_one_turn_at_a_time(api: Api, tenant: TestTenant) -> None:
    """So that its slow requests take no other's place."""
    for _ in range(2):
        await create(api, tenant)
    other = await evaluating(api, "other")
    await create(api, other)
    api.engine.gate = asyncio.Event()
    running = [asyncio.create_task(EvaluationWorker(api.state).run_once()) for _ in range(2)]
    async with asyncio.timeout(10):
        while len(asked(api)) < 2 * worker.AT_ONCE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not await EvaluationWorker(api.state).run_once(), "both tenants have theirs"
    payers = Counter(each.context["tenant_id"] for each in asked(api))
    assert payers == {tenant.id: worker.AT_ONCE, other.id: worker.AT_ONCE}
    api.engine.gate.set()
    assert await asyncio.gather(*running) == [True, True]
    api.engine.gate = None


@pytest.mark.parametrize(("connections", "expected"), [(24, 3), (16, 2), (4, 1)])
async def test_a_worker_serves_several_tenants_at_once(
    api: Api, connections: int, expected: int
) -> None:
    """As many as its connections allow: each turn holds one while it waits for others."""
    settings = api.state.settings.model_copy(update={"database_connections": connections})
    at_once, most = 0, 0

    class Counting(EvaluationWorker):
        async def run_once(self) -> bool:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.Event().wait()
            return True

    running = asyncio.create_task(RUN(Counting(replace(api.state, settings=settings))))
    async with asyncio.timeout(10):
        while most < expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert most == expected


async def test_a_turn_ends_by_time_as_well(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TURN_S", 0.0)
    await create(api, tenant)
    await EvaluationWorker(api.state).run_once()
    assert len(asked(api)) == worker.AT_ONCE


async def test_a_cancelled_one_asks_no_more_in_its_turn(api: Api, tenant: TestTenant) -> None:
    made = await create(api, tenant)
    api.engine.gate = asyncio.Event()
    turn = asyncio.create_task(EvaluationWorker(api.state).run_once())
    async with asyncio.timeout(10):
        while len(asked(api)) < worker.AT_ONCE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    path = f"/v1/evaluations/{made['id']}/cancel"
    assert (await api.call(tenant.key, "POST", path)).status_code == 200
    api.engine.gate.set()
    await turn
    api.engine.gate = None
    assert len(asked(api)) == worker.AT_ONCE


async def test_a_tenants_evaluations_are_created_one_at_a_time(
    api: Api, tenant: TestTenant
) -> None:
    body = {"adapter": "helper", "versions": [1], "scoring": "exact"}
    body |= {"items": [{"prompt": "x", "expected": "y"}]}
    other = await evaluating(api, "other")
    async with api.state.creating.turn(tenant.id):
        call = asyncio.create_task(api.call(tenant.key, "POST", "/v1/evaluations", json=body))
        assert await create(api, other), "another's are created meanwhile"
        assert not call.done()
    assert (await call).status_code == 202


async def test_what_a_crash_cut_off_is_the_platforms(api: Api, tenant: TestTenant) -> None:
    made = await create(api, tenant)
    api.engine.gate = asyncio.Event()
    turn = asyncio.create_task(EvaluationWorker(api.state).run_once())
    async with asyncio.timeout(10):
        while len(asked(api)) < worker.AT_ONCE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    turn.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await turn
    api.engine.gate = None
    cut = len(asked(api))
    await turns(api)
    found = await get(api, tenant, made)
    assert found["state"] == "completed"
    assert [each["answered"] for each in found["results"]] == [3, 3]
    payers = Counter(each.context["tenant_id"] for each in asked(api))
    assert payers.pop(tenant.id) == 6, "each item of each version once"
    [(other, again)] = payers.items()
    assert again == cut == worker.AT_ONCE
    assert all(
        not each.context["adapter_id"]
        for each in asked(api)[cut:]
        if each.context["tenant_id"] == other
    )


async def test_limits_put_it_off(api: Api, tenant: TestTenant) -> None:
    await api.put_plan("slow", {"requests_per_min": 2})
    changed = {"plan": "slow"}
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json=changed)
    made = await create(
        api,
        tenant,
        versions=[1],
        scoring="loglikelihood",
        items=[{"prompt": "ab", "expected": "cde"}],
    )
    await turns(api)
    found = await get(api, tenant, made)
    assert (found["state"], found["results"][0]["answered"]) == ("running", 0)
    assert len(asked(api)) == 2
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"plan": "premium"})
    async with api.state.db.admin_session() as session:
        await session.execute(text("update evaluations set not_before = null"))
    await turns(api)
    found = await get(api, tenant, made)
    assert found["state"] == "completed"
    assert found["results"][0]["score"] == pytest.approx(-1.5)
    assert found["results"][0]["low"] is None, "one item says nothing of the spread"
    assert len(asked(api)) == 3, "no token is asked for twice"
    assert {each.context["tenant_id"] for each in asked(api)} == {tenant.id}
    wanted = api.engine.text.encode("cde", add_special_tokens=False)
    assert [each.sampling.allowed_token_ids for each in asked(api)] == [(one,) for one in wanted]


async def test_a_used_up_budget_ends_it(api: Api, tenant: TestTenant) -> None:
    await api.put_plan("broke", {"budget": "0"})
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"plan": "broke"})
    made = await create(api, tenant)
    await turns(api)
    found = await get(api, tenant, made)
    assert found["state"] == "failed"
    assert "budget" in found["error"]
    assert asked(api) == []


async def test_json_schema_and_choice(api: Api, tenant: TestTenant) -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    api.engine.answer = lambda request, index: '{"a": 1}' if request.adapter else '{"a": "1"}'
    lines = "\n".join(json.dumps({"prompt": name}) for name in "abc")
    made = await create(api, tenant, scoring="json_schema", schema=schema, items=lines)
    await turns(api)
    scores = [each["score"] for each in (await get(api, tenant, made))["results"]]
    assert scores == [0.0, 1.0]
    api.engine.answer = lambda request, index: "I think: Blue, not red."
    items = [{"prompt": "?", "expected": "blue", "choices": ["red", "blue"]}]
    made = await create(api, tenant, scoring="choice", items=items)
    await turns(api)
    assert [each["score"] for each in (await get(api, tenant, made))["results"]] == [1.0, 1.0]


async def test_an_item_that_does_not_fit_is_an_error_of_that_item(
    api: Api, tenant: TestTenant
) -> None:
    items = [{"prompt": "x" * 600, "expected": "yes"}, {"prompt": "x", "expected": "yes"}]
    made = await create(api, tenant, versions=[1], items=items)
    await turns(api)
    found = await get(api, tenant, made)
    [result] = found["results"]
    assert (result["answered"], result["errors"], result["passed"]) == (2, 1, 1)
    page = await get(api, tenant, made, "/items")
    assert "context length" in page["data"][0]["answers"][0]["error"]


async def test_an_item_that_breaks_the_server_is_asked_once(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr(api.state.scorer, "score", broken)
    made = await create(api, tenant, versions=[1])
    await turns(api)
    found = await get(api, tenant, made)
    assert (found["state"], found["results"][0]["errors"]) == ("completed", 3)
    assert len(asked(api)) == 3


async def test_cancel(api: Api, tenant: TestTenant) -> None:
    made = await create(api, tenant)
    path = f"/v1/evaluations/{made['id']}/cancel"
    assert (await api.call(tenant.key, "POST", path)).json()["state"] == "cancelled"
    await turns(api)
    assert asked(api) == []
    assert (await api.call(tenant.key, "POST", path)).status_code == 409


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"versions": [7]}, "versions"),
        ({"versions": [1, 1]}, "versions"),
        ({"items": [{"expected": "x"}]}, "items[0]"),
        ({"items": [{"prompt": "x"}]}, "items[0]"),
        ({"scoring": "choice"}, "items[0]"),
        ({"scoring": "json_schema"}, "items[0]"),
        ({"scoring": "json_schema", "schema": {"type": "nothing"}}, "items[0]"),
        ({"scoring": "json_schema", "schema": {"$ref": "http://127.0.0.1/x"}}, "items[0]"),
        (
            {"scoring": "json_schema", "items": '{"prompt": "x", "schema": {"const": NaN}}'},
            "items[0]",
        ),
        ({"scoring": "json_schema", "schema": {"const": "\0"}}, "items[0]"),
        ({"items": '{"prompt": '}, "items"),
        ({"items": []}, "items"),
    ],
)
async def test_refused(api: Api, tenant: TestTenant, changes: dict[str, Any], param: str) -> None:
    body = {"adapter": "helper", "versions": [1], "scoring": "exact"}
    body |= {"items": [{"prompt": "x", "expected": "y"}]}
    answer = await api.call(tenant.key, "POST", "/v1/evaluations", json=body | changes)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_names_are_looked_up_before_schemas_are_compiled(
    api: Api, tenant: TestTenant
) -> None:
    hostile = {
        "properties": {str(n): {"pattern": f"{n}" + r"(\w{1,200}){1,20}"} for n in range(300)}
    }
    body = {"adapter": "nobody", "versions": [1], "scoring": "json_schema", "schema": hostile}
    body |= {"items": [{"prompt": "x"}]}
    answer = await api.call(tenant.key, "POST", "/v1/evaluations", json=body)
    assert answer.status_code == 404, answer.text


@pytest.mark.parametrize("scoring", ["json_schema", "exact"])
async def test_a_large_schema_is_refused_by_its_size(
    api: Api, tenant: TestTenant, scoring: str
) -> None:
    large = {"description": "x" * 20_000}
    body = {"adapter": "helper", "versions": [1], "scoring": scoring, "schema": large}
    body |= {"items": [{"prompt": "x", "expected": "x"}]}
    answer = await api.call(tenant.key, "POST", "/v1/evaluations", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "schema"


async def test_what_an_answer_holds_is_stored(api: Api, tenant: TestTenant) -> None:
    api.engine.answer = lambda *_: "a\0b"
    made = await create(api, tenant, items=[{"prompt": "x", "expected": "y"}])
    await turns(api)
    assert (await get(api, tenant, made))["state"] == "completed"
    [item] = (await get(api, tenant, made, "/items"))["data"]
    assert {each["answer"] for each in item["answers"]} == {"a\ufffdb"}


async def test_one_that_can_never_run_is_given_up(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the others go on."""
    poisoned = await create(api, tenant)
    good = await create(api, tenant)
    ask_all = EvaluationWorker._ask_all

    async def failing(self: EvaluationWorker, row: EvaluationRow, asks: Any) -> None:
        if row.id == poisoned["id"]:
            raise DataError("INSERT ...", {}, Exception("a NUL"))
        await ask_all(self, row, asks)

    monkeypatch.setattr(EvaluationWorker, "_ask_all", failing)
    await turns(api)
    assert (await get(api, tenant, good))["state"] == "completed"
    assert (await get(api, tenant, poisoned))["state"] == "running"
    for _ in range(worker.ATTEMPTS_MAX):
        async with api.state.db.admin_session() as session:
            await session.execute(text("update evaluations set not_before = null"))
        await turns(api)
    found = await get(api, tenant, poisoned)
    assert found["state"] == "failed"
    assert "failed 5 times" in found["error"]
    events = (await api.call(tenant.key, "GET", "/v1/events")).json()["data"]
    assert "evaluation.failed" in [each["type"] for each in events]


async def test_another_tenants_are_404(api: Api, tenant: TestTenant) -> None:
    made = await create(api, tenant)
    stranger = await api.new_tenant("stranger")
    for method, more in (("GET", ""), ("GET", "/items"), ("POST", "/cancel")):
        path = f"/v1/evaluations/{made['id']}{more}"
        assert (await api.call(stranger.key, method, path)).status_code == 404
    assert (await api.call(stranger.key, "GET", "/v1/evaluations")).json()["data"] == []
