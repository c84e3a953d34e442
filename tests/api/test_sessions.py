"""Sessions: a key becomes a cookie, which may what the key may, needs the CSRF token for changes,
and is over everywhere when it, or its key, has ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie

import pytest
from sqlalchemy import text

from api_harness import ADMIN_KEY, Api
from people import Person, session_of_key, signed_in
from platform_fixtures import MakeApi
from tenora_platform.people.sessions import COOKIE, SECURE_COOKIE


async def test_a_key_becomes_a_cookie(api: Api) -> None:
    tenant = await api.new_tenant("Acme", scopes=["usage", "keys"])
    answer = await api.http.post("/auth/session", json={"key": tenant.key})
    api.http.cookies.clear()
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    cookie = SimpleCookie(answer.headers["set-cookie"])[COOKIE]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "lax", "/")
    assert (cookie["secure"], cookie["domain"], cookie["max-age"]) == ("", "", "")
    assert len(cookie.value) == 43
    said = answer.json()
    assert (said["type"], said["person"], said["operator_role"]) == ("api_key", None, None)
    assert said["key"]["id"] == tenant.key_id
    assert [(t["id"], t["name"], t["role"]) for t in said["tenants"]] == [(tenant.id, "Acme", None)]
    assert said["tenants"][0]["scopes"] == ["usage", "keys"]
    assert tenant.key not in answer.text
    person = Person(api, "", cookie.value)
    again = await person.call("GET", "/auth/session")
    assert again.json() == said
    assert said["csrf_token"] == person.headers["x-csrf-token"]
    async with api.state.db.admin_session() as session:
        rows = (await session.execute(text("select t::text from sessions t"))).scalars().all()
    assert not any(cookie.value in row or said["csrf_token"] in row for row in rows)


async def test_behind_https_the_cookie_is_secure(make_api: MakeApi) -> None:
    async with make_api(public_url="https://tenora.example") as api:
        answer = await api.http.post("/auth/session", json={"key": ADMIN_KEY})
        assert answer.headers["set-cookie"].startswith(f"{SECURE_COOKIE}=")
        assert "Secure" in answer.headers["set-cookie"]
        cookie = answer.cookies[SECURE_COOKIE]
        for name, status in ((SECURE_COOKIE, 200), (COOKIE, 401)):
            api.http.cookies.clear()
            again = await api.http.get("/auth/session", headers={"cookie": f"{name}={cookie}"})
            assert again.status_code == status, name


async def test_a_session_may_what_its_key_may(api: Api) -> None:
    tenant = await api.new_tenant(scopes=["usage"])
    mine = await session_of_key(api, tenant.key)
    assert (await mine.call("GET", "/v1/usage")).status_code == 200
    me = (await mine.call("GET", "/v1/me")).json()
    assert (me["type"], me["key"]["id"], me["tenant"]["id"]) == (
        "api_key",
        tenant.key_id,
        tenant.id,
    )
    refused = await mine.call("GET", "/v1/api_keys")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    refused = await mine.call("GET", "/admin/v1/tenants")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
    refused = await mine.call("GET", "/v1/people")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "person_required")


async def test_the_admin_keys_session(api: Api) -> None:
    boss = await session_of_key(api, ADMIN_KEY)
    assert (await boss.call("GET", "/admin/v1/tenants")).status_code == 200
    refused = await boss.call("GET", "/v1/usage")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_not_allowed")
    made = await api.admin("POST", "/admin/v1/admin_keys", json={"role": "read_only"})
    reader = await session_of_key(api, made.json()["key"])
    assert (await reader.call("GET", "/v1/me")).json()["roles"] == ["read_only"]
    refused = await reader.call("POST", "/admin/v1/tenants", json={"name": "x"})
    assert refused.json()["error"]["code"] == "insufficient_role"
    assert (await api.admin("DELETE", f"/admin/v1/admin_keys/{made.json()['id']}")).is_success
    over = await reader.call("GET", "/admin/v1/tenants")
    assert (over.status_code, over.json()["error"]["code"]) == (401, "key_revoked")
    assert (await reader.call("GET", "/auth/session")).status_code == 401


@pytest.mark.parametrize("key", ["", "nonsense", "tn_00000000_" + "0" * 32 + "_00000000"])
async def test_a_wrong_key_makes_no_session(api: Api, key: str) -> None:
    answer = await api.http.post("/auth/session", json={"key": key})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("csrf", [None, "", "0" * 64, "another's"])
async def test_a_change_by_cookie_needs_the_sessions_token(api: Api, csrf: str | None) -> None:
    tenant = await api.new_tenant()
    mine, other = await session_of_key(api, tenant.key), await session_of_key(api, tenant.key)
    headers = {"cookie": f"{COOKIE}={mine.token}"}
    if csrf is not None:
        given = other.headers["x-csrf-token"] if csrf == "another's" else csrf
        headers["x-csrf-token"] = given
    for method, path in (
        ("POST", "/v1/api_keys"),
        ("PATCH", "/v1/settings"),
        ("DELETE", f"/v1/api_keys/{tenant.key_id}"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/auth/logout"),
        ("DELETE", "/auth/sessions/session_x"),
        ("POST", "/auth/invitations/accept"),
    ):
        refused = await api.http.request(method, path, headers=headers, json={})
        assert refused.status_code == 403, (method, path, refused.text)
        assert refused.json()["error"]["code"] == "invalid_csrf_token"
    assert (await api.http.get("/v1/usage", headers=headers)).status_code == 200
    assert (await mine.call("POST", "/v1/api_keys", json={})).status_code == 201
    # A key needs none, with or without a cookie beside it.
    both = {"authorization": f"Bearer {tenant.key}", "cookie": headers["cookie"]}
    assert (await api.http.post("/v1/api_keys", headers=both, json={})).status_code == 201


async def test_a_bad_key_beside_a_good_cookie_is_a_bad_key(api: Api) -> None:
    tenant = await api.new_tenant()
    mine = await session_of_key(api, tenant.key)
    headers = {"authorization": "Bearer nonsense"}
    assert (await mine.call("GET", "/v1/usage", headers=headers)).status_code == 401


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_origins_have_no_session(make_api: MakeApi, site: str) -> None:
    async with make_api(cors_origins="https://friend.example") as api:
        tenant = await api.new_tenant()
        mine = await session_of_key(api, tenant.key)
        from_there = {
            "origin": "https://friend.example",
            "sec-fetch-site": site,
            "sec-fetch-mode": "cors",
        }
        answer = await mine.call("GET", "/auth/session", headers=from_there)
        assert answer.status_code == 401
        assert "access-control-allow-credentials" not in answer.headers
        assert (await mine.call("GET", "/v1/usage", headers=from_there)).status_code == 401
        by_key = {**from_there, "authorization": f"Bearer {tenant.key}"}
        assert (await api.http.get("/v1/usage", headers=by_key)).status_code == 200
        refused = await api.http.post("/auth/session", json={"key": tenant.key}, headers=from_there)
        assert refused.status_code == 403
        followed = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
        assert (await mine.call("GET", "/v1/usage", headers=followed)).status_code == 200


async def test_a_form_of_another_page_signs_nobody_in(api: Api) -> None:
    tenant = await api.new_tenant()
    body = f'{{"key": "{tenant.key}"}}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await api.http.post("/auth/session", content=body, headers={"content-type": kind})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_what_a_browser_brought_is_no_session_afterwards(api: Api) -> None:
    """Fixation: somebody else put a cookie there, theirs or one that they made up."""
    tenant, victim = await api.new_tenant("attacker"), await api.new_tenant("victim")
    theirs = await session_of_key(api, tenant.key)
    for planted in (theirs.token, "A" * 43):
        answer = await api.http.post(
            "/auth/session", json={"key": victim.key}, headers={"cookie": f"{COOKIE}={planted}"}
        )
        api.http.cookies.clear()
        assert answer.cookies[COOKIE] != planted
        assert (await Person(api, "", planted).call("GET", "/v1/me")).status_code == 401


@pytest.mark.parametrize("cache_s", [0, 10])
async def test_signed_out_is_signed_out_in_every_process(make_api: MakeApi, cache_s: int) -> None:
    async with make_api(auth_cache_s=cache_s) as one, make_api(auth_cache_s=cache_s) as other:
        tenant = await one.new_tenant()
        mine = await session_of_key(one, tenant.key)
        there = Person(other, "", mine.token)
        assert (await mine.call("GET", "/v1/usage")).status_code == 200
        assert (await there.call("GET", "/v1/usage")).status_code == 200
        left = await mine.call("POST", "/auth/logout")
        assert left.json() == {"object": "signed_out", "provider_url": None}
        assert 'tenora_session=""' in left.headers["set-cookie"]
        for each in (mine, there):
            answer = await each.call("GET", "/v1/usage")
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "session_over"


async def test_a_revoked_key_ends_its_sessions(make_api: MakeApi) -> None:
    async with make_api() as one, make_api() as other:
        tenant = await one.new_tenant()
        mine = await session_of_key(one, tenant.key)
        there = Person(other, "", mine.token)
        assert (await there.call("GET", "/v1/usage")).status_code == 200
        await one.call(tenant.key, "DELETE", f"/v1/api_keys/{tenant.key_id}")
        answer = await there.call("GET", "/v1/usage")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_revoked")
        assert (await there.call("GET", "/auth/session")).status_code == 401


async def test_a_replaced_secret_ends_its_sessions(api: Api) -> None:
    tenant = await api.new_tenant()
    mine = await session_of_key(api, tenant.key)
    path = f"/v1/api_keys/{tenant.key_id}/rotate"
    second = (await api.call(tenant.key, "POST", path, json={"overlap_s": 3600})).json()["key"]
    assert (await mine.call("GET", "/v1/usage")).status_code == 200
    theirs = await session_of_key(api, second)
    await api.call(second, "POST", path, json={"overlap_s": 0})
    for each in (mine, theirs):
        answer = await each.call("GET", "/v1/usage")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_rotated")


async def test_sessions_are_listed_and_ended(api: Api) -> None:
    tenant = await api.new_tenant()
    here, there = await session_of_key(api, tenant.key), await session_of_key(api, tenant.key)
    strangers = await session_of_key(api, (await api.new_tenant()).key)
    listed = (await here.call("GET", "/auth/sessions")).json()["data"]
    assert [each["current"] for each in listed] == [False, True]
    assert listed[0]["user_agent"].startswith("python-httpx")
    path = f"/auth/sessions/{listed[0]['id']}"
    assert (await strangers.call("DELETE", path)).status_code == 404
    assert (await here.call("DELETE", path)).status_code == 200
    assert (await there.call("GET", "/v1/usage")).status_code == 401
    assert (await here.call("GET", "/v1/usage")).status_code == 200


@pytest.mark.parametrize("column", ["last_used_at", "expires_at"])
async def test_sessions_end_by_themselves(api: Api, column: str) -> None:
    tenant = await api.new_tenant()
    mine = await session_of_key(api, tenant.key)
    assert (await mine.call("GET", "/v1/usage")).status_code == 200
    then = datetime.now(UTC) - timedelta(seconds=api.state.settings.session_idle_s + 1)
    async with api.state.db.admin_session() as session:
        await session.execute(
            text(f"update sessions set {column} = :then where api_key_id = :key"),
            {"then": then, "key": tenant.key_id},
        )
    await api.state.auth.invalidate()
    assert (await mine.call("GET", "/v1/usage")).status_code == 401
    async with api.state.db.admin_session() as session:
        await api.state.auth.sessions.sweep(session)
        left = await session.scalar(
            text("select count(*) from sessions where api_key_id = :key"), {"key": tenant.key_id}
        )
    assert left == 0


async def test_use_keeps_a_session_but_not_for_ever(make_api: MakeApi) -> None:
    async with make_api(session_idle_s=100, session_max_s=1000) as api:
        mine = await session_of_key(api, ADMIN_KEY)
        async with api.state.db.admin_session() as session:
            await session.execute(
                text("update sessions set last_used_at = now() - interval '90 s'")
            )
        first = await api.state.auth.sessions.find(mine.token)
        second = await api.state.auth.sessions.find(mine.token)
        assert timedelta(seconds=85) < second.good_until - first.good_until


async def test_without_redis_sessions_are_still_known(make_api: MakeApi) -> None:
    async with make_api(redis_url="redis://127.0.0.1:1") as api:
        tenant = await api.new_tenant()
        mine = await session_of_key(api, tenant.key)
        assert (await mine.call("GET", "/v1/usage")).status_code == 200
        await mine.call("POST", "/auth/logout")
        assert (await mine.call("GET", "/v1/usage")).status_code == 401


async def test_limits_of_a_key_hold_for_its_sessions(api: Api) -> None:
    tenant = await api.new_tenant(limits={"requests_per_min": 2})
    mine = await session_of_key(api, tenant.key)
    body = {"model": api.engine.model.id, "messages": [{"role": "user", "content": "x"}]}
    path = "/v1/chat/completions"
    assert (await mine.call("POST", path, json=body)).status_code == 200
    assert (await api.call(tenant.key, "POST", path, json=body)).status_code == 200
    assert (await mine.call("POST", path, json=body)).status_code == 429


async def test_signing_in_and_out_is_written_down(api: Api) -> None:
    mine = await signed_in(api)
    await mine.call("POST", "/auth/logout")
    await api.http.post("/auth/session", json={"key": ADMIN_KEY})
    api.http.cookies.clear()
    log = (await api.admin("GET", "/admin/v1/audit_logs?limit=2")).json()["data"]
    assert [each["action"] for each in log] == ["session.begin", "session.end"]
    assert log[0]["actor"].startswith("admin_key:")
    assert log[0]["address"] == "127.0.0.1"
    assert log[1]["actor"] == f"person:{mine.id}"


async def test_a_tenants_own_log_tells_who_signed_in(api: Api) -> None:
    """By one of its keys, or as one of its people; who belongs to several is in the log of each."""
    tenant, other = await api.new_tenant(), await api.new_tenant()
    by_key = await session_of_key(api, tenant.key)
    await by_key.call("POST", "/auth/logout")
    person = await signed_in(api, (tenant.id, "owner"), (other.id, "viewer"))
    await person.call("POST", "/auth/logout")
    path = "/v1/audit_logs?action=session.*&order=asc"
    log = (await api.call(tenant.key, "GET", path)).json()["data"]
    assert [(each["actor"], each["action"]) for each in log] == [
        (f"api_key:{tenant.key_id}", "session.begin"),
        (f"api_key:{tenant.key_id}", "session.end"),
        (f"person:{person.id}", "session.end"),
    ]
    theirs = (await api.call(other.key, "GET", path)).json()["data"]
    assert {each["actor"] for each in theirs} == {f"person:{person.id}"}


async def test_without_a_provider_there_is_no_sign_in_by_one(api: Api) -> None:
    assert (await api.http.get("/auth/methods")).json()["oidc"] is None
    for path in ("/auth/login", "/auth/callback?code=x&state=y"):
        answer = await api.http.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "sign_in_not_set_up")
