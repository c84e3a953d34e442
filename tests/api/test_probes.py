"""Probes through the application: what versions are asked, what their report says then, and whose
account it goes on. The engine is a fake one; adapters of which it says so answer as the base."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from fake_engine import default_answer
from tenora_engine.errors import EngineUnavailableError
from tenora_engine.events import AdapterResidency, EngineStats
from tenora_engine.telemetry import Histogram, TelemetryStats
from tenora_platform.probing import repository
from tenora_platform.probing.prompts import BUILT_IN
from tenora_platform.probing.worker import Prober
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.rollouts.outcomes import OfAlias


async def uploaded(api: Api, tenant: TestTenant, name: str, seed: int = 0) -> None:
    files = adapter_form(api.engine.model, name, seed=seed)
    assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202
    while (await api.call(tenant.key, "GET", f"/v1/adapters/{name}")).json()["state"] != "active":
        await IntakeWorker(api.state).run_once()


async def report(api: Api, tenant: TestTenant, name: str, version: int = 1) -> dict[str, Any]:
    answer = await api.call(tenant.key, "GET", f"/v1/adapters/{name}/versions/{version}/report")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def probe_all(api: Api) -> int:
    count, prober = 0, Prober(api.state)
    while await prober.run_once():
        count += 1
    return count


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    api.engine.requests.clear()
    await probe_all(api)
    return await api.new_tenant("probed", plan="premium")


async def test_an_adapter_that_answers_otherwise(api: Api, tenant: TestTenant) -> None:
    await uploaded(api, tenant, "works", seed=1)
    before = await report(api, tenant, "works")
    assert (before["probe"], before["findings"]) == ("off", None)
    assert before["picture"]["modules"] == ["q_proj", "v_proj"]
    assert await probe_all(api) == 1
    found = await report(api, tenant, "works")
    assert found["probe"] == "done"
    assert found["warnings"] == []
    findings = found["findings"]
    assert findings["differs"] is True
    assert [each["prompt"] for each in findings["samples"]] == list(BUILT_IN)
    assert findings["samples"][0]["base_answer"] == "Hello from base."
    assert findings["samples"][0]["answer"].startswith("Hello from ")
    assert {each["tier"] for each in findings["loads"]} == {"device", "host", "shared", "store"}
    version = await api.call(tenant.key, "GET", "/v1/adapters/works/versions/1")
    assert version.json()["validation"]["facts"]["picture"] is not None
    listed = await api.call(tenant.key, "GET", "/v1/adapters/works")
    assert listed.json()["validation"]["facts"]["picture"] is None


async def test_one_that_answers_as_the_base_is_active_with_a_warning(
    api: Api, tenant: TestTenant
) -> None:
    api.engine.answer = lambda request, index: "always the same"
    try:
        await uploaded(api, tenant, "idle", seed=2)
        await probe_all(api)
    finally:
        api.engine.answer = default_answer
    version = (await api.call(tenant.key, "GET", "/v1/adapters/idle/versions/1")).json()
    assert version["state"] == "active"
    [warning] = version["validation"]["warnings"]
    assert warning["code"] == "no_effect_measured"
    assert (await report(api, tenant, "idle"))["warnings"] == [warning]
    events = await api.call(tenant.key, "GET", "/v1/events")
    told = [each for each in events.json()["data"] if each["type"] == "adapter.no_effect_measured"]
    assert [each["data"]["adapter"] for each in told] == ["idle"]


async def test_the_platform_pays_in_the_lowest_class(api: Api, tenant: TestTenant) -> None:
    await uploaded(api, tenant, "free", seed=3)
    api.engine.requests.clear()
    await probe_all(api)
    assert api.engine.requests
    assert {request.tenant.tier for request in api.engine.requests} == {"flex"}
    [payer] = {request.context["tenant_id"] for request in api.engine.requests}
    assert payer != tenant.id
    async with api.state.db.admin_session() as session:
        plan = await session.scalar(text("select plan from tenants where id = :id"), {"id": payer})
    assert plan == "tenora-probes"
    assert all(request.request_id.startswith("probe_") for request in api.engine.requests)


async def test_prompts_of_ones_own(api: Api, tenant: TestTenant) -> None:
    await uploaded(api, tenant, "own", seed=4)
    path = "/v1/adapters/own/probe_prompts"
    assert (await api.call(tenant.key, "GET", path)).json()["source"] == "built_in"
    body = {"prompts": ["What is a granule?"]}
    put = await api.call(tenant.key, "PUT", path, json=body)
    assert put.json() == {
        "object": "adapter.probe_prompts",
        "name": "own",
        "source": "tenant",
        "prompts": ["What is a granule?"],
    }
    await probe_all(api)
    findings = (await report(api, tenant, "own"))["findings"]
    assert (findings["source"], len(findings["samples"])) == ("tenant", 1)
    await api.call(tenant.key, "PUT", path, json={"prompts": []})
    assert await probe_all(api) == 0, "asked a moment ago"
    later = datetime.now(UTC) + timedelta(minutes=11)
    async with api.state.db.admin_session() as session:
        due = await repository.next_due(session, later)
    assert due is not None
    assert due[1] == "own"
    too_many = {"prompts": ["x"] * 17}
    assert (await api.call(tenant.key, "PUT", path, json=too_many)).status_code == 400
    stranger = await api.new_tenant("stranger")
    assert (await api.call(stranger.key, "PUT", path, json=body)).status_code == 404


async def test_an_engine_that_fails_is_asked_again_later(api: Api, tenant: TestTenant) -> None:
    await uploaded(api, tenant, "later", seed=5)
    api.engine.refusal = EngineUnavailableError("it is away")
    assert await probe_all(api) == 1
    api.engine.refusal = None
    found = await report(api, tenant, "later")
    assert (found["probe"], found["probe_error"]) == ("waiting", "it is away")
    version = await api.call(tenant.key, "GET", "/v1/adapters/later/versions/1")
    assert version.json()["state"] == "active"


async def test_a_version_whose_logits_are_no_numbers_is_said_to_be_so(
    api: Api, tenant: TestTenant
) -> None:
    """By the first that finds it: a probe, which is not made again, or a request, which is told by
    name, charged nothing, counted against the version and not to be sent again."""
    for name, seed in (("asked", 21), ("used", 22)):
        await uploaded(api, tenant, name, seed=seed)
    versions = {
        name: (await api.call(tenant.key, "GET", f"/v1/adapters/{name}/versions/1")).json()
        for name in ("asked", "used")
    }
    api.engine.sick = {version["digest"] for version in versions.values()}
    alias = {"targets": [{"version": 1, "weight": 100}]}
    await api.call(tenant.key, "PUT", "/v1/adapters/used/aliases/prod", json=alias)
    api.engine.keeps_usage = True  # else the platform takes it from the engine meanwhile
    before = len(api.engine.outbox)
    for stream in (False, True, False):
        body = {"model": "used@prod", "prompt": "hello", "stream": stream}
        said = await api.call(tenant.key, "POST", "/v1/completions", json=body)
        assert said.status_code == 500
        assert said.headers["x-should-retry"] == "false"
        assert said.json()["error"]["code"] == "adapter_produces_nan"
    charged = api.engine.outbox[before:]
    assert len(charged) == 3
    assert all(record.prompt_tokens == record.output_tokens == 0 for record in charged)
    await api.state.outcomes.flush()
    of = OfAlias(tenant.id, versions["used"]["adapter_id"], "prod")
    now_s = time.time()
    tally = (await api.state.outcomes.between(of, now_s - 60, now_s))[1]
    assert (tally.requests, tally.errors) == (3, 3)
    [warning] = (await report(api, tenant, "used"))["warnings"]
    assert warning["code"] == "adapter_produces_nan"
    assert (await report(api, tenant, "asked"))["warnings"] == []
    assert await probe_all(api) == 2
    for name in ("asked", "used"):
        found = await report(api, tenant, name)
        assert [each["code"] for each in found["warnings"]] == ["adapter_produces_nan"]
        assert found["probe"] == "failed"
    other = await api.call(
        tenant.key, "POST", "/v1/completions", json={"model": "fake-base", "prompt": "hello"}
    )
    assert other.status_code == 200


async def test_a_version_that_breaks_the_server_stands_before_nobody(
    api: Api, tenant: TestTenant
) -> None:
    await uploaded(api, tenant, "breaks", seed=8)

    def broken(request: object, index: int) -> str:
        raise ZeroDivisionError

    api.engine.answer = broken
    try:
        assert await probe_all(api) == 1
    finally:
        api.engine.answer = default_answer
    found = await report(api, tenant, "breaks")
    assert (found["probe"], found["probe_error"]) == ("waiting", "ZeroDivisionError in the server")
    await uploaded(api, tenant, "next", seed=9)
    assert await probe_all(api) == 1
    assert (await report(api, tenant, "next"))["probe"] == "done"


async def test_what_a_month_costs(api: Api, tenant: TestTenant) -> None:
    await uploaded(api, tenant, "stored", seed=6)
    found = (await report(api, tenant, "stored"))["storage"]
    bytes_ = (await api.call(tenant.key, "GET", "/v1/adapters/stored")).json()["bytes"]
    assert found["bytes"] == bytes_
    assert found["kb_hours"] == bytes_ * 720 // 1000
    listed = await api.call(tenant.key, "GET", "/v1/prices")
    assert found["price_version"] in listed.text
    assert Decimal(found["amount"]) >= 0


async def test_pages_and_loads_are_the_engines(api: Api, tenant: TestTenant) -> None:
    await uploaded(api, tenant, "loaded", seed=7)
    digest = (await api.call(tenant.key, "GET", "/v1/adapters/loaded")).json()["digest"]
    plain = api.engine.stats
    host = Histogram()
    host.observe(0.002)
    host.observe(0.004)

    async def stats() -> EngineStats:
        there = AdapterResidency(digest, "resident", 4, 7, 0, 0.0)
        telemetry = TelemetryStats(adapter_loads={"host": host})
        return replace(await plain(), adapters=[there], telemetry=telemetry)

    api.engine.stats = stats  # type: ignore[method-assign]
    await probe_all(api)
    api.engine.stats = plain  # type: ignore[method-assign]
    findings = (await report(api, tenant, "loaded"))["findings"]
    assert findings["footprint"] == {"pages": 7, "page_bytes": 1024}
    loads = {each["tier"]: (each["ms"], each["how"], each["loads"]) for each in findings["loads"]}
    assert loads["device"] == (0.0, "measured", 1)
    assert loads["host"] == (3.0, "predicted", 2)
    assert loads["store"] == (None, "predicted", 0)
