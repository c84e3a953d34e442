"""Keys: their form, what is stored of them, who gets in where, and that a revoked one is out at
once, everywhere."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from api_harness import ADMIN_KEY, Api
from platform_fixtures import MakeApi
from tenora_platform.auth import Authenticator
from tenora_platform.keys import hash_key, key_prefix, make_key
from tenora_platform.secret import ServerSecret

KEYS = [make_key() for _ in range(20)]


def test_keys_differ_and_name_their_prefix() -> None:
    assert len({key.text for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert key.text.startswith(f"tn_{key.prefix}_")
        assert key_prefix(key.text) == key.prefix
        assert key.text not in repr(key)


@given(st.sampled_from(KEYS), st.data())
def test_one_changed_character_is_noticed_without_a_database(key: Any, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(key.text) - 1))
    letter = data.draw(st.sampled_from("0123456789abcdefghjkmnpqrstvwxyz_"))
    changed = key.text[:place] + letter + key.text[place + 1 :]
    assert key_prefix(changed) == (key.prefix if changed == key.text else None)


@given(st.text(max_size=80))
def test_anything_else_is_no_key(words: str) -> None:
    assert key_prefix(words) is None


def test_the_hash_needs_the_servers_secret() -> None:
    text_ = KEYS[0].text
    assert hash_key(text_, ServerSecret(b"a")) != hash_key(text_, ServerSecret(b"b"))


async def test_the_secret_is_nowhere_in_the_database(api: Api) -> None:
    tenant = await api.new_tenant()
    async with api.state.db.admin_session() as session:
        for table in ("api_keys", "audit_logs"):
            rows = (await session.execute(text(f"select t::text from {table} t"))).scalars().all()
            assert rows
            assert not any(tenant.key in row or tenant.key.split("_")[2] in row for row in rows)


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "Bearer", "Bearer  ", "Basic abc", "Bearer nonsense"),
        pytest.param(f"Bearer {KEYS[0].text}", id="another one's"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/limits", "/v1/api_keys", "/admin/v1/tenants"])
async def test_unknown_callers_get_401(api: Api, path: str, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    answer = await api.http.get(path, headers=headers)
    assert answer.status_code == 401, answer.text
    assert answer.json()["error"]["code"] in ("invalid_api_key", "missing_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_keys_open_only_their_own_side(api: Api) -> None:
    tenant = await api.new_tenant()
    assert (await api.call(tenant.key, "GET", "/v1/limits")).status_code == 200
    refused = await api.call(tenant.key, "GET", "/admin/v1/tenants")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "admin_key_required"
    refused = await api.call(ADMIN_KEY, "GET", "/v1/limits")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "admin_key_not_allowed"


@pytest.mark.parametrize("cache_s", [0, 10])
async def test_revoked_keys_are_out_at_once(make_api: MakeApi, cache_s: int) -> None:
    async with make_api(auth_cache_s=cache_s) as one, make_api(auth_cache_s=cache_s) as other:
        tenant = await one.new_tenant()
        for worker in (one, other):
            assert (await worker.call(tenant.key, "GET", "/v1/limits")).status_code == 200
        path = f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
        assert (await one.admin("DELETE", path)).status_code == 200
        for worker in (one, other):
            answer = await worker.call(tenant.key, "GET", "/v1/limits")
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "key_revoked"


async def test_a_burst_looks_its_key_up_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = await api.new_tenant()
    looked_up = []
    look_up = Authenticator._look_up

    async def counted(self: Authenticator, *args: Any) -> Any:
        looked_up.append(args)
        return await look_up(self, *args)

    monkeypatch.setattr(Authenticator, "_look_up", counted)
    answers = await asyncio.gather(*(api.call(tenant.key, "GET", "/v1/models") for _ in range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    assert len(looked_up) == 1


async def test_a_tenants_change_forgets_its_own_keys_everywhere_and_nobody_elses(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    look_up = Authenticator._look_up

    async def counted(self: Authenticator, session: Any, prefix: str, digest: str) -> Any:
        looked_up.append(prefix)
        return await look_up(self, session, prefix, digest)

    monkeypatch.setattr(Authenticator, "_look_up", counted)
    async with make_api() as one, make_api() as other:  # as two processes
        mine, another = await one.new_tenant(), await one.new_tenant()

        async def all_are_known() -> None:
            for worker in (one, other):
                for tenant in (mine, another):
                    assert (await worker.call(tenant.key, "GET", "/v1/limits")).status_code == 200

        await all_are_known()
        others = another.key.split("_")[1]
        looked_up.clear()
        path = f"/v1/api_keys/{mine.key_id}"
        changes: list[tuple[str, str, dict[str, Any]]] = [
            ("PATCH", path, {"name": "renamed"}),
            ("POST", "/v1/api_keys", {"name": "a child"}),
            ("POST", f"{path}/rotate", {"overlap_s": 600}),
            ("PATCH", "/v1/settings", {"keep_contents_days": 1}),
        ]
        for method, where, body in changes:
            done = await one.call(mine.key, method, where, json=body)
            assert done.status_code in (200, 201), done.text
            await all_are_known()
        assert mine.key.split("_")[1] in looked_up
        assert others not in looked_up
        assert (await other.call(mine.key, "DELETE", path)).status_code == 200
        for worker in (one, other):
            assert (await worker.call(mine.key, "GET", "/v1/limits")).status_code == 401
            assert (await worker.call(another.key, "GET", "/v1/limits")).status_code == 200
        assert others not in looked_up


async def test_a_change_during_a_look_up_is_not_missed(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that did not know whose the key is either: the rows are read after the epochs,
    and what was read before a change is not remembered as good after it."""
    look_up = Authenticator._of_key
    async with make_api() as one, make_api() as other:
        tenant = await one.new_tenant()
        path = f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"

        async def changed_meanwhile(self: Authenticator, *args: Any) -> Any:
            found = await look_up(self, *args)
            monkeypatch.setattr(Authenticator, "_of_key", look_up)
            assert (await other.admin("DELETE", path)).status_code == 200
            return found

        monkeypatch.setattr(Authenticator, "_of_key", changed_meanwhile)
        assert (await one.call(tenant.key, "GET", "/v1/limits")).status_code == 200
        for worker in (one, other):
            assert (await worker.call(tenant.key, "GET", "/v1/limits")).status_code == 401


