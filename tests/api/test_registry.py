"""Adapters over HTTP: upload, check, versions, aliases, deletion, resumable uploads, restarts."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
import pytest

from adapter_files import adapter_config, adapter_form, adapter_tensors, form, safetensors
from api_harness import Api, TestTenant, stored_objects
from tenora_engine.adapters.identity import config_key, weights_key
from tenora_platform.registry.tables import UploadRow
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.state import EngineLife

MakeApi = Callable[..., Any]


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("registry", plan="premium")


async def settled(api: Api, key: str, name: str, version: int = 1) -> dict[str, Any]:
    """The version once it has been checked."""
    async with asyncio.timeout(10):
        while True:
            path = f"/v1/adapters/{name}/versions/{version}"
            body: dict[str, Any] = (await api.call(key, "GET", path)).json()
            if body["state"] not in ("quarantined", "validating"):
                return body
            await asyncio.sleep(0.02)


async def pushed(api: Api, key: str, name: str, **more: Any) -> dict[str, Any]:
    """A good adapter's version, active."""
    made = await api.call(
        key, "POST", "/v1/adapters", files=adapter_form(api.engine.model, name, **more)
    )
    assert made.status_code == 202, made.text
    version = await settled(api, key, name, made.json()["version"])
    assert version["state"] == "active", version
    return version


async def test_upload(api: Api, tenant: TestTenant) -> None:
    files = adapter_form(api.engine.model, "one", seed=1)
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    assert made.status_code == 202
    body = made.json()
    assert (body["name"], body["version"], body["state"]) == ("one", 1, "quarantined")
    assert body["digest"] is None
    version = await settled(api, tenant.key, "one")
    assert version["id"] == body["id"]
    assert version["state"] == "active"
    assert version["rank"] == 4
    assert version["target_modules"] == ["q_proj", "v_proj"]
    assert version["bytes"] == len(files["weights"][1])
    assert version["validation"]["problems"] == []
    assert version["validation"]["facts"]["tensors_applied"] == 8
    weights = await obstore.get_async(api.state.objects, weights_key(version["digest"]))
    assert bytes(await weights.bytes_async()) == files["weights"][1]
    async with asyncio.timeout(10):  # a version serves before its upload is given back
        while any(name.startswith("staging/") for name in stored_objects(api)) or any(  # noqa: ASYNC110
            (api.state.settings.data_dir / "spool").iterdir()
        ):
            await asyncio.sleep(0.02)
    adapter = (await api.call(tenant.key, "GET", "/v1/adapters/one")).json()
    assert adapter["state"] == "active"
    assert [each["version"] for each in adapter["versions"]] == [1]
    listed = (await api.call(tenant.key, "GET", "/v1/adapters")).json()
    assert [each["name"] for each in listed["data"]] == ["one"]
    assert listed["first_id"] == listed["last_id"] == adapter["id"]


async def test_rejection_says_why(api: Api, tenant: TestTenant) -> None:
    weights = safetensors(adapter_tensors(api.engine.model))
    files = form("bad", adapter_config(use_dora=True), weights)
    assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202
    version = await settled(api, tenant.key, "bad")
    assert version["state"] == "rejected"
    problem = version["validation"]["problems"][0]
    assert problem["field"] == "adapter_config.use_dora"
    assert problem["code"] == "unsupported_dora"
    body = {"model": "bad", "messages": [{"role": "user", "content": "x"}]}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 404


async def test_bad_forms(api: Api, tenant: TestTenant) -> None:
    good = adapter_form(api.engine.model, "form")
    cases: list[tuple[dict[str, Any], int, str | None]] = [
        ({"files": {k: v for k, v in good.items() if k != "name"}}, 400, "name"),
        ({"files": {k: v for k, v in good.items() if k != "weights"}}, 400, "weights"),
        ({"files": {k: v for k, v in good.items() if k != "adapter_config"}}, 400, None),
        ({"files": good | {"name": (None, "../x")}}, 400, "name"),
        ({"files": good | {"name": (None, "fake-base")}}, 400, "name"),
        ({"files": good | {"surprise": (None, "x")}}, 400, "surprise"),
        ({"files": good | {"upload_id": (None, "x")}}, 400, "upload_id"),
        ({"json": {"name": "x"}}, 400, None),
        (
            {
                "content": b"--b\r\ncontent-disposition: form-data; name=name\r\n\r\nx",
                "headers": {"content-type": "multipart/form-data; boundary=b"},
            },
            400,
            None,
        ),
    ]
    for request, status, param in cases:
        answer = await api.call(tenant.key, "POST", "/v1/adapters", **request)
        assert answer.status_code == status, (request, answer.text)
        if param is not None:
            assert answer.json()["error"]["param"] == param
    assert (await api.call(tenant.key, "GET", "/v1/adapters")).json()["data"] == []


