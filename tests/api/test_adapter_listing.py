"""What a tenant sees of its adapters: what serves now, traffic and cost as the pages of usage have
them, tiers, search, order; and which uploads may go on."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from tenora_engine.errors import EngineUnavailableError


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("listing", plan="premium")


async def pushed(api: Api, key: str, name: str, seed: int = 1, **config: Any) -> dict[str, Any]:
    """The version, once it has been checked."""
    files = adapter_form(api.engine.model, name, seed=seed, **config)
    made = await api.call(key, "POST", "/v1/adapters", files=files)
    assert made.status_code == 202, made.text
    path = f"/v1/adapters/{name}/versions/{made.json()['version']}"
    async with asyncio.timeout(10):
        while True:
            body: dict[str, Any] = (await api.call(key, "GET", path)).json()
            if body["state"] not in ("quarantined", "validating"):
                return body
            await asyncio.sleep(0.02)


async def one(api: Api, tenant: TestTenant, name: str) -> dict[str, Any]:
    answer = await api.call(tenant.key, "GET", f"/v1/adapters/{name}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def listed(api: Api, key: str, **query: Any) -> dict[str, Any]:
    answer = await api.call(key, "GET", "/v1/adapters", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def weights(adapter: dict[str, Any]) -> dict[int, int]:
    return {each["version"]: each["weight"] for each in adapter["serving"]["versions"]}


async def test_a_rejected_upload_changes_nothing_of_what_serves(
    api: Api, tenant: TestTenant
) -> None:
    await pushed(api, tenant.key, "support", 1)
    second = await pushed(api, tenant.key, "support", 2)
    bad = adapter_form(api.engine.model, "support", seed=3)
    bad["adapter_config"] = ("adapter_config.json", b'{"peft_type": "LORA"}')
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=bad)
    assert made.status_code == 202, made.text
    async with asyncio.timeout(10):
        while True:
            found = await one(api, tenant, "support")
            if found["state"] == "rejected":
                break
            await asyncio.sleep(0.02)
    newest = (found["version"], found["state"], found["serving"]["alias"])
    assert newest == (3, "rejected", None)
    (serves,) = found["serving"]["versions"]
    assert (serves["version"], serves["weight"], serves["state"]) == (2, 100, "active")
    assert serves["digest"] == second["digest"]
    assert (await listed(api, tenant.key))["data"] == [found]


async def test_serving_is_what_requests_get(api: Api, tenant: TestTenant) -> None:
    """By each way to say it, and after a version has gone; asked of the answers' own header."""
    for seed in (1, 2, 3):
        await pushed(api, tenant.key, "s", seed)

    async def answered() -> set[int]:
        seen = set()
        for user in range(40):
            answer = await api.call(
                tenant.key,
                "POST",
                "/v1/chat/completions",
                json={
                    "model": "s",
                    "user": f"u{user}",
                    "messages": [{"role": "user", "content": "hi"}],
                },
            )
            if answer.status_code == 404:
                return set()
            seen.add(int(answer.headers["x-tenora-adapter"].removeprefix("s@")))
        return seen

    async def alias(**targets: int) -> None:
        body = {"targets": [{"version": int(v[1:]), "weight": w} for v, w in targets.items()]}
        answer = await api.call(tenant.key, "PUT", "/v1/adapters/s/aliases/prod", json=body)
        assert answer.status_code == 200, answer.text

    async def state(version: int, to: str) -> None:
        path = f"/v1/adapters/s/versions/{version}"
        answer = await api.call(tenant.key, "PATCH", path, json={"state": to})
        assert answer.status_code == 200, answer.text

    assert weights(await one(api, tenant, "s")) == {3: 100}
    await state(3, "deprecated")
    assert weights(await one(api, tenant, "s")) == {2: 100}
    assert await answered() == {2}
    await alias(v1=70, v3=30)
    found = await one(api, tenant, "s")
    assert (found["serving"]["alias"], weights(found)) == ("prod", {1: 70, 3: 30})
    assert await answered() == {1, 3}
    await state(1, "revoked")
    assert weights(await one(api, tenant, "s")) == {3: 100}
    assert await answered() == {3}
    await state(3, "revoked")
    assert weights(await one(api, tenant, "s")) == {}
    assert await answered() == set()