async def test_suspended_tenants_are_out_at_once_and_come_back(api: Api) -> None:
    tenant = await api.new_tenant()
    assert (await api.call(tenant.key, "GET", "/v1/limits")).status_code == 200
    path = f"/admin/v1/tenants/{tenant.id}"
    assert (await api.admin("PATCH", path, json={"status": "suspended"})).status_code == 200
    refused = await api.call(tenant.key, "GET", "/v1/limits")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "tenant_suspended"
    assert (await api.admin("PATCH", path, json={"status": "active"})).status_code == 200
    assert (await api.call(tenant.key, "GET", "/v1/limits")).status_code == 200


async def test_a_changed_plan_counts_for_the_next_request(api: Api) -> None:
    await api.put_plan("elastic", {"requests_per_min": 50})
    tenant = await api.new_tenant(plan="elastic")
    before = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    await api.put_plan("elastic", {"requests_per_min": 70})
    after = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    assert before["requests_per_min"]["limit"] == 50
    assert after["requests_per_min"]["limit"] == 70


async def test_keys_expire_even_when_remembered(api: Api) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    tenant = await api.new_tenant(expires_at=soon.isoformat())
    assert (await api.call(tenant.key, "GET", "/v1/limits")).status_code == 200
    async with api.state.db.admin_session() as session:
        await session.execute(
            text("update api_keys set expires_at = now() - interval '1 s' where id = :id"),
            {"id": tenant.key_id},
        )
    await api.state.auth.invalidate()
    refused = await api.call(tenant.key, "GET", "/v1/limits")
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "key_expired"


async def test_scopes_are_kept(api: Api) -> None:
    tenant = await api.new_tenant(scopes=["inference"])
    refused = await api.call(tenant.key, "GET", "/v1/api_keys")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "insufficient_scope"
    assert "keys" in refused.json()["error"]["message"]


async def test_use_is_noted(api: Api) -> None:
    tenant = await api.new_tenant()
    await api.call(tenant.key, "GET", "/v1/limits")
    listed = (await api.call(tenant.key, "GET", "/v1/api_keys")).json()["data"]
    assert listed[0]["last_used_at"] is not None


async def test_without_redis_keys_are_still_known(make_api: MakeApi) -> None:
    async with make_api(redis_url="redis://127.0.0.1:1") as api:
        tenant = await api.new_tenant()
        assert (await api.call(tenant.key, "GET", "/v1/api_keys")).status_code == 200
        shown = await api.call(tenant.key, "GET", "/v1/limits")
        assert (shown.status_code, shown.json()["local"]) == (200, True)
