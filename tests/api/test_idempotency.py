"""Idempotency-Key on management POSTs: done once, answered the same, for the same caller only."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, tzinfo
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from api_harness import Api
from price_lists import BASE
from tenora_platform.billing import routes as price_routes
from tenora_platform.idempotency import layer, repository
from tenora_platform.idempotency.body import HashedBody

TENANTS = "/admin/v1/tenants"


async def tenant_names(api: Api) -> list[str]:
    page = (await api.admin("GET", f"{TENANTS}?limit=100")).json()
    return [tenant["name"] for tenant in page["data"]]


async def create(api: Api, name: str, key: str, **more: Any) -> httpx.Response:
    body = {"name": name, **more}
    return await api.admin("POST", TENANTS, json=body, headers={"idempotency-key": key})


async def test_the_first_answer_is_given_again(api: Api) -> None:
    first = await create(api, "only-once", "k1")
    again = await create(api, "only-once", "k1")
    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert (await tenant_names(api)).count("only-once") == 1


async def test_another_body_or_route_is_a_conflict(api: Api) -> None:
    tenant = (await create(api, "conflict", "k2")).json()["id"]
    other_body = await create(api, "conflict-2", "k2")
    path = f"{TENANTS}/{tenant}/api_keys"
    other_route = await api.admin("POST", path, json={}, headers={"idempotency-key": "k2"})
    for answer in (other_body, other_route):
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "idempotency_key_reused"
        assert answer.headers["x-should-retry"] == "false"
    assert "conflict-2" not in await tenant_names(api)


async def test_an_error_of_the_client_is_remembered_too(api: Api) -> None:
    first = await create(api, "no-plan", "k3", plan="there-is-none")
    again = await create(api, "no-plan", "k3", plan="there-is-none")
    assert first.status_code == again.status_code == 400
    assert first.content == again.content


async def test_a_new_secret_is_given_again_and_kept_encrypted(api: Api) -> None:
    acme = await api.new_tenant("secretive")
    headers = {"idempotency-key": "k4"}
    first = await api.call(acme.key, "POST", "/v1/api_keys", json={}, headers=headers)
    again = await api.call(acme.key, "POST", "/v1/api_keys", json={}, headers=headers)
    assert first.json() == again.json()
    async with api.state.db.admin_session() as session:
        kept = await session.scalar(
            text("select answer from idempotency_keys where tenant_id = :t"), {"t": acme.id}
        )
    assert first.json()["key"].encode() not in bytes(kept)
    listed = (await api.call(acme.key, "GET", "/v1/api_keys")).json()["data"]
    assert len(listed) == 2


async def test_keys_of_other_callers_do_not_meet(api: Api) -> None:
    """Not of another tenant's, and not of another key of the same tenant, which may do less."""
    acme, globex = await api.new_tenant("apart-1"), await api.new_tenant("apart-2")
    headers = {"idempotency-key": "shared"}
    mine = await api.call(acme.key, "POST", "/v1/api_keys", json={}, headers=headers)
    theirs = await api.call(globex.key, "POST", "/v1/api_keys", json={}, headers=headers)
    assert mine.status_code == theirs.status_code == 201
    assert mine.json()["id"] != theirs.json()["id"]
    body = {"scopes": ["inference"]}
    weak = (await api.call(acme.key, "POST", "/v1/api_keys", json=body)).json()["key"]
    asked = await api.call(weak, "POST", "/v1/api_keys", json={}, headers=headers)
    assert asked.status_code == 403


async def test_of_many_at_once_one_is_done(api: Api) -> None:
    answers = await asyncio.gather(*(create(api, "stampede", "k5") for _ in range(12)))
    assert (await tenant_names(api)).count("stampede") == 1
    for answer in answers:
        if answer.status_code != 201:
            assert answer.status_code == 409
            assert answer.json()["error"]["code"] == "idempotency_key_in_use"
            assert answer.headers["x-should-retry"] == "true"
    assert (await create(api, "stampede", "k5")).status_code == 201