async def test_tiers_come_from_the_engine(api: Api, tenant: TestTenant) -> None:
    first = await pushed(api, tenant.key, "tiers", 11)
    second = await pushed(api, tenant.key, "tiers", 12)
    api.engine.where = {first["digest"]: "host", second["digest"]: "device"}
    found = await one(api, tenant, "tiers")
    assert [each["residency"] for each in found["versions"]] == ["device", "host"]
    assert found["serving"]["versions"][0]["residency"] == "device"
    await api.call(tenant.key, "DELETE", "/v1/adapters/tiers/versions/1")
    assert (await one(api, tenant, "tiers"))["versions"][1]["residency"] is None


async def test_an_engine_that_does_not_answer_hides_tiers_alone(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pushed(api, tenant.key, "away", 21)

    async def silent(digests: object) -> dict[str, Any]:
        raise EngineUnavailableError("the engine did not answer within 30 s")

    monkeypatch.setattr(api.engine, "residencies", silent)
    found = await one(api, tenant, "away")
    assert found["serving"]["versions"][0]["residency"] is None
    assert weights(found) == {1: 100}


async def test_nobody_waits_for_an_engine_that_is_busy(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another's long prompt was read, a list took seconds and held a connection."""
    await pushed(api, tenant.key, "waiting", 22)

    async def busy(digests: object) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(api.engine, "residencies", busy)
    found = await one(api, tenant, "waiting")
    assert found["serving"]["versions"][0]["residency"] is None


async def test_traffic_and_cost_are_those_of_the_usage_pages(api: Api, tenant: TestTenant) -> None:
    for name, requests in (("busy", 3), ("quiet", 1), ("idle", 0)):
        await pushed(api, tenant.key, name, len(name))
        for _ in range(requests):
            chat = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
            answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=chat)
            assert answer.status_code == 200, answer.text
    async with asyncio.timeout(15):
        while True:
            found = (await listed(api, tenant.key))["data"]
            if sum(each["traffic"]["requests"] for each in found) == 4:
                break
            await asyncio.sleep(0.05)
    page = await listed(api, tenant.key, sort="-requests")  # once: its order is kept for seconds
    assert [each["name"] for each in page["data"]] == ["busy", "quiet", "idle"]
    start = page["data"][0]["traffic"]["start"]
    query = {"start": start, "bucket": "1mo", "group_by": "adapter"}
    usage = (await api.call(tenant.key, "GET", "/v1/usage", params=query)).json()
    by_name = {
        result["adapter"]: result for bucket in usage["data"] for result in bucket["results"]
    }
    query = {"bucket": "1mo", "group_by": "adapter"}
    costs = (await api.call(tenant.key, "GET", "/v1/costs", params=query)).json()
    amounts = {
        result["adapter"]: {"amount": result["amount"], "currency": result["currency"]}
        for bucket in costs["data"]
        for result in bucket["results"]
    }
    for each in page["data"][:2]:
        said, known = each["traffic"], by_name[each["name"]]
        for field in ("requests", "prompt_tokens", "cached_tokens", "output_tokens"):
            assert said[field] == known[field], (each["name"], field)
        assert said["total_tokens"] == known["prompt_tokens"] + known["output_tokens"]
        assert (len(said["requests_by_hour"]), sum(said["requests_by_hour"])) == (
            24,
            known["requests"],
        )
        assert each["month_costs"] == [amounts[each["name"]]]
        assert Decimal(each["month_costs"][0]["amount"]) > 0
    idle = page["data"][2]
    assert (idle["traffic"]["requests"], idle["month_costs"]) == (0, [])
    by_cost = await listed(api, tenant.key, sort="cost")
    assert [each["name"] for each in by_cost["data"]] == ["idle", "quiet", "busy"]


async def test_without_the_scope_nothing_of_usage_is_told(api: Api, tenant: TestTenant) -> None:
    await pushed(api, tenant.key, "shy", 31)
    body = {"name": "adapters only", "scopes": ["adapters"]}
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    key = (await api.admin("POST", path, json=body)).json()["key"]
    (found,) = (await listed(api, key))["data"]
    assert (found["traffic"], found["month_costs"]) == (None, None)
    for sort in ("requests", "-cost"):
        answer = await api.call(key, "GET", "/v1/adapters", params={"sort": sort})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sort")


async def test_pages_search_and_order(api: Api, tenant: TestTenant) -> None:
    names = ["b-one", "a_two", "C.three", "a-four", "five%"[:4]]
    digests = {}
    for seed, name in enumerate(names, start=41):
        digests[name] = (await pushed(api, tenant.key, name, seed))["digest"]
    for sort, expected in (
        ("created", names),
        ("-created", names[::-1]),
        ("name", sorted(names)),
        ("-name", sorted(names, reverse=True)),
        ("-requests", names[::-1]),  # none has any: by age
        ("requests", names),
    ):
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = await listed(api, tenant.key, sort=sort, limit=2, **after)
            assert page["total"] == len(names)
            seen += [each["name"] for each in page["data"]]
            if not page["has_more"]:
                break
            after = {"after": page["last_id"]}
        assert seen == expected, sort

    async def found(q: str) -> list[str]:
        page = await listed(api, tenant.key, q=q, sort="name")
        assert page["total"] == len(page["data"])
        return [each["name"] for each in page["data"]]

    assert await found("A") == ["a-four", "a_two"]
    assert await found("_") == ["a_two"]  # no wildcard
    assert await found("%") == []
    assert await found("zzz") == []
    assert await found(digests["b-one"][:15]) == ["b-one"]
    assert await found(digests["b-one"].removeprefix("sha256:")[:10].upper()) == ["b-one"]
    for query in ({"sort": "size"}, {"sort": "-requests", "after": "adp_none"}):
        answer = await api.call(tenant.key, "GET", "/v1/adapters", params=query)
        assert answer.status_code == 400, query
        assert answer.json()["error"]["param"] in query


async def test_lists_leave_pictures_out(api: Api, tenant: TestTenant) -> None:
    await pushed(api, tenant.key, "drawn", 51)
    found = await one(api, tenant, "drawn")
    facts = found["versions"][0]["validation"]["facts"]
    assert facts["picture"] is None
    assert facts["tensors_applied"] == 8
    version = (await api.call(tenant.key, "GET", "/v1/adapters/drawn/versions/1")).json()
    assert version["validation"]["facts"].pop("picture")["modules"] == ["q_proj", "v_proj"]
    assert version["validation"]["facts"] | {"picture": None} == facts


async def test_open_uploads_are_listed(api: Api, tenant: TestTenant) -> None:
    async def call(method: str, path: str, **more: Any) -> Any:
        answer = await api.call(tenant.key, method, f"/v1/uploads{path}", **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    first = await call("POST", "", json={"bytes": 8})
    second = await call("POST", "", json={"bytes": 4})
    part = await call("POST", f"/{first['id']}/parts", files={"data": b"abcde"})
    gone = await call("POST", "", json={"bytes": 4})
    await call("POST", f"/{gone['id']}/cancel")
    listed = await call("GET", "")
    assert [each["id"] for each in listed["data"]] == [second["id"], first["id"]]
    assert [(each["received_bytes"], each["parts_received"]) for each in listed["data"]] == [
        (0, 0),
        (5, 1),
    ]
    whole = await call("GET", f"/{first['id']}")
    assert [(each["id"], each["sha256"]) for each in whole["parts"]] == [
        (part["id"], "36bbe50ed96841d10443bcb670d6554f0a34b761be67ec9c4a8ad2c0c44ca42c")
    ]
    other = await api.new_tenant("other uploads")
    assert (await api.call(other.key, "GET", "/v1/uploads")).json()["data"] == []


async def test_preflight_says_what_it_takes(api: Api, tenant: TestTenant) -> None:
    form = adapter_form(api.engine.model, "later", seed=61)
    data = form["weights"][1]
    length = 8 + int.from_bytes(data[:8], "little")
    parts = {
        "name": (None, "later"),
        "adapter_config": form["adapter_config"],
        "header": data[:length],
        "weights_bytes": (None, str(len(data))),
    }
    answer = await api.call(tenant.key, "POST", "/v1/adapters/preflight", files=parts)
    found = answer.json()
    assert found["accepted"], answer.text
    assert found["modules"] == [
        {"module": module, "layers": 2, "rank_min": 4, "rank_max": 4}
        for module in ("q_proj", "v_proj")
    ]
    assert found["footprint"] == {"pages": 8, "page_bytes": 1024}  # the fake's: a rank row a page
    assert {each["tier"]: each["bytes"] for each in found["sizes"]} == {
        "device": 8192,
        "host": 8292,
        "shared": 8292,
        "store": len(data),
    }
    assert [each["tier"] for each in found["loads"]] == ["device", "host", "shared", "store"]
    await pushed(api, tenant.key, "later", 61)
    path = "/v1/adapters/later/versions/1/report"
    report = (await api.call(tenant.key, "GET", path)).json()
    assert found["storage"] == report["storage"]
    assert len(found["storage"]["amount"].partition(".")[2]) == 12  # no 0E-12
    parts["weights_bytes"] = (None, str(api.state.settings.max_upload + 1))
    refused = await api.call(tenant.key, "POST", "/v1/adapters/preflight", files=parts)
    assert (refused.status_code, refused.json()["error"]["param"]) == (413, "weights")