async def test_plan_limits(api: Api) -> None:
    size = len(adapter_form(api.engine.model, "x")["weights"][1])
    await api.put_plan("small", {"adapters": 1, "adapter_bytes": 2 * size + 100})
    small = await api.new_tenant("small", plan="small")
    await pushed(api, small.key, "first")
    again = adapter_form(api.engine.model, "second")
    answer = await api.call(small.key, "POST", "/v1/adapters", files=again)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "adapter_limit_reached"
    assert answer.headers["x-should-retry"] == "false"
    await pushed(api, small.key, "first", seed=5)
    third = adapter_form(api.engine.model, "first")
    answer = await api.call(small.key, "POST", "/v1/adapters", files=third)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "adapter_storage_exceeded"
    huge = form("first", adapter_config(), bytes(3 * size))
    answer = await api.call(small.key, "POST", "/v1/adapters", files=huge)
    assert answer.status_code == 413


async def test_versions_are_numbered_under_load(api: Api, tenant: TestTenant) -> None:
    answers = await asyncio.gather(
        *(
            api.call(
                tenant.key,
                "POST",
                "/v1/adapters",
                files=adapter_form(api.engine.model, "many", seed=seed),
            )
            for seed in range(6)
        )
    )
    assert sorted(answer.json()["version"] for answer in answers) == [1, 2, 3, 4, 5, 6]


async def test_aliases(api: Api, tenant: TestTenant) -> None:
    await pushed(api, tenant.key, "a", seed=1)
    await pushed(api, tenant.key, "a", seed=2)
    path = "/v1/adapters/a/aliases/canary"
    targets = [{"version": 1, "weight": 90}, {"version": 2, "weight": 10}]
    answer = await api.call(tenant.key, "PUT", path, json={"targets": targets})
    assert answer.status_code == 200
    assert answer.json()["targets"] == targets
    adapter = (await api.call(tenant.key, "GET", "/v1/adapters/a")).json()
    assert [alias["alias"] for alias in adapter["aliases"]] == ["canary"]
    for wrong in (
        [{"version": 1, "weight": 90}],
        [{"version": 1, "weight": 50}, {"version": 1, "weight": 50}],
        [{"version": 3, "weight": 100}],
        [],
    ):
        answer = await api.call(tenant.key, "PUT", path, json={"targets": wrong})
        assert answer.status_code == 400, wrong
    numeric = "/v1/adapters/a/aliases/3"
    answer = await api.call(tenant.key, "PUT", numeric, json={"targets": targets})
    assert answer.status_code == 400
    missing = "/v1/adapters/nobody/aliases/prod"
    answer = await api.call(tenant.key, "PUT", missing, json={"targets": targets})
    assert answer.status_code == 404


async def test_equal_bytes_are_one_adapter_and_a_changed_file_is_another(
    api: Api, tenant: TestTenant
) -> None:
    """The engine keys weights and cached KV by digest, and gives them up when the last version of
    the tenant's that holds these bytes goes."""
    first = await pushed(api, tenant.key, "bot", seed=1)
    again = await pushed(api, tenant.key, "bot", seed=1)
    assert (again["version"], again["digest"]) == (2, first["digest"])
    body = {"model": "bot", "messages": [{"role": "user", "content": "x"}]}
    await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    await api.call(tenant.key, "DELETE", "/v1/adapters/bot/versions/1")
    assert not api.engine.forgotten
    changed = await pushed(api, tenant.key, "bot", seed=2)
    await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    digests = [run.adapter.digest for run in api.engine.requests if run.adapter is not None]
    assert digests == [first["digest"], changed["digest"]]
    assert changed["digest"] != first["digest"]
    await api.call(tenant.key, "DELETE", "/v1/adapters/bot/versions/2")
    assert [digest for _, digest in api.engine.forgotten] == [first["digest"]]


