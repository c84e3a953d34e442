"""The operator's view of memory over HTTP: names on pages, shares, reasons, tiers, pins that
outlive the engine, and the last hour in Redis."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from tenora_engine.events import AdapterResidency
from tenora_engine.pages import (
    ArenaAdapter,
    ArenaPages,
    Departure,
    PageOwner,
    PartitionPages,
)
from tenora_platform.auth import tenant_namespace
from tenora_platform.memory import live, pins
from tenora_platform.memory.history import KEPT_S, PageHistory
from tenora_platform.registry.worker import IntakeWorker

PAGES = "/admin/v1/engine/pages"


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("Acme", plan="premium")


@pytest.fixture(scope="module")
async def versions(api: Api, tenant: TestTenant) -> list[dict[str, Any]]:
    """Two active versions, json@1 and support@1."""
    found = []
    for seed, name in enumerate(("json", "support")):
        files = adapter_form(api.engine.model, name, seed=seed)
        made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
        assert made.status_code == 202, made.text
        path = f"/v1/adapters/{name}/versions/1"
        while (version := (await api.call(tenant.key, "GET", path)).json())["state"] != "active":
            await IntakeWorker(api.state).run_once()
        found.append(version)
    return found


@pytest.fixture(autouse=True)
async def _fresh(api: Api) -> AsyncIterator[None]:
    yield
    engine = api.engine
    engine.arena, engine.pins, engine.unpinnable, engine.users = None, [], {}, {}
    async with api.state.db.admin_session() as session:
        for each in await pins.list_pins(session, api.state.secret):
            await pins.remove(session, each.version_id)


def arena(api: Api, tenant: TestTenant, digests: list[str]) -> ArenaPages:
    """Sixteen pages: 3 free, 4 live and 5 cached of Acme's, 2 cached of nobody's, 2 of json@1."""
    namespace = tenant_namespace(api.state.secret, tenant.id, None)
    leaving = Departure(
        kind="kv",
        namespace=namespace,
        digest=digests[1],
        pages=[11, 10],
        value=-3.0,
        again_s=0.004,
        again_by="compute",
        again_bytes=1 << 19,
        last_used_s=900.0,
        heat=1.0,
        visits=1,
        weight=1.0,
        wanted=False,
        taken_by="above_guarantee",
    )
    return ArenaPages(
        at_s=1000.0,
        policy="joint",
        total_pages=16,
        page_bytes=1 << 19,
        kinds=[3, 4, 7, 2],
        runs=[4, 1, 1, 0, 5, 2, 2, 900, 2, 2, 3, 800, 2, 3, 4, 0, 3, 0, 0, 0],
        owners=[
            PageOwner("", ""),
            PageOwner(namespace, "BASE"),
            PageOwner(namespace, digests[1]),
            PageOwner("ns-gone", "BASE"),
            PageOwner(namespace, digests[0]),
        ],
        partitions=[
            PartitionPages(
                namespace=None, min_pages=0, max_pages=16, used=2, evictable=2, pinned=0, hard=False
            ),
            PartitionPages(
                namespace=namespace, min_pages=8, max_pages=12, used=11, evictable=5, pinned=2,
                hard=False,
            ),
        ],
        adapters=[
            ArenaAdapter(
                digest=digests[0], namespace=namespace, rank=8, num_pages=2, references=0,
                last_used_s=990.0, pinned=True, arriving=False,
            )
        ],
        host=[AdapterResidency(digests[1], "host", 8, 3, 0, 980.0)],
        departures=[leaving],
        departures_for="",
        pins=[],
        pinned_pages=2,
        pinnable_pages=1,
        slots=4,
    )  # fmt: skip


async def test_pages_have_the_names_of_whose_they_are(
    api: Api, tenant: TestTenant, versions: list[dict[str, Any]]
) -> None:
    digests = [each["digest"] for each in versions]
    api.engine.arena = arena(api, tenant, digests)
    found = (await api.admin("GET", PAGES)).json()
    assert found["counts"] == {"free": 3, "live_kv": 4, "cached_kv": 7, "adapter": 2}
    assert found["runs"] == api.engine.arena.runs
    shown = [(each["tenant"], each["adapter"]) for each in found["owners"]]
    acme = "Acme"
    assert shown == [
        (None, None),
        (acme, None),
        (acme, "support@1"),
        (None, None),
        (acme, "json@1"),
    ]
    mine, gone = found["tenants"]
    assert (mine["tenant_id"], mine["live_kv"], mine["cached_kv"], mine["adapter"]) == (
        tenant.id, 4, 5, 2,
    )  # fmt: skip
    assert (mine["min_pages"], mine["max_pages"], mine["pinned"]) == (8, 12, 2)
    assert (gone["tenant"], gone["cached_kv"], gone["max_pages"]) == (None, 2, None)
    assert sum(
        each["live_kv"] + each["cached_kv"] + each["adapter"] for each in found["tenants"]
    ) == (found["total_pages"] - found["counts"]["free"])


async def test_what_goes_next_says_why(
    api: Api, tenant: TestTenant, versions: list[dict[str, Any]]
) -> None:
    api.engine.arena = arena(api, tenant, [each["digest"] for each in versions])
    found = (await api.admin("GET", PAGES, params={"for_tenant": tenant.id})).json()
    assert found["departures_for"] == tenant.id
    (first,) = found["departures"]
    assert (first["order"], first["adapter"], first["pages"]) == (1, "support@1", [11, 10])
    assert (first["again_ms"], first["again_ms_per_mib"]) == (4.0, 8.0)
    assert first["reason"] == (
        "It is worth the least of all candidates: cost to bring it back per page, times how often "
        "it was used recently. Computing a page of it again takes 4 ms, 8 ms per MiB. Used once, "
        "idle for 100 s. Acme holds more than its guaranteed share."
    )
    unknown = await api.admin("GET", PAGES, params={"for_tenant": "Acme"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "for_tenant")
    assert "must be a tenant's id" in unknown.json()["error"]["message"]


async def test_adapters_are_listed_by_the_tier_that_has_them(
    api: Api, tenant: TestTenant, versions: list[dict[str, Any]]
) -> None:
    digests = [each["digest"] for each in versions]
    full = arena(api, tenant, digests)
    near = (await api.admin("GET", PAGES)).json()["adapters"]
    assert near == []
    api.engine.arena = full
    near = (await api.admin("GET", PAGES)).json()["adapters"]
    assert [(each["name"], each["tier"], each["pages"], each["pinned"]) for each in near] == [
        ("json", "device", 2, True),
        ("support", "host", 3, False),
    ]
    api.engine.arena = replace(full, host=[], shared_prefix="tenora:adapter:test:")
    redis = api.state.redis
    await redis.zadd("tenora:adapter-heat:test", {digests[1]: 1.0, "sha256:other": 2.0})
    await redis.set(f"tenora:adapter:test:{digests[1]}", b"pages", ex=60)

    async def tiers(**query: str) -> list[tuple[str, str]]:
        answer = await api.admin("GET", "/admin/v1/engine/adapters", params=query)
        return [(each["name"], each["tier"]) for each in answer.json()["data"]]

    assert await tiers() == [("support", "shared"), ("json", "device")]
    assert await tiers(tier="shared") == [("support", "shared")]
    assert await tiers(tier="device") == [("json", "device")]
    assert await tiers(tier="store") == []
    assert await tiers(q="JS") == [("json", "device")]
    assert await tiers(q="acm", limit="1") == [("support", "shared")]
    await redis.delete(f"tenora:adapter:test:{digests[1]}")
    assert await tiers(tier="store") == [("support", "store")]


async def actions(api: Api, target: str) -> list[str]:
    found = (await api.admin("GET", "/admin/v1/audit_logs", params={"limit": 100})).json()["data"]
    return [each["action"] for each in found if each["target"] == target]


async def test_a_pin_is_told_kept_and_told_again(api: Api, versions: list[dict[str, Any]]) -> None:
    version = versions[0]
    path = f"/admin/v1/adapters/{version['id']}/pin"
    for _ in range(2):  # the second changes nothing
        answer = await api.admin("POST", path)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["pinned"], answer.json()["state"]) == (True, "pinned")
    (pin,) = api.engine.pins
    assert (pin.adapter.digest, pin.adapter.rank) == (version["digest"], version["rank"])
    assert (await actions(api, version["id"])).count("adapter_version.pin") == 1
    api.engine.pins = []  # another engine has taken its place
    assert await pins.tell(api.state)
    assert [each.adapter.digest for each in api.engine.pins] == [version["digest"]]
    for _ in range(2):
        answer = await api.admin("DELETE", path)
        assert (answer.status_code, answer.json()["pinned"]) == (200, False)
    assert api.engine.pins == []
    assert (await actions(api, version["id"])).count("adapter_version.unpin") == 1


async def test_a_pin_that_the_engine_refuses_is_not_kept(
    api: Api, versions: list[dict[str, Any]]
) -> None:
    first, second = versions
    assert (await api.admin("POST", f"/admin/v1/adapters/{first['id']}/pin")).status_code == 200
    why = "it takes 12 pages; 4 are pinned and 2 more can be"
    api.engine.unpinnable[second["digest"]] = why
    answer = await api.admin("POST", f"/admin/v1/adapters/{second['id']}/pin")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "pin_refused")
    assert error["message"] == f"The adapter cannot be pinned: {why}."
    assert [each.adapter.digest for each in api.engine.pins] == [first["digest"]]
    async with api.state.db.admin_session() as session:
        assert not await pins.is_pinned(session, second["id"])
    assert "adapter_version.pin" not in await actions(api, second["id"])


async def test_an_adapters_id_means_its_newest_active_version(
    api: Api, tenant: TestTenant, versions: list[dict[str, Any]]
) -> None:
    adapter = (await api.call(tenant.key, "GET", "/v1/adapters/json")).json()
    answer = await api.admin("POST", f"/admin/v1/adapters/{adapter['id']}/pin")
    assert answer.json()["id"] == versions[0]["id"]
    for method, path in (("POST", "nothing/pin"), ("DELETE", "nothing/pin"), ("POST", "x/evict")):
        assert (await api.admin(method, f"/admin/v1/adapters/{path}")).status_code == 404


async def test_an_adapter_in_use_is_not_evicted(api: Api, versions: list[dict[str, Any]]) -> None:
    version = versions[1]
    path = f"/admin/v1/adapters/{version['id']}/evict"
    answer = await api.admin("POST", path)
    assert (answer.status_code, answer.json()["pages"]) == (200, 2)
    assert api.engine.evicted[-1][1] == version["digest"]
    assert (await actions(api, version["id"]))[0] == "adapter_version.evict"
    api.engine.users[version["digest"]] = 3
    answer = await api.admin("POST", path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "adapter_in_use")
    assert "3 requests run" in error["message"]


async def test_the_last_hour_is_kept_outside_of_any_process(
    api: Api, tenant: TestTenant, versions: list[dict[str, Any]]
) -> None:
    full = arena(api, tenant, [each["digest"] for each in versions])
    api.engine.arena = full
    history, now_s = PageHistory(api.state.redis, api.state.seal), time.time()
    await api.state.redis.delete("tenora:memory:index")
    assert await history.keep_once(api.engine, now_s - 100)
    assert not await history.keep_once(api.engine, now_s - 100), "one worker takes it"
    api.engine.arena = replace(full, kinds=[16, 0, 0, 0], runs=[16, 0, 0, 0], adapters=[])
    assert await history.keep_once(api.engine, now_s - 50)
    assert await history.keep_once(api.engine, now_s - KEPT_S - 100)
    answer = (await api.admin("GET", f"{PAGES}/history")).json()
    assert [each["free"] for each in answer["data"]] == [3, 16]
    assert answer["pages"] is None
    for at, free in ((now_s - 90, 3), (now_s - 60, 3), (now_s - 40, 16)):
        answer = (await api.admin("GET", f"{PAGES}/history", params={"at": at})).json()
        assert answer["pages"]["counts"]["free"] == free
    assert answer["pages"]["owners"][1]["tenant"] == "Acme"
    gone = await api.admin("GET", f"{PAGES}/history", params={"at": now_s - 500})
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "at")


async def test_a_listener_with_the_whole_can_follow_the_differences(
    api: Api, tenant: TestTenant, versions: list[dict[str, Any]]
) -> None:
    full = arena(api, tenant, [each["digest"] for each in versions])
    sample = live.pages(api.state)
    api.engine.arena = full
    assert await sample() == {"at": 1000.0, "since": None}
    assert await sample() is None
    changed = replace(
        full,
        at_s=1002.0,
        kinds=[4, 3, 7, 2],
        runs=[3, 1, 1, 0, 1, 0, 0, 0, 4, 2, 2, 900, 1, 2, 2, 1001, *full.runs[8:]],
    )
    api.engine.arena = changed
    event = await sample()
    assert event is not None
    assert (event["at"], event["since"]) == (1002.0, 1000.0)
    before, after = _each_page(full), _each_page(changed)
    for at in range(0, len(event["runs"]), 5):
        first, count, kind, owner, second = event["runs"][at : at + 5]
        of = event["owners"][owner]
        digest = of["digest"] or ("BASE" if of["namespace"] else "")
        for page in range(first, first + count):
            before[page] = kind, of["namespace"], digest, second
    assert before == after
    assert event["counts"]["free"] == 4
    assert "departures" not in event
    api.engine.ready = False
    assert await sample() is None
    api.engine.ready = True


def _each_page(pages: ArenaPages) -> list[tuple[int, str, str, int]]:
    found = []
    for at in range(0, len(pages.runs), 4):
        count, kind, owner, second = pages.runs[at : at + 4]
        of = pages.owners[owner]
        found += [(kind, of.namespace, of.digest, second)] * count
    return found
