"""Shadow traffic: a copy of the requests of an alias on another version, after the answer, billed
by its own kind, compared, and never in the way of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from served_api import reset
from tenora_engine.events import SequenceEvent
from tenora_engine.request import GenerationRequest
from tenora_platform.inference.shadowing import KIND
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.rollouts import shadows
from tenora_platform.rollouts.shadow_tasks import OF_ONE_TENANT

ALIAS = "/v1/adapters/bot/aliases/prod"
CHAT = [{"role": "user", "content": "x"}]


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    """`bot@prod` is version 1, and every request of it runs on version 2 as well."""
    vars(api.engine).pop("_sequence", None)
    reset(api.engine)
    made = await api.new_tenant("shadows", plan="premium")
    for seed in (1, 2):
        files = adapter_form(api.engine.model, "bot", seed=seed)
        await api.call(made.key, "POST", "/v1/adapters", files=files)
    async with asyncio.timeout(30):
        for version in (1, 2):
            path = f"/v1/adapters/bot/versions/{version}"
            while (await api.call(made.key, "GET", path)).json()["state"] != "active":
                await IntakeWorker(api.state).run_once()
    body = {
        "targets": [{"version": 1, "weight": 100}],
        "shadow": {"version": 2, "percent": 100},
    }
    assert (await api.call(made.key, "PUT", ALIAS, json=body)).status_code == 200
    return made


async def ask(api: Api, tenant: TestTenant, **more: Any) -> httpx.Response:
    body = {"model": "bot", "messages": CHAT, **more}
    return await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)


async def report(api: Api, tenant: TestTenant) -> Any:
    return (await api.call(tenant.key, "GET", f"{ALIAS}/shadow")).json()


async def compared(api: Api, tenant: TestTenant, count: int) -> Any:
    """The report, once it has so many."""
    async with asyncio.timeout(20):
        while len((found := await report(api, tenant))["data"]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


def shadow_requests(api: Api) -> list[GenerationRequest]:
    return [each for each in api.engine.requests if each.request_id.startswith(f"{KIND}_")]


@pytest.mark.parametrize("stream", [False, True])
async def test_both_answers_are_compared(api: Api, tenant: TestTenant, stream: bool) -> None:
    answer = await ask(api, tenant, temperature=0, stream=stream)
    assert answer.headers["x-tenora-adapter"] == "bot@1"
    found = await compared(api, tenant, 1)
    (entry,) = found["data"]
    assert (entry["equal"], entry["greedy"], entry["error"]) == (False, True, None)
    assert (entry["answer"]["version"], entry["shadow"]["version"]) == (1, 2)
    assert entry["answer"]["output_tokens"] == entry["shadow"]["output_tokens"] > 0
    assert entry["answer"]["digest"] != entry["shadow"]["digest"]
    assert entry["answer"]["choices"] is entry["shadow"]["choices"] is None
    assert entry["shadow"]["total_ms"] >= entry["shadow"]["first_token_ms"] >= 0
    (copy,) = shadow_requests(api)
    real = api.engine.requests[0]
    assert copy.prompt_token_ids == real.prompt_token_ids
    assert copy.sampling == real.sampling
    assert copy.tenant.tier == "flex"
    assert copy.adapter is not None
    assert real.adapter is not None
    assert copy.adapter.digest != real.adapter.digest
    assert found["shadow"] == {"version": 2, "percent": 100}


async def test_equal_answers_are_equal(api: Api, tenant: TestTenant) -> None:
    api.engine.answer = lambda request, index: f"choice {index}"
    for _ in range(3):
        await ask(api, tenant, n=2)
    found = await compared(api, tenant, 3)
    assert [entry["equal"] for entry in found["data"]] == [True] * 3
    (summary,) = found["summary"]
    assert (summary["version"], summary["compared"], summary["equal"]) == (2, 3, 3)
    assert summary["failed"] == summary["greedy"] == 0
    assert summary["answer"]["total_ms"] > 0


async def test_texts_where_the_tenant_keeps_them(api: Api, tenant: TestTenant) -> None:
    await api.call(tenant.key, "PATCH", "/v1/settings", json={"keep_contents_days": 1})
    sent = (await ask(api, tenant)).json()["choices"][0]["message"]["content"]
    found = await compared(api, tenant, 1)
    await api.state.contents.finish()
    (entry,) = (await report(api, tenant))["data"]
    assert entry["answer"]["choices"] == [sent]
    assert entry["shadow"]["choices"] != [sent]
    assert entry["shadow"]["request_id"] == found["data"][0]["id"]
    header = {"x-tenora-keep-contents": "false"}
    body = {"model": "bot", "messages": CHAT}
    await api.call(tenant.key, "POST", "/v1/chat/completions", json=body, headers=header)
    await compared(api, tenant, 2)
    await api.state.contents.finish()
    newest = (await report(api, tenant))["data"][0]
    assert newest["answer"]["choices"] is newest["shadow"]["choices"] is None


async def test_it_is_billed_by_its_own_kind(api: Api, tenant: TestTenant) -> None:
    sent = (await ask(api, tenant)).json()["usage"]
    found = await compared(api, tenant, 1)
    query = "bucket=1mo&group_by=kind"
    async with asyncio.timeout(20):
        while True:
            page = await api.call(tenant.key, "GET", f"/v1/usage?{query},adapter_version,tier")
            results = page.json()["data"][0]["results"]
            if len(results) == 2:
                break
            await asyncio.sleep(0.05)
    of = {result["kind"]: result for result in results}
    assert of.keys() == {"chatcmpl", "shadow"}
    assert (of["shadow"]["adapter_version"], of["shadow"]["tier"]) == (2, "flex")
    assert of["shadow"]["prompt_tokens"] == sent["prompt_tokens"]
    costs = await api.call(tenant.key, "GET", f"/v1/costs?{query}")
    assert {result["kind"] for result in costs.json()["data"][0]["results"]} >= of.keys()
    receipt = await api.call(tenant.key, "GET", f"/v1/requests/{found['data'][0]['id']}")
    assert receipt.status_code == 200, receipt.text


async def test_it_never_fails_the_real_one(api: Api, tenant: TestTenant) -> None:
    """Neither by failing, nor by the limits: the plan has room for one request at a time."""
    sound = type(api.engine)._sequence

    async def sequence(request: GenerationRequest, index: int) -> AsyncIterator[SequenceEvent]:
        if request.request_id.startswith(KIND):
            raise RuntimeError("the shadow fails")
        async for event in sound(api.engine, request, index):
            yield event

    await api.put_plan("one", {"parallel_requests": 1, "requests_per_min": 5}, sla_class="default")
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"plan": "one"})
    api.engine._sequence = sequence  # type: ignore[method-assign]
    for _ in range(5):
        assert (await ask(api, tenant)).status_code == 200
    found = await compared(api, tenant, 5)
    vars(api.engine).pop("_sequence")
    assert found["data"][0]["shadow"] is None
    assert found["data"][0]["error"] == "internal_error: the shadow fails"
    assert found["summary"][0]["failed"] == 5


async def test_they_are_few_at_a_time_and_wait_for_nobody(api: Api, tenant: TestTenant) -> None:
    gate = asyncio.Event()
    sound = type(api.engine)._sequence

    async def sequence(request: GenerationRequest, index: int) -> AsyncIterator[SequenceEvent]:
        if request.request_id.startswith(KIND):
            await gate.wait()
        async for event in sound(api.engine, request, index):
            yield event

    api.engine._sequence = sequence  # type: ignore[method-assign]
    for _ in range(OF_ONE_TENANT + 5):
        assert (await ask(api, tenant)).status_code == 200
    assert len(shadow_requests(api)) == OF_ONE_TENANT
    gate.set()
    await compared(api, tenant, OF_ONE_TENANT)
    await asyncio.sleep(0.05)
    vars(api.engine).pop("_sequence")
    assert len((await report(api, tenant))["data"]) == OF_ONE_TENANT


async def test_what_was_not_answered_has_no_shadow(api: Api, tenant: TestTenant) -> None:
    assert (await ask(api, tenant, temperature=9)).status_code == 400
    sound = type(api.engine)._sequence

    async def broken(request: GenerationRequest, index: int) -> AsyncIterator[SequenceEvent]:
        async for event in sound(api.engine, request, index):
            yield event
            raise RuntimeError("half of an answer")

    api.engine._sequence = broken  # type: ignore[method-assign]
    assert (await ask(api, tenant)).status_code == 500
    vars(api.engine).pop("_sequence")
    await asyncio.sleep(0.05)
    assert shadow_requests(api) == []
    await api.call(tenant.key, "PUT", ALIAS, json={"shadow": None})
    await ask(api, tenant)
    await asyncio.sleep(0.05)
    assert shadow_requests(api) == []


async def test_what_is_left_of_a_budget_is_for_requests(api: Api, tenant: TestTenant) -> None:
    await api.put_plan("tight", {"budget": "1000", "budget_soft": 0}, sla_class="default")
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"plan": "tight"})
    assert (await ask(api, tenant)).status_code == 200
    await asyncio.sleep(0.1)
    assert shadow_requests(api) == []


async def test_only_the_newest_are_kept(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in range(3):
        await ask(api, tenant)
        kept = await compared(api, tenant, count + 1)
    monkeypatch.setattr(shadows, "KEPT_OF_ALIAS", 2)
    async with api.state.db.admin_session() as session:
        await shadows.sweep(session)
    left = (await report(api, tenant))["data"]
    assert [entry["id"] for entry in left] == [entry["id"] for entry in kept["data"][:2]]


async def test_another_tenant_sees_nothing(api: Api, tenant: TestTenant) -> None:
    await ask(api, tenant)
    await compared(api, tenant, 1)
    other = await api.new_tenant("stranger")
    assert (await api.call(other.key, "GET", f"{ALIAS}/shadow")).status_code == 404