async def test_deletion_gives_everything_back(api: Api, tenant: TestTenant) -> None:
    other = await api.new_tenant("same content", plan="premium")
    version = await pushed(api, tenant.key, "gone", seed=9)
    digest = version["digest"]
    assert (await pushed(api, other.key, "kept", seed=9))["digest"] == digest
    worker = IntakeWorker(api.state, release_after=timedelta(0))
    answer = await api.call(tenant.key, "DELETE", "/v1/adapters/gone/versions/1")
    assert answer.json() == {"id": version["id"], "object": "adapter_version", "deleted": True}
    assert digest in {forgotten for _, forgotten in api.engine.forgotten}
    await worker.run_once()
    assert config_key(digest) in stored_objects(api)  # the other tenant's version refers to it
    body = {"model": "gone", "messages": [{"role": "user", "content": "x"}]}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 404
    again = await api.call(tenant.key, "DELETE", "/v1/adapters/gone/versions/1")
    assert again.status_code == 404
    revoked = (await api.call(tenant.key, "GET", "/v1/adapters/gone/versions/1")).json()
    assert revoked["state"] == "revoked"
    assert (await api.call(other.key, "DELETE", "/v1/adapters/kept")).status_code == 200
    assert (await api.call(other.key, "GET", "/v1/adapters/kept")).status_code == 404
    await worker.run_once()
    assert config_key(digest) not in stored_objects(api)
    assert weights_key(digest) not in stored_objects(api)
    # The name is free, and numbering begins anew.
    assert (await pushed(api, other.key, "kept", seed=10))["version"] == 1


async def test_checks_survive_a_restart(make_api: MakeApi) -> None:
    """An upload that nobody has checked yet is checked by the next process."""
    async with make_api() as first:
        owner = await first.new_tenant("restart", plan="premium")
        first.state.engine_life.started = False  # nothing is checked without a base model
        files = adapter_form(first.engine.model, "later", seed=3)
        made = await first.call(owner.key, "POST", "/v1/adapters", files=files)
        assert made.status_code == 202
    async with make_api() as second:
        assert (await settled(second, owner.key, "later"))["state"] == "active"


