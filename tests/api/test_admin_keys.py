"""The operator's keys: shown once, in force and out of force at once in every process, rotated with
an overlap, audited; the configured key and the last owner's stay."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from api_harness import ADMIN_KEY, Api, running_api
from platform_fixtures import MakeApi, Servers
from tenora_platform.admin_key import (
    first_admin_key,
    has_admin_key,
    make_admin_key,
    one_more_admin_key,
)
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database
from tenora_platform.demo import kept_admin_key
from tenora_platform.installation import Installation
from tenora_platform.keys import hash_key
from tenora_platform.secret import SecretLostError
from tenora_platform.settings import Settings

PATH = "/admin/v1/admin_keys"
SOON = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


async def new_key(api: Api, role: str = "operator", **more: Any) -> dict[str, Any]:
    made = await api.admin("POST", PATH, json={"role": role, **more})
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


async def status(api: Api, key: str, path: str = "/admin/v1/tenants") -> int:
    return (await api.call(key, "GET", path)).status_code


async def configured(api: Api) -> dict[str, Any]:
    found = (await api.admin("GET", PATH, params={"limit": 100})).json()["data"][-1]
    assert found["source"] == "configured"
    return dict(found)


async def test_the_secret_appears_once_and_is_not_kept(api: Api) -> None:
    made = await new_key(api, name="ci")
    assert made["key"].startswith(f"tna_{made['prefix']}_")
    assert await status(api, made["key"]) == 200
    listed = await api.admin("GET", PATH)
    assert made["key"] not in listed.text
    shown = next(each for each in listed.json()["data"] if each["id"] == made["id"])
    assert shown["last_used_at"] is not None
    assert {**shown, "last_used_at": None, "key": made["key"]} == made
    async with api.state.db.admin_session() as session:
        for table in ("admin_keys", "audit_logs"):
            rows = (await session.execute(text(f"select t::text from {table} t"))).scalars().all()
            assert rows
            assert not any(made["key"].split("_")[2] in row for row in rows)
        logs = (await session.execute(text("select details from audit_logs"))).scalars().all()
        assert not any(hash_key(made["key"], api.state.secret) in row for row in logs)


async def test_a_key_ends_at_once_in_every_process(make_api: MakeApi) -> None:
    async with make_api() as one, make_api() as other:
        made = await new_key(one)
        for worker in (one, other):
            assert await status(worker, made["key"]) == 200
        gone = await one.admin("DELETE", f"{PATH}/{made['id']}")
        assert gone.json() == {"id": made["id"], "object": "admin_key", "deleted": True}
        for worker in (one, other):
            answer = await worker.call(made["key"], "GET", "/admin/v1/tenants")
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "key_revoked"
        again = await one.admin("DELETE", f"{PATH}/{made['id']}")
        assert again.status_code == 200, "ending an ended key is no error"
        rotated = await one.admin("POST", f"{PATH}/{made['id']}/rotate")
        assert rotated.status_code == 409


async def test_rotation_overlaps(api: Api) -> None:
    made = await new_key(api)
    path = f"{PATH}/{made['id']}"
    new = (await api.admin("POST", f"{path}/rotate", json={"overlap_s": 3600})).json()
    assert new["id"] == made["id"]
    assert new["previous"]["prefix"] == made["prefix"]
    assert [await status(api, key["key"]) for key in (made, new)] == [200, 200]
    early = await api.admin("POST", f"{path}/rotate")
    assert early.status_code == 409
    assert early.json()["error"]["code"] == "rotation_in_progress"
    await shift(api, made["id"], "previous_expires_at")
    assert [await status(api, key["key"]) for key in (made, new)] == [401, 200]
    newest = (await api.admin("POST", f"{path}/rotate", json={"overlap_s": 0})).json()
    assert newest["previous"] is None
    assert [await status(api, key["key"]) for key in (made, new, newest)] == [401, 401, 200]


async def shift(api: Api, key_id: str, column: str) -> None:
    """The time has come."""
    async with api.state.db.admin_session() as session:
        statement = f"update admin_keys set {column} = now() - interval '1 s' where id = :id"
        await session.execute(text(statement), {"id": key_id})


async def test_keys_expire(api: Api) -> None:
    made = await new_key(api, expires_at=SOON)
    await api.admin("POST", f"{PATH}/{made['id']}/rotate", json={"overlap_s": 7200})
    assert await status(api, made["key"]) == 200
    await shift(api, made["id"], "expires_at")
    answer = await api.call(made["key"], "GET", "/admin/v1/tenants")
    assert answer.json()["error"]["code"] == "key_expired", "the overlap does not lengthen it"


async def test_bad_keys_are_refused_by_field(api: Api) -> None:
    for body, param in (
        ({}, "role"),
        ({"role": "root"}, "role"),
        ({"role": "owner", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"role": "owner", "name": "a\x00b"}, "name"),
        ({"role": "owner", "scopes": []}, "scopes"),
    ):
        answer = await api.admin("POST", PATH, json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param
    made = await new_key(api)
    answer = await api.admin("POST", f"{PATH}/{made['id']}/rotate", json={"overlap_s": -1})
    assert answer.json()["error"]["param"] == "overlap_s"
    assert (await api.admin("DELETE", f"{PATH}/adminkey_none")).status_code == 404


async def test_the_configured_key_is_listed_and_stays(api: Api) -> None:
    key = await configured(api)
    assert key["role"] == "owner"
    assert key["id"] == hash_key(ADMIN_KEY, api.state.secret)[:12]
    for method, path in (("DELETE", key["id"]), ("POST", f"{key['id']}/rotate")):
        answer = await api.admin(method, f"{PATH}/{path}")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "configured_admin_key"
        assert "TENORA_ADMIN_KEY" in answer.json()["error"]["message"]
    page = (await api.admin("GET", PATH, params={"after": key["id"]})).json()
    assert page["data"] == []


async def test_pages_meet_every_key_once(api: Api) -> None:
    for _ in range(3):
        await new_key(api, role="metrics")
    whole = (await api.admin("GET", PATH, params={"limit": 100})).json()["data"]
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await api.admin("GET", PATH, params=query)).json()
        found += page["data"]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert [key["id"] for key in found] == [key["id"] for key in whole]


async def test_the_last_owner_stays(make_api: MakeApi) -> None:
    """On a server that is set up with no key at all."""
    async with make_api() as first:
        one = await new_key(first, role="owner")
        two = await new_key(first, role="owner")
        await new_key(first, role="owner", expires_at=SOON)
    async with make_api(admin_key=None) as api:
        assert await status(api, ADMIN_KEY) == 401
        assert (await api.call(two["key"], "DELETE", f"{PATH}/{one['id']}")).status_code == 200
        last = await api.call(two["key"], "DELETE", f"{PATH}/{two['id']}")
        assert last.status_code == 409
        assert last.json()["error"]["code"] == "last_owner"
        assert await status(api, two["key"]) == 200


async def test_the_first_key_is_made_where_there_is_no_owner(
    servers: Servers, settings: Settings, tmp_path: Path
) -> None:
    bare = settings.model_copy(update={"admin_key": None, "data_dir": tmp_path})
    urls = database_urls(servers.new_database(), servers.secret, Installation(bare.installation))
    assert has_admin_key(settings, urls), "it is configured"
    assert not has_admin_key(bare, urls)
    insert = text(
        "insert into admin_keys (id, name, role, prefix, hash, expires_at)"
        " values (:id, '', :role, '', '', :until)"
    )
    db = Database(urls)
    soon = datetime.now(UTC) + timedelta(hours=1)
    for key_id, role, until, has in (
        ("a", "operator", None, False),
        ("b", "owner", soon, False),
        ("c", "owner", None, True),
    ):
        async with db.admin_session() as session:
            await session.execute(insert, {"id": key_id, "role": role, "until": until})
        assert has_admin_key(bare, urls) == has
    await db.close()
    make_admin_key(bare, servers.secret)
    urls = database_urls(servers.new_database(), servers.secret, Installation(bare.installation))
    assert has_admin_key(bare, urls), "it is in the data directory"


async def test_lost_admin_keys_are_not_made_anew(
    servers: Servers, settings: Settings, tmp_path: Path
) -> None:
    """A database that an admin key has administered had one: a start refuses, and makes none."""
    own = settings.model_copy(update={"database_url": servers.new_database()})
    bare = own.model_copy(update={"admin_key": None, "data_dir": tmp_path / "data"})
    urls = database_urls(str(own.database_url), servers.secret, Installation(own.installation))
    assert first_admin_key(bare, urls, servers.secret) is not None
    (bare.data_dir / "admin_keys").unlink()
    assert first_admin_key(bare, urls, servers.secret) is not None, "nothing was done with it yet"
    async with running_api(own, tmp_path / "1") as api:
        await api.new_tenant("there")
    assert first_admin_key(bare, urls, servers.secret) is None
    (bare.data_dir / "admin_keys").unlink()
    with pytest.raises(SecretLostError, match="Restore the file"):
        first_admin_key(bare, urls, servers.secret)
    with pytest.raises(SecretLostError, match="Restore the file"):
        kept_admin_key(bare, partial(one_more_admin_key, bare, urls, servers.secret))
    assert not (bare.data_dir / "admin_keys").exists()
    assert not (bare.data_dir / "admin_key").exists()
    assert first_admin_key(own, urls, servers.secret) is None, "a configured one lets it start"


async def test_two_owners_cannot_end_each_other_at_once(make_api: MakeApi) -> None:
    async with make_api() as first:
        for owner in (await first.admin("GET", PATH, params={"limit": 100})).json()["data"]:
            await first.admin("DELETE", f"{PATH}/{owner['id']}")
        one, two = [await new_key(first, role="owner") for _ in range(2)]
    async with make_api(admin_key=None) as api:
        answers = await asyncio.gather(
            api.call(one["key"], "DELETE", f"{PATH}/{two['id']}"),
            api.call(two["key"], "DELETE", f"{PATH}/{one['id']}"),
        )
        assert sorted(answer.status_code for answer in answers)[0] == 200
        assert sorted(answer.status_code for answer in answers)[1] in (401, 409)
        assert sorted([await status(api, key["key"]) for key in (one, two)]) == [200, 401]


async def test_what_was_done_is_in_the_audit_log(api: Api) -> None:
    made = await new_key(api, role="owner")
    query = {"json": {"role": "billing", "name": "books"}}
    second = (await api.call(made["key"], "POST", PATH, **query)).json()
    await api.call(made["key"], "POST", f"{PATH}/{second['id']}/rotate", json={"overlap_s": 60})
    await api.call(made["key"], "DELETE", f"{PATH}/{second['id']}")
    log = (await api.admin("GET", "/admin/v1/audit_logs")).json()["data"]
    mine = [entry for entry in log if entry["target"] == second["id"]][::-1]
    assert [entry["action"] for entry in mine] == [
        "admin_key.create",
        "admin_key.rotate",
        "admin_key.revoke",
    ]
    assert {entry["actor"] for entry in mine} == {f"admin_key:{made['id']}"}
    assert mine[0]["before"] is None
    assert mine[0]["after"]["role"] == "billing"
    assert mine[1]["before"]["prefix"] == mine[1]["after"]["previous_prefix"] == second["prefix"]
    assert mine[2]["before"]["revoked_at"] is None
    assert mine[2]["after"]["revoked_at"] is not None
    by_first = [entry["actor"] for entry in log if entry["target"] == made["id"]]
    assert by_first == [f"admin_key:{(await configured(api))['id']}"]


async def test_metrics_go_on_while_the_database_is_away(api: Api) -> None:
    made = await new_key(api, role="metrics")

    class Away:
        def admin_session(self) -> Any:
            raise OperationalError("select", {}, OSError("gone"))

    keys = api.state.auth.admins
    db, away = keys._db, Away()
    keys._db = away  # type: ignore[assignment]
    try:
        assert await status(api, made["key"], "/metrics") == 200
        assert await status(api, made["key"], "/admin/v1/admin_keys") == 503
        assert await status(api, ADMIN_KEY, "/metrics") == 200
    finally:
        keys._db = db
