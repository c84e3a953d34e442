"""A tenant's own keys: shown once, listed without the secret, limited by scope, never another's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from api_harness import ADMIN_KEY, Api
from platform_fixtures import MakeApi
from tenora_platform.auth import SCOPES
from tenora_platform.tenants.key_terms import CAPS, KeyTerms, covers


async def test_the_secret_appears_once(api: Api) -> None:
    tenant = await api.new_tenant()
    made = await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "ci"})
    assert made.status_code == 201
    new = made.json()
    assert new["key"].startswith(f"tn_{new['prefix']}_")
    assert (await api.call(new["key"], "GET", "/v1/limits")).status_code == 200
    listed = await api.call(tenant.key, "GET", "/v1/api_keys")
    assert new["key"] not in listed.text
    assert {row["id"] for row in listed.json()["data"]} == {tenant.key_id, new["id"]}
    by_operator = await api.admin("GET", f"/admin/v1/tenants/{tenant.id}/api_keys")
    assert by_operator.json() == listed.json()


async def test_a_body_is_not_needed(api: Api) -> None:
    tenant = await api.new_tenant()
    assert (await api.call(tenant.key, "POST", "/v1/api_keys")).status_code == 201


async def test_rotation_overlaps(api: Api) -> None:
    tenant = await api.new_tenant()
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    new = (await api.admin("POST", path, json={})).json()
    for key in (tenant.key, new["key"]):
        assert (await api.call(key, "GET", "/v1/limits")).status_code == 200
    gone = await api.call(new["key"], "DELETE", f"/v1/api_keys/{tenant.key_id}")
    assert gone.json() == {
        "id": tenant.key_id,
        "object": "api_key",
        "deleted": True,
        "keys": 1,
        "webhook_endpoints": 0,
    }
    assert (await api.call(tenant.key, "GET", "/v1/limits")).status_code == 401
    assert (await api.call(new["key"], "GET", "/v1/limits")).status_code == 200
    again = await api.call(new["key"], "DELETE", f"/v1/api_keys/{tenant.key_id}")
    assert again.status_code == 200, "ending an ended key is no error"


async def test_a_key_cannot_give_what_it_lacks(api: Api) -> None:
    tenant = await api.new_tenant(scopes=["keys", "usage"])
    more = await api.call(tenant.key, "POST", "/v1/api_keys", json={"scopes": ["inference"]})
    assert more.status_code == 400
    assert more.json()["error"]["param"] == "scopes"
    same = await api.call(tenant.key, "POST", "/v1/api_keys", json={})
    assert sorted(same.json()["scopes"]) == ["keys", "usage"]


LIMITS = {"requests_per_min": 10, "parallel_requests": 2, "budget": "5.00"}
IN_AN_HOUR = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
IN_A_DAY = (datetime.now(UTC) + timedelta(days=1)).isoformat()


@pytest.mark.parametrize(
    ("own", "asked", "param"),
    [
        ({"models": ["a", "b@1"]}, {"models": ["c"]}, "models"),
        ({"models": ["a", "b@1"]}, {"models": ["a@2", "b"]}, "models"),
        ({"limits": LIMITS}, {"limits": {"requests_per_min": 11}}, "limits.requests_per_min"),
        ({"limits": LIMITS}, {"limits": {"parallel_requests": 3}}, "limits.parallel_requests"),
        ({"limits": LIMITS}, {"limits": {"budget": "5.01"}}, "limits.budget"),
        ({"expires_at": IN_AN_HOUR}, {"expires_at": IN_A_DAY}, "expires_at"),
        (
            {"limits": {"budget": "5", "budget_soft": 0.5, "budget_action": "degrade"}},
            {"limits": {"budget_action": "refuse"}},
            "limits.budget_action",
        ),
        (
            {"limits": {"budget": "5", "budget_soft": 0.5, "budget_action": "degrade"}},
            {"limits": {"budget_soft": 0.6}},
            "limits.budget_soft",
        ),
        ({"scopes": ["keys"]}, {"scopes": ["keys", "usage"]}, "scopes"),
    ],
)
async def test_no_key_gives_more_than_it_has(
    api: Api, own: dict[str, Any], asked: dict[str, Any], param: str
) -> None:
    """Neither to a new key nor to another nor to itself; what it leaves open is as it has it."""
    tenant = await api.new_tenant(**own)
    other = await api.admin("POST", f"/admin/v1/tenants/{tenant.id}/api_keys", json={})
    path = f"/v1/api_keys/{other.json()['id']}"
    for method, where in (
        ("POST", "/v1/api_keys"),
        ("PATCH", path),
        ("PATCH", f"/v1/api_keys/{tenant.key_id}"),
    ):
        answer = await api.call(tenant.key, method, where, json=asked)
        assert answer.status_code == 400, (method, answer.text)
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["code"] == "beyond_own_key"
    stolen = await api.call(tenant.key, "POST", f"{path}/rotate")
    assert stolen.status_code == 403, "its secret would be the asker's"
    assert (await api.call(tenant.key, "GET", path)).json()["scopes"] == other.json()["scopes"]
    same = (await api.call(tenant.key, "POST", "/v1/api_keys", json={"limits": {}})).json()
    mine = (await api.call(tenant.key, "GET", f"/v1/api_keys/{tenant.key_id}")).json()
    for name in ("scopes", "models", "limits", "expires_at"):
        assert same[name] == mine[name]
    harmless = await api.call(tenant.key, "PATCH", path, json={"name": "renamed"})
    assert harmless.json()["name"] == "renamed"


async def test_a_key_that_may_more_can_be_given_nothing(api: Api) -> None:
    tenant = await api.new_tenant(scopes=["keys"])
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    body = {"scopes": ["inference"], "models": ["a"], "expires_at": IN_AN_HOUR}
    other = (await api.admin("POST", path, json=body)).json()
    for change in ({"models": None}, {"models": ["b"]}, {"expires_at": None}):
        path = f"/v1/api_keys/{other['id']}"
        answer = await api.call(tenant.key, "PATCH", path, json=change)
        assert answer.status_code == 400, change
        assert answer.json()["error"]["param"] == "scopes"
    less = await api.call(tenant.key, "PATCH", path, json={"models": ["a@1"]})
    assert less.json()["models"] == ["a@1"]


async def test_less_can_be_given(api: Api) -> None:
    tenant = await api.new_tenant(models=["a", "b"], limits=LIMITS, expires_at=IN_A_DAY)
    body = {
        "models": ["a@1", "b@prod", "b"],
        "limits": {"requests_per_min": 9, "tokens_per_min": 100},
        "expires_at": IN_AN_HOUR,
        "scopes": ["usage"],
    }
    made = await api.call(tenant.key, "POST", "/v1/api_keys", json=body)
    assert made.status_code == 201, made.text
    limits = made.json()["limits"]
    assert (limits["requests_per_min"], limits["tokens_per_min"]) == (9, 100)
    assert limits["parallel_requests"] == 2
    assert Decimal(limits["budget"]) == Decimal(5)


CAP = st.none() | st.integers(0, 3)
MODELS = st.none() | st.lists(st.sampled_from(["a", "a@1", "b"]), min_size=1, max_size=2)
TERMS = st.builds(
    lambda scopes, models, day, action, *caps: KeyTerms(
        scopes=sorted(scopes),
        models=models,
        expires_at=None if day is None else datetime(2030, 1, 1 + day, tzinfo=UTC),
        limits=dict(zip(CAPS, caps, strict=True)) | {"budget_soft": None, "budget_action": action},
    ),
    st.sets(st.sampled_from(SCOPES), min_size=1),
    MODELS,
    CAP,
    st.sampled_from(["refuse", "degrade"]),
    *[CAP for _ in CAPS],
)


def powers(terms: KeyTerms) -> set[object]:
    """Every single thing a key of these terms can do, in a small world."""
    time = {day for day in range(9) if terms.expires_at is None or day < terms.expires_at.day}
    models = {m for m in ("a", "a@1", "a@2", "b", "c") if covers(terms.models, m)}
    caps = {
        (name, used)
        for name in CAPS
        for used in range(9)
        if terms.limits[name] is None or used <= terms.limits[name]
    }
    tiers = {"flex"} | ({"own tier"} if terms.limits["budget_action"] == "refuse" else set())
    return {*terms.scopes, *time, *models, *caps, *tiers}


@given(TERMS, TERMS)
def test_what_is_given_is_never_more(wanted: KeyTerms, own: KeyTerms) -> None:
    assert (not list(wanted.beyond(own))) == (powers(wanted) <= powers(own))


async def test_a_key_is_changed(api: Api) -> None:
    tenant = await api.new_tenant()
    made = (await api.call(tenant.key, "POST", "/v1/api_keys", json={"limits": LIMITS})).json()
    path = f"/v1/api_keys/{made['id']}"
    body = {
        "name": "new",
        "scopes": ["usage", "usage"],
        "models": ["a"],
        "expires_at": IN_A_DAY,
        "limits": {"requests_per_min": None, "tokens_per_min": 7},
    }
    assert (await api.call(made["key"], "GET", "/v1/api_keys")).status_code == 200
    changed = (await api.call(tenant.key, "PATCH", path, json=body)).json()
    assert (changed["name"], changed["scopes"], changed["models"]) == ("new", ["usage"], ["a"])
    assert changed["expires_at"] is not None
    limits = changed["limits"]
    assert (limits["requests_per_min"], limits["tokens_per_min"]) == (None, 7)
    assert limits["parallel_requests"] == 2, "absent: as it was"
    refused = await api.call(made["key"], "GET", "/v1/api_keys")
    assert refused.status_code == 403, "for the next request"
    nothing = await api.call(tenant.key, "PATCH", path, json={})
    assert nothing.json() == changed | {"last_used_at": nothing.json()["last_used_at"]}
    freed = {"models": None, "limits": None, "expires_at": None}
    free = (await api.call(tenant.key, "PATCH", path, json=freed)).json()
    assert (free["models"], free["expires_at"]) == (None, None)
    assert set(free["limits"].values()) == {None, "refuse"}
    log = (await api.admin("GET", "/admin/v1/audit_logs", params={"tenant_id": tenant.id})).json()
    entry = next(each for each in log["data"] if each["target"] == made["id"])
    assert entry["action"] == "api_key.update"
    assert entry["actor"] == f"api_key:{tenant.key_id}"
    assert (entry["before"]["tokens_per_min"], entry["after"]["tokens_per_min"]) == (7, None)


async def test_bad_changes_are_refused_by_field(api: Api) -> None:
    tenant = await api.new_tenant()
    path = f"/v1/api_keys/{tenant.key_id}"
    for body, param in (
        ({"name": None}, "name"),
        ({"scopes": None}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"models": []}, "models"),
        ({"models": ["a b"]}, "models[0]"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"limits": {"requests_per_min": -1}}, "limits.requests_per_min"),
        ({"limits": {"budget_action": None}}, "limits.budget_action"),
        ({"prefix": "x"}, "prefix"),
    ):
        answer = await api.call(tenant.key, "PATCH", path, json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param
    other = (await api.call(tenant.key, "POST", "/v1/api_keys")).json()
    await api.call(tenant.key, "DELETE", f"/v1/api_keys/{other['id']}")
    for method, more in (("PATCH", ""), ("POST", "/rotate")):
        ended = await api.call(tenant.key, method, f"/v1/api_keys/{other['id']}{more}", json={})
        assert ended.status_code == 409
        assert ended.json()["error"]["code"] == "key_ended"


@pytest.mark.parametrize("by_operator", [False, True])
async def test_a_rotated_key_stays_one_key(api: Api, by_operator: bool) -> None:
    tenant = await api.new_tenant(limits=LIMITS)
    old_prefix = tenant.key.split("_")[1]
    path = f"/v1/api_keys/{tenant.key_id}"
    if by_operator:
        path = f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
    asker = ADMIN_KEY if by_operator else tenant.key
    new = (await api.call(asker, "POST", f"{path}/rotate", json={"overlap_s": 600})).json()
    assert new["id"] == tenant.key_id
    assert new["prefix"] != old_prefix
    assert new["previous"]["prefix"] == old_prefix
    assert new["limits"]["requests_per_min"] == 10
    for key in (tenant.key, new["key"]):
        me = await api.call(key, "GET", f"/v1/api_keys/{tenant.key_id}")
        assert me.status_code == 200
        assert me.json()["previous"]["prefix"] == old_prefix
    early = await api.call(ADMIN_KEY if by_operator else new["key"], "POST", f"{path}/rotate")
    assert early.json()["error"]["code"] == "rotation_in_progress"
    assert (await api.call(tenant.key, "GET", "/v1/limits")).status_code == 200
    async with api.state.db.admin_session() as session:
        statement = "update api_keys set previous_expires_at = now() where id = :id"
        await session.execute(text(statement), {"id": tenant.key_id})
    await api.state.auth.invalidate()
    over = await api.call(tenant.key, "GET", "/v1/limits")
    assert over.json()["error"]["code"] == "key_expired"
    shown = await api.call(new["key"], "GET", f"/v1/api_keys/{tenant.key_id}")
    assert shown.json()["previous"] is None


async def test_both_secrets_use_up_one_keys_limits_and_count_as_one_key(api: Api) -> None:
    tenant = await api.new_tenant(limits={"requests_per_min": 2})
    path = f"/v1/api_keys/{tenant.key_id}/rotate"
    new = (await api.admin("POST", f"/admin/v1/tenants/{tenant.id}{path[3:]}")).json()
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}]}
    statuses = []
    for key in (tenant.key, new["key"], tenant.key, new["key"]):
        answer = await api.call(key, "POST", "/v1/chat/completions", json=body)
        statuses.append(answer.status_code)
    assert statuses == [200, 200, 429, 429]
    query = {"group_by": "api_key", "bucket": "1mo"}
    async with asyncio.timeout(20):
        found: list[dict[str, Any]] = []
        while sum(each["requests"] for each in found) < 2:
            usage = (await api.call(new["key"], "GET", "/v1/usage", params=query)).json()
            found = [each for bucket in usage["data"] for each in bucket["results"]]
            await asyncio.sleep(0.05)
    assert [(each["api_key_id"], each["requests"]) for each in found] == [(tenant.key_id, 2)]


async def test_the_overlap_ends_by_itself_though_the_secret_is_remembered(api: Api) -> None:
    tenant = await api.new_tenant()
    path = f"/v1/api_keys/{tenant.key_id}/rotate"
    assert (await api.call(tenant.key, "POST", path, json={"overlap_s": 1})).status_code == 200
    async with asyncio.timeout(20):
        while (await api.call(tenant.key, "GET", "/v1/limits")).status_code == 200:  # noqa: ASYNC110 - by the clock
            await asyncio.sleep(0.1)


async def test_of_two_rotations_at_once_one_is_done(make_api: MakeApi) -> None:
    """The other would have cut off the secret that is in use."""
    async with make_api() as one, make_api() as other:
        tenant = await one.new_tenant()
        path = f"/v1/api_keys/{tenant.key_id}/rotate"
        answers = await asyncio.gather(
            *(worker.call(tenant.key, "POST", path) for worker in (one, other, one, other))
        )
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
        new = next(answer for answer in answers if answer.status_code == 200).json()
        for key in (tenant.key, new["key"]):
            assert (await one.call(key, "GET", "/v1/me")).status_code == 200


async def test_without_overlap_the_old_secret_is_out_at_once(make_api: MakeApi) -> None:
    async with make_api() as one, make_api() as other:
        tenant = await one.new_tenant()
        path = f"/v1/api_keys/{tenant.key_id}/rotate"
        new = (await one.call(tenant.key, "POST", path, json={"overlap_s": 0})).json()
        for worker in (one, other):
            assert (await worker.call(tenant.key, "GET", "/v1/limits")).status_code == 401
            assert (await worker.call(new["key"], "GET", "/v1/limits")).status_code == 200


async def test_bad_keys_are_refused_by_field(api: Api) -> None:
    tenant = await api.new_tenant()
    for body, param in (
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2099-01-01T00:00:00"}, "expires_at"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["everything"]}, "scopes[0]"),
        ({"name": ""}, "name"),
    ):
        answer = await api.call(tenant.key, "POST", "/v1/api_keys", json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param


async def test_others_keys_do_not_exist(api: Api) -> None:
    mine, theirs = await api.new_tenant("mine"), await api.new_tenant("theirs")
    listed = (await api.call(mine.key, "GET", "/v1/api_keys")).json()["data"]
    assert [row["id"] for row in listed] == [mine.key_id]
    real = await api.call(mine.key, "DELETE", f"/v1/api_keys/{theirs.key_id}")
    invented = await api.call(mine.key, "DELETE", "/v1/api_keys/key_00000000000000000000000000")
    assert real.status_code == invented.status_code == 404
    told = real.json()["error"]["message"].replace(theirs.key_id, "")
    assert told == invented.json()["error"]["message"].replace("key_00000000000000000000000000", "")
    assert (await api.call(theirs.key, "GET", "/v1/limits")).status_code == 200
    by_path = await api.admin("DELETE", f"/admin/v1/tenants/{mine.id}/api_keys/{theirs.key_id}")
    assert by_path.status_code == 404