async def test_resumable_upload(api: Api, tenant: TestTenant) -> None:
    files = adapter_form(api.engine.model, "parts", seed=4)
    weights: bytes = files["weights"][1]
    sha256 = hashlib.sha256(weights).hexdigest()
    made = await api.call(
        tenant.key, "POST", "/v1/uploads", json={"bytes": len(weights), "sha256": sha256}
    )
    assert made.status_code == 200, made.text
    path = f"/v1/uploads/{made.json()['id']}"
    middle = len(weights) // 2
    ids = []
    for data in (weights[middle:], weights[:middle]):  # any order
        part = await api.call(
            tenant.key,
            "POST",
            f"{path}/parts",
            files={"data": data, "sha256": (None, hashlib.sha256(data).hexdigest())},
        )
        assert part.status_code == 200, part.text
        ids.append(part.json()["id"])
    damaged = {"data": b"abc", "sha256": (None, "0" * 64)}
    answer = await api.call(tenant.key, "POST", f"{path}/parts", files=damaged)
    assert answer.json()["error"]["code"] == "checksum_mismatch"
    wrong = await api.call(tenant.key, "POST", f"{path}/complete", json={"part_ids": ids})
    assert wrong.json()["error"]["code"] == "checksum_mismatch"
    right = {"part_ids": ids[::-1]}
    done = await api.call(tenant.key, "POST", f"{path}/complete", json=right)
    assert done.json()["status"] == "completed", done.text
    by_id = {key: value for key, value in files.items() if key != "weights"}
    by_id["upload_id"] = (None, made.json()["id"])
    answer = await api.call(tenant.key, "POST", "/v1/adapters", files=by_id)
    assert answer.status_code == 202, answer.text
    assert (await settled(api, tenant.key, "parts"))["state"] == "active"
    twice = await api.call(tenant.key, "POST", "/v1/adapters", files=by_id)
    assert twice.status_code == 409
    assert (await api.call(tenant.key, "POST", f"{path}/cancel")).status_code == 409
    async with asyncio.timeout(10):  # its parts are given back after the check
        while any(made.json()["id"] in name for name in stored_objects(api)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_cancelled_upload(api: Api, tenant: TestTenant) -> None:
    made = (await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 3})).json()
    path = f"/v1/uploads/{made['id']}"
    await api.call(tenant.key, "POST", f"{path}/parts", files={"data": b"abc"})
    cancelled = await api.call(tenant.key, "POST", f"{path}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    late = await api.call(tenant.key, "POST", f"{path}/parts", files={"data": b"abc"})
    assert late.status_code == 409
    assert not any(name.startswith(f"uploads/{made['id']}") for name in stored_objects(api))


async def test_expired_upload(api: Api, tenant: TestTenant) -> None:
    made = (await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 3})).json()
    path = f"/v1/uploads/{made['id']}"
    await api.call(tenant.key, "POST", f"{path}/parts", files={"data": b"abc"})
    async with api.state.db.admin_session() as session:
        row = await session.get_one(UploadRow, made["id"])
        row.expires_at = datetime.now(UTC) - timedelta(seconds=1)
    await IntakeWorker(api.state).run_once()
    assert (await api.call(tenant.key, "GET", path)).json()["status"] == "expired"
    late = await api.call(tenant.key, "POST", f"{path}/parts", files={"data": b"abc"})
    assert late.status_code == 409
    async with asyncio.timeout(10):  # the application's own worker may have been quicker
        while any(name.startswith(f"uploads/{made['id']}") for name in stored_objects(api)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_deleted_while_it_is_checked(api: Api, tenant: TestTenant) -> None:
    """Its content must not stay behind: no version refers to it."""
    before = stored_objects(api)

    class Late(IntakeWorker):
        async def _activate(self, row: Any, checked: Any, digest: str) -> None:
            assert config_key(digest) in stored_objects(api)
            await api.call(tenant.key, "DELETE", "/v1/adapters/fleeting")
            await super()._activate(row, checked, digest)

    files = adapter_form(api.engine.model, "fleeting", seed=77)
    api.state.engine_life.started = False  # keeps the application's own worker away
    try:
        made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
        assert made.status_code == 202
        ready = dataclasses.replace(api.state, engine_life=EngineLife(started=True))
        await Late(ready).run_once()
    finally:
        api.state.engine_life.started = True
    assert (await api.call(tenant.key, "GET", "/v1/adapters/fleeting")).status_code == 404
    assert stored_objects(api) <= before


async def test_crash_before_the_upload_is_given_back(api: Api, tenant: TestTenant) -> None:
    """The next worker gives it back: the version says that it is still there."""

    class Crashing(IntakeWorker):
        async def _discard_checked(self) -> bool:
            raise OSError("the process ended here")

    files = adapter_form(api.engine.model, "left", seed=78)
    api.state.engine_life.started = False  # keeps the application's own worker away
    try:
        made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
        staged = f"staging/{made.json()['id']}"
        ready = dataclasses.replace(api.state, engine_life=EngineLife(started=True))
        with pytest.raises(OSError, match="ended here"):
            await Crashing(ready).run_once()
        assert (await settled(api, tenant.key, "left"))["state"] == "active"
        assert any(name.startswith(staged) for name in stored_objects(api))
        await IntakeWorker(ready).run_once()
    finally:
        api.state.engine_life.started = True
    assert not any(name.startswith(staged) for name in stored_objects(api))


async def test_what_is_done_is_audited(api: Api, tenant: TestTenant) -> None:
    await pushed(api, tenant.key, "seen", seed=6)
    await api.call(tenant.key, "DELETE", "/v1/adapters/seen")
    entries = (await api.admin("GET", "/admin/v1/audit_logs?limit=100")).json()["data"]
    actions = [entry["action"] for entry in entries if entry.get("tenant_id") == tenant.id]
    assert {"adapter_version.create", "adapter_version.activate", "adapter.delete"} <= set(actions)
    assert json.dumps(entries).count(tenant.key) == 0