async def test_what_failed_on_our_side_is_done_anew(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenora_platform.tenants.service import TenantService

    async def fails(*_: object) -> None:
        raise RuntimeError("of the test")

    with monkeypatch.context() as patched:
        patched.setattr(TenantService, "create_tenant", fails)
        assert (await create(api, "second-try", "k6")).status_code == 500
    assert (await create(api, "second-try", "k6")).status_code == 201
    assert (await tenant_names(api)).count("second-try") == 1


async def test_a_clock_that_is_ahead_takes_no_request_for_dead(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's clock says how long the first has run."""

    class Ahead:
        @staticmethod
        def now(zone: tzinfo) -> datetime:
            return datetime.now(zone) + timedelta(hours=25)

    await create(api, "still-runs", "k9")
    async with api.state.db.admin_session() as session:
        await session.execute(
            text("update idempotency_keys set answer = null where key = 'k9'"),
        )
    for module in (layer, repository):
        monkeypatch.setattr(module, "datetime", Ahead, raising=False)
    again = await create(api, "still-runs", "k9")
    assert again.status_code == 409
    assert again.json()["error"]["code"] == "idempotency_key_in_use"


async def test_a_request_that_died_is_not_done_twice(api: Api) -> None:
    await create(api, "cut-short", "k7")
    async with api.state.db.admin_session() as session:
        await session.execute(
            text(
                "update idempotency_keys set answer = null, "
                "began_at = now() - interval '11 minutes' where key = 'k7'"
            )
        )
    again = await create(api, "cut-short", "k7")
    assert again.status_code == 409
    assert again.json()["error"]["code"] == "idempotency_outcome_unknown"


async def test_a_day_later_the_key_is_free(api: Api) -> None:
    await create(api, "daily", "k8")
    async with api.state.db.admin_session() as session:
        await session.execute(
            text("update idempotency_keys set began_at = now() - interval '25 hours'")
        )
    assert (await create(api, "daily-2", "k8")).status_code == 201
    async with api.state.db.admin_session() as session:
        assert await repository.sweep(session) >= 1
        left = await session.scalar(text("select count(*) from idempotency_keys where key = 'k8'"))
    assert left == 1


@pytest.mark.parametrize("key", ["", " ", "with space", "x" * 256, "näh"])
async def test_an_impossible_key_is_named(api: Api, key: str) -> None:
    headers = {b"idempotency-key": key.encode()}
    answer = await api.http.post(
        TENANTS,
        json={"name": "impossible"},
        headers={b"authorization": b"Bearer admin-key-of-the-tests", **headers},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_idempotency_key"


async def test_inference_is_not_management(api: Api) -> None:
    acme = await api.new_tenant("asks-twice")
    body = {"model": "fake-base", "prompt": "Hi", "max_tokens": 3}
    headers = {"idempotency-key": "k9"}
    ids = {
        (await api.call(acme.key, "POST", "/v1/completions", json=body, headers=headers)).json()[
            "id"
        ]
        for _ in range(2)
    }
    assert len(ids) == 2


async def test_without_a_known_key_nothing_is_kept(api: Api) -> None:
    answer = await api.http.post(TENANTS, json={"name": "x"}, headers={"idempotency-key": "k10"})
    assert answer.status_code == 401
    async with api.state.db.admin_session() as session:
        kept = await session.scalar(text("select count(*) from idempotency_keys where key = 'k10'"))
    assert kept == 0


async def test_a_large_answer_is_passed_on_unremembered_but_not_done_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "ANSWER_BYTES_MAX", 10)
    assert (await create(api, "talkative", "k11")).status_code == 201
    again = await create(api, "talkative", "k11")
    assert again.status_code == 409
    assert again.json()["error"]["code"] == "idempotency_outcome_unknown"
    assert (await tenant_names(api)).count("talkative") == 1


async def test_what_fails_once_it_has_committed_is_of_unknown_outcome(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is there, and rating what waited for it fails: a retry does not make another."""

    async def fails(_: object) -> None:
        raise OperationalError("", {}, Exception("gone"))

    monkeypatch.setattr(price_routes, "_rate_waiting", fails)
    tenant = (await create(api, "priced", "k12")).json()["id"]
    body = {"tenant": tenant, "currency": "USD", "per_million": BASE}
    headers = {"idempotency-key": "k13"}
    answer = await api.admin("POST", "/admin/v1/prices", json=body, headers=headers)
    assert answer.status_code == 503
    answer = await api.admin("POST", "/admin/v1/prices", json=body, headers=headers)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "idempotency_outcome_unknown"
    monkeypatch.undo()
    lists = (await api.admin("GET", f"/admin/v1/prices?tenant={tenant}")).json()["data"]
    assert len(lists) == 1


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
async def test_the_same_form_with_another_boundary_is_the_same(step: int) -> None:
    """However the pieces fall, also in the middle of a boundary."""

    async def digest(boundary: str, field: str) -> str:
        disposition = 'Content-Disposition: form-data; name="name"'
        form = f"--{boundary}\r\n{disposition}\r\n\r\n{field}\r\n--{boundary}--\r\n".encode()
        pieces = [form[at : at + step] for at in range(0, len(form), step)]

        async def receive() -> dict[str, Any]:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        kind = f"multipart/form-data; boundary={boundary}".encode()
        body = HashedBody(receive, kind)
        assert await body.read_to_end()
        return body.sha256()

    assert await digest("one", "a") == await digest("quite-another", "a")
    assert await digest("one", "a") != await digest("one", "b")


async def test_an_upload_is_done_once(api: Api) -> None:
    """The client sends the form again, as httpx and the official client do after a lost answer."""
    acme = await api.new_tenant("uploads-once")
    config = json.dumps({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]})
    files = {
        "adapter_config": ("adapter_config.json", config.encode()),
        "weights": ("adapter_model.safetensors", b"\x02\0\0\0\0\0\0\0{}"),
    }
    headers = {"idempotency-key": "k12"}
    answers = [
        await api.call(
            acme.key, "POST", "/v1/adapters", data={"name": "once"}, files=files, headers=headers
        )
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].content == answers[1].content
    shown = (await api.call(acme.key, "GET", "/v1/adapters/once")).json()
    assert len(shown["versions"]) == 1
