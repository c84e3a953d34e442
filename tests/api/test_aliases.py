"""Aliases of adapters and states of their versions: what is pointed where, its history, the way
back, and what every process makes of it at once."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import httpx
import pytest

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from platform_fixtures import MakeApi
from served_api import until
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.rollouts.keeper import RolloutKeeper

PATH = "/v1/adapters/bot/aliases"
CHAT = [{"role": "user", "content": "x"}]


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    """With three versions of `bot`."""
    made = await api.new_tenant("aliases", plan="premium")
    for seed in (1, 2, 3):
        files = adapter_form(api.engine.model, "bot", seed=seed)
        assert (await api.call(made.key, "POST", "/v1/adapters", files=files)).status_code == 202
    async with asyncio.timeout(30):
        for version in (1, 2, 3):
            path = f"/v1/adapters/bot/versions/{version}"
            while (await api.call(made.key, "GET", path)).json()["state"] != "active":
                await IntakeWorker(api.state).run_once()
    return made


async def put(api: Api, tenant: TestTenant, alias: str, body: dict[str, Any]) -> Any:
    return await api.call(tenant.key, "PUT", f"{PATH}/{alias}", json=body)


def targets(**weights: int) -> dict[str, Any]:
    return {"targets": [{"version": int(v[1:]), "weight": w} for v, w in weights.items()]}


async def ask(api: Api, tenant: TestTenant, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "messages": CHAT, **more}
    return await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)


async def version_of(api: Api, tenant: TestTenant, model: str, **more: Any) -> str:
    answer = await ask(api, tenant, model, **more)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-tenora-adapter"].partition("@")[2]


async def test_history_and_the_way_back(api: Api, tenant: TestTenant) -> None:
    nothing = await api.call(tenant.key, "POST", f"{PATH}/beta/rollback")
    assert nothing.status_code == 404
    await put(api, tenant, "prod", targets(v1=100) | {"reason": "first"})
    nothing = await api.call(tenant.key, "POST", f"{PATH}/prod/rollback")
    assert nothing.json()["error"]["code"] == "nothing_to_roll_back"
    assert await version_of(api, tenant, "bot") == "1"
    await put(api, tenant, "prod", targets(v2=60, v3=40))
    back = await api.call(tenant.key, "POST", f"{PATH}/prod/rollback", json={"reason": "it rhymes"})
    assert back.json()["targets"] == targets(v1=100)["targets"]
    assert await version_of(api, tenant, "bot") == "1"
    again = await api.call(tenant.key, "POST", f"{PATH}/prod/rollback")
    assert again.json()["targets"] == targets(v2=60, v3=40)["targets"]
    assert (await api.call(tenant.key, "DELETE", f"{PATH}/prod")).json()["deleted"]
    assert (await ask(api, tenant, "bot@prod")).status_code == 404
    assert await version_of(api, tenant, "bot") == "3"
    restored = await api.call(tenant.key, "POST", f"{PATH}/prod/rollback")
    assert restored.json()["targets"] == targets(v2=60, v3=40)["targets"]
    first = (await api.call(tenant.key, "GET", f"{PATH}/prod/history?limit=4")).json()
    assert first["has_more"]
    path = f"{PATH}/prod/history?after={first['last_id']}"
    rest = (await api.call(tenant.key, "GET", path)).json()
    changes = first["data"] + rest["data"]
    assert [change["action"] for change in changes] == [
        "rollback", "delete", "rollback", "rollback", "put", "put",
    ]  # fmt: skip
    assert changes[-1]["before"] is None
    assert changes[-1]["reason"] == "first"
    assert changes[3]["reason"] == "it rhymes"
    assert {change["actor"] for change in changes} == {f"api_key:{tenant.key_id}"}
    for newer, older in itertools.pairwise(changes):
        assert newer["before"] == older["after"]
    audit = (await api.admin("GET", f"/admin/v1/audit_logs?tenant={tenant.id}&limit=100")).json()
    actions = [entry["action"] for entry in audit["data"]]
    assert actions.count("adapter_alias.rollback") == 3
    assert "adapter_alias.delete" in actions


async def test_the_way_back_without_an_alias(api: Api, tenant: TestTenant) -> None:
    """A name without aliases has run on its newest active version; the one before it is the way
    back, and said again it takes itself back."""
    assert await version_of(api, tenant, "bot") == "3"
    for expected in (2, 3, 2):
        back = await api.call(tenant.key, "POST", f"{PATH}/prod/rollback")
        assert back.json()["targets"] == [{"version": expected, "weight": 100}]
        assert await version_of(api, tenant, "bot") == str(expected)
    only = adapter_form(api.engine.model, "single", seed=9)
    await api.call(tenant.key, "POST", "/v1/adapters", files=only)
    back = await api.call(tenant.key, "POST", "/v1/adapters/single/aliases/prod/rollback")
    assert back.status_code == 409
    assert back.json()["error"]["code"] == "nothing_to_roll_back"


async def test_the_way_back_needs_a_version_that_serves(api: Api, tenant: TestTenant) -> None:
    await put(api, tenant, "prod", targets(v1=100))
    await put(api, tenant, "prod", targets(v2=100))
    await api.call(tenant.key, "DELETE", "/v1/adapters/bot/versions/1")
    back = await api.call(tenant.key, "POST", f"{PATH}/prod/rollback")
    assert back.status_code == 409
    assert back.json()["error"]["code"] == "version_not_serving"
    assert await version_of(api, tenant, "bot") == "2"


async def test_what_is_not_said_stays(api: Api, tenant: TestTenant) -> None:
    assert (await put(api, tenant, "new", {})).json()["error"]["param"] == "targets"
    await put(api, tenant, "beta", targets(v1=100))
    shadowed = await put(api, tenant, "beta", {"shadow": {"version": 3, "percent": 10}})
    assert shadowed.json()["targets"] == targets(v1=100)["targets"]
    assert shadowed.json()["shadow"] == {"version": 3, "percent": 10}
    moved = await put(api, tenant, "beta", targets(v2=100))
    assert moved.json()["shadow"] == {"version": 3, "percent": 10}
    assert (await put(api, tenant, "beta", {"shadow": None})).json()["shadow"] is None
    bad = await put(api, tenant, "beta", {"shadow": {"version": 9, "percent": 10}})
    assert bad.json()["error"]["param"] == "shadow.version"
    listed = (await api.call(tenant.key, "GET", PATH)).json()
    assert [alias["alias"] for alias in listed["data"]] == ["beta"]
    # Shadow traffic is no move of the targets: the way back passes over it.
    back = await api.call(tenant.key, "POST", f"{PATH}/beta/rollback")
    assert back.json()["targets"] == targets(v1=100)["targets"]


async def test_callers_stay_while_a_version_grows(api: Api, tenant: TestTenant) -> None:
    users = [f"user {number}" for number in range(60)]
    held: set[str] = set()
    for percent in (5, 25, 60):
        await put(api, tenant, "canary", targets(v1=100 - percent, v2=percent))
        found = {
            user for user in users if await version_of(api, tenant, "bot@canary", user=user) == "2"
        }
        assert held <= found
        held = found
    assert 17 <= len(held) <= 55  # 36 expected, deviation 4
    by_key = [
        await version_of(api, tenant, "bot@canary", prompt_cache_key="same") for _ in range(5)
    ]
    assert len(set(by_key)) == 1
    anybody = {await version_of(api, tenant, "bot@canary") for _ in range(25)}
    assert anybody == {"1", "2"}


async def test_a_deprecated_version_serves_and_says_so(api: Api, tenant: TestTenant) -> None:
    path = "/v1/adapters/bot/versions/3"
    assert "deprecation" not in (await ask(api, tenant, "bot@3")).headers
    before = int(time.time())
    made = await api.call(tenant.key, "PATCH", path, json={"state": "deprecated"})
    assert made.json()["state"] == "deprecated"
    answer = await ask(api, tenant, "bot@3")
    assert answer.status_code == 200
    assert before <= int(answer.headers["deprecation"].removeprefix("@")) <= time.time()
    assert "bot@3 is deprecated" in answer.headers["x-tenora-warning"]
    stream = await ask(api, tenant, "bot@3", stream=True)
    assert "bot@3 is deprecated" in stream.headers["x-tenora-warning"]
    assert await version_of(api, tenant, "bot") == "2"  # the newest active one
    back = await api.call(tenant.key, "PATCH", path, json={"state": "active"})
    assert back.json()["deprecated_at"] is None
    assert "x-tenora-warning" not in (await ask(api, tenant, "bot@3")).headers
    for wrong in ({"state": "rejected"}, {"state": None}, {}):
        assert (await api.call(tenant.key, "PATCH", path, json=wrong)).status_code == 400


async def test_what_is_revoked_stays_so(api: Api, tenant: TestTenant) -> None:
    path = "/v1/adapters/bot/versions/2"
    body = {"state": "revoked", "reason": "leaks names"}
    revoked = await api.call(tenant.key, "PATCH", path, json=body)
    assert revoked.json()["state"] == "revoked"
    assert (await api.call(tenant.key, "PATCH", path, json=body)).status_code == 200
    back = await api.call(tenant.key, "PATCH", path, json={"state": "active"})
    assert back.json()["error"]["code"] == "version_not_serving"
    assert revoked.json()["digest"] in [digest for _, digest in api.engine.forgotten]
    audit = (await api.admin("GET", f"/admin/v1/audit_logs?tenant={tenant.id}&limit=5")).json()
    (entry,) = [each for each in audit["data"] if each["action"] == "adapter_version.revoke"]
    assert "leaks names" in str(entry)


async def test_revoked_at_once_in_another_process(
    api: Api, tenant: TestTenant, make_api: MakeApi
) -> None:
    """What runs on it there finishes; what comes after is 404, by number and by alias."""
    await put(api, tenant, "prod", targets(v1=50, v2=50))
    async with make_api() as second:
        for model in ("bot@2", "bot"):
            assert (await ask(second, tenant, model)).status_code == 200  # it is in the cache now
        second.engine.gate = asyncio.Event()
        running = asyncio.create_task(ask(second, tenant, "bot@2"))
        await until(lambda: len(second.engine.requests) == 3)
        path = "/v1/adapters/bot/versions/2"
        await api.call(tenant.key, "PATCH", path, json={"state": "revoked"})
        refused = await ask(second, tenant, "bot@2")
        assert refused.json()["error"]["code"] == "model_not_found"
        second.engine.gate.set()
        assert (await running).status_code == 200
        assert {await version_of(second, tenant, "bot", user=f"{n}") for n in range(20)} == {"1"}


async def test_what_runs_finishes_where_it_began(api: Api, tenant: TestTenant) -> None:
    await put(api, tenant, "prod", targets(v1=100))
    asked = len(api.engine.requests) + 1
    api.engine.gate = asyncio.Event()
    running = asyncio.create_task(ask(api, tenant, "bot"))
    await until(lambda: len(api.engine.requests) == asked)
    await put(api, tenant, "prod", targets(v2=100))
    api.engine.gate.set()
    answer = await running
    api.engine.gate = None
    assert (answer.status_code, answer.headers["x-tenora-adapter"]) == (200, "bot@1")
    assert await version_of(api, tenant, "bot") == "2"


async def test_who_changes_it_may_die_before_saying_so(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(api, tenant, "prod", targets(v1=100))
    assert await version_of(api, tenant, "bot") == "1"

    async def dead(_: str) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(api.state.resolver, "invalidate", dead)
        await put(api, tenant, "prod", targets(v2=100))
    await RolloutKeeper(api.state).run_once()
    assert await version_of(api, tenant, "bot") == "2"


async def test_another_tenants_aliases_are_not_there(api: Api, tenant: TestTenant) -> None:
    await put(api, tenant, "prod", targets(v1=100))
    other = await api.new_tenant("stranger", plan="premium")
    for method, path in (
        ("GET", PATH),
        ("GET", f"{PATH}/prod/history"),
        ("POST", f"{PATH}/prod/rollback"),
        ("DELETE", f"{PATH}/prod"),
    ):
        assert (await api.call(other.key, method, path)).status_code == 404
    patched = await api.call(
        other.key, "PATCH", "/v1/adapters/bot/versions/1", json={"state": "revoked"}
    )
    assert patched.status_code == 404
