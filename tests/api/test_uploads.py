"""What uploads promise when others are about: nobody waits for a hash, one upload becomes one
version, what is open counts as stored, and a crash leaves nothing for ever."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import obstore
import pytest

from adapter_files import adapter_config, adapter_form, adapter_tensors, form, safetensors
from api_harness import Api, TestTenant, stored_objects
from tenora_engine.adapters.identity import config_key, weights_key
from tenora_platform.locks import try_lock
from tenora_platform.registry.collector import Collector
from tenora_platform.registry.storage import AdapterStorage, staged_weights
from tenora_platform.registry.worker import IntakeWorker

PATIENCE_S = 20


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("uploads", plan="premium")


class Uploading:
    """One resumable upload, as a client sees it."""

    def __init__(self, api: Api, key: str, upload_id: str) -> None:
        self.id = upload_id
        self._api = api
        self._key = key

    async def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self._api.call(self._key, method, f"/v1/uploads/{self.id}{path}", **more)

    async def part(self, data: bytes) -> httpx.Response:
        return await self._call("POST", "/parts", files={"data": data})

    async def complete(self, parts: list[str]) -> httpx.Response:
        return await self._call("POST", "/complete", json={"part_ids": parts})

    async def cancel(self) -> httpx.Response:
        return await self._call("POST", "/cancel")

    async def status(self) -> str:
        return str((await self._call("GET", "")).json()["status"])


async def begun(api: Api, key: str, size: int) -> Uploading:
    made = await api.call(key, "POST", "/v1/uploads", json={"bytes": size})
    assert made.status_code == 200, made.text
    return Uploading(api, key, made.json()["id"])


async def completed(api: Api, key: str, data: bytes) -> Uploading:
    """In two parts."""
    upload = await begun(api, key, len(data))
    middle = len(data) // 2
    ids = [(await upload.part(half)).json()["id"] for half in (data[:middle], data[middle:])]
    answer = await upload.complete(ids)
    assert answer.json()["status"] == "completed", answer.text
    assert answer.json()["sha256"] == hashlib.sha256(data).hexdigest()
    return upload


def by_id(files: dict[str, Any], upload: Uploading) -> dict[str, Any]:
    rest = {key: value for key, value in files.items() if key != "weights"}
    return rest | {"upload_id": (None, upload.id)}


async def test_two_requests_cannot_use_one_upload(api: Api, tenant: TestTenant) -> None:
    files = adapter_form(api.engine.model, "once", seed=41)
    upload = await completed(api, tenant.key, files["weights"][1])
    answers = await asyncio.gather(
        *(
            api.call(tenant.key, "POST", "/v1/adapters", files=by_id(files, upload))
            for _ in range(4)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409, 409]
    adapter = (await api.call(tenant.key, "GET", "/v1/adapters/once")).json()
    assert [version["version"] for version in adapter["versions"]] == [1]
    assert await upload.status() == "used"


async def test_nobody_waits_for_the_hash_of_an_upload(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store gives its parts slowly, the upload can be cancelled: no lock is held."""
    upload = await begun(api, tenant.key, 6)
    ids = [(await upload.part(data)).json()["id"] for data in (b"abc", b"def")]
    reading, go_on = asyncio.Event(), asyncio.Event()
    get = obstore.get_async

    async def slow(objects: Any, path: str, **more: Any) -> Any:
        if upload.id in path:
            reading.set()
            await go_on.wait()
        return await get(objects, path, **more)

    monkeypatch.setattr(obstore, "get_async", slow)
    completing = asyncio.create_task(upload.complete(ids))
    async with asyncio.timeout(PATIENCE_S):
        await reading.wait()
        assert (await upload.cancel()).json()["status"] == "cancelled"
        go_on.set()
        answer = await completing
    assert answer.status_code == 409, answer.text
    assert "cancelled" in answer.json()["error"]["message"]


async def test_nothing_is_hashed_on_the_event_loop(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed_by: list[threading.Thread] = []
    plain = hashlib.sha256

    class Watched:
        def __init__(self, data: bytes = b"") -> None:
            self._hash = plain(data)

        def update(self, data: bytes) -> None:
            if len(data) > 256 * 1024:
                hashed_by.append(threading.current_thread())
            self._hash.update(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._hash, name)

    monkeypatch.setattr(hashlib, "sha256", Watched)
    data = bytes(range(256)) * 12_000  # 3 MB
    upload = await completed(api, tenant.key, data)
    files = form("wide", adapter_config(), data)
    answer = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    assert answer.status_code == 202
    assert await upload.status() == "completed"
    assert len(hashed_by) >= 5, "two parts, two parts again, the weights"
    assert threading.main_thread() not in hashed_by


async def test_open_uploads_count_as_stored(api: Api) -> None:
    await api.put_plan("tight", {"adapters": 9, "adapter_bytes": 10_000})
    tight = await api.new_tenant("tight", plan="tight")
    first = await begun(api, tight.key, 6000)
    answer = await api.call(tight.key, "POST", "/v1/uploads", json={"bytes": 6000})
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("adapter_storage_exceeded", "bytes")
    direct = form("direct", adapter_config(), bytes(6000))
    assert (await api.call(tight.key, "POST", "/v1/adapters", files=direct)).status_code == 413
    both = await asyncio.gather(
        *(api.call(tight.key, "POST", "/v1/uploads", json={"bytes": 4000}) for _ in range(5))
    )
    assert sorted(answer.status_code for answer in both) == [200, 413, 413, 413, 413]
    await first.cancel()
    # Once it is a version it counts once, not twice.
    size = 6000
    data = bytes(size)
    upload = await completed(api, tight.key, data)
    files = by_id(form("late", adapter_config(), data), upload)
    assert (await api.call(tight.key, "POST", "/v1/adapters", files=files)).status_code == 202


async def test_no_more_bytes_than_declared(api: Api, tenant: TestTenant) -> None:
    upload = await begun(api, tenant.key, 5)
    first = await upload.part(b"abc")
    again = await upload.part(b"abc")  # after a broken connection
    assert again.json()["id"] == first.json()["id"]
    over = await upload.part(b"defg")
    assert (over.status_code, over.json()["error"]["code"]) == (413, "request_too_large")
    assert (await upload.part(b"toolong")).status_code == 413
    second = await upload.part(b"de")
    lying = sum(name.startswith(f"uploads/{upload.id}/") for name in stored_objects(api))
    assert lying == 2, "what was refused lies nowhere"
    answer = await upload.complete([first.json()["id"], second.json()["id"]])
    assert answer.json()["sha256"] == hashlib.sha256(b"abcde").hexdigest()


async def test_a_file_of_equal_parts(api: Api, tenant: TestTenant) -> None:
    upload = await begun(api, tenant.key, 9)
    ids = [(await upload.part(b"abc")).json()["id"] for _ in range(3)]
    answer = await upload.complete(ids)
    assert answer.json()["sha256"] == hashlib.sha256(b"abc" * 3).hexdigest()


async def test_an_upload_of_parts_is_checked_and_given_back(api: Api, tenant: TestTenant) -> None:
    weights = safetensors(adapter_tensors(api.engine.model, seed=55))
    files = form("pieces", adapter_config(), weights)
    upload = await completed(api, tenant.key, weights)
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=by_id(files, upload))
    assert made.status_code == 202, made.text
    async with asyncio.timeout(PATIENCE_S):
        while any(upload.id in name for name in stored_objects(api)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    adapter = (await api.call(tenant.key, "GET", "/v1/adapters/pieces")).json()
    digest = adapter["digest"]
    assert adapter["state"] == "active"
    kept = await obstore.get_async(api.state.objects, weights_key(digest))
    assert bytes(await kept.bytes_async()) == weights


@pytest.fixture
async def crashed(api: Api) -> set[str]:
    """Objects as processes leave them that end at the wrong moment."""
    storage = AdapterStorage(api.state.objects, deleting=api.state.store.deleting)
    await storage.stage_config("staging/adv_nobodys", b"{}")  # before its row was committed
    for key in (staged_weights("staging/adv_nobodys"), "uploads/upload_nobodys/part_1"):
        await obstore.put_async(api.state.objects, key, b"lost")
    digest = "sha256:" + "0" * 64
    with tempfile.TemporaryFile() as weights:
        weights.write(b"lost")
        await storage.publish(digest, b"{}", weights)  # deleted while it was checked
    unfinished = api.state.settings.data_dir / "objects" / f"{weights_key(digest)}#1"
    unfinished.write_bytes(b"half")
    return {
        "staging/adv_nobodys/adapter_config.json",
        "staging/adv_nobodys/adapter_model.safetensors",
        "uploads/upload_nobodys/part_1",
        weights_key(digest),
        config_key(digest),
        f"{weights_key(digest)}#1",
    }


async def test_what_nobody_owns_is_removed(
    api: Api, tenant: TestTenant, crashed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = safetensors(adapter_tensors(api.engine.model, seed=56))
    files = form("served", adapter_config(), weights)
    await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    await api.call(tenant.key, "POST", "/v1/adapters", files=files | {"name": (None, "revoked")})
    await _no_upload_waits(api)
    await api.call(tenant.key, "DELETE", "/v1/adapters/revoked")  # its content is not released yet
    half = await begun(api, tenant.key, 10)
    await half.part(b"abc")
    await _a_crash_at_cancelling(api, tenant, monkeypatch)
    api.state.engine_life.started = False  # keeps the application's own worker away
    try:
        pending = await completed(api, tenant.key, weights)
        await api.call(tenant.key, "POST", "/v1/adapters", files=by_id(files, pending))
        before = stored_objects(api)
        assert await Collector(api.state).sweep() == 0, "what is younger than the grace time stays"
        assert stored_objects(api) == before
        removed = await Collector(api.state, grace=timedelta(0)).sweep()
        gone = before - stored_objects(api)
        assert crashed < gone
        assert {name.split("/")[0] for name in gone - crashed} == {"uploads"}
        assert len(gone) == removed == len(crashed) + 1
    finally:
        api.state.engine_life.started = True
    await _no_upload_waits(api)
    for version in (1, 2):
        found = await api.call(tenant.key, "GET", f"/v1/adapters/served/versions/{version}")
        assert found.json()["state"] == "active", "what it needed was not touched"
    assert await half.status() == "pending"


async def _no_upload_waits(api: Api) -> None:
    await IntakeWorker(api.state).run_once()
    async with asyncio.timeout(PATIENCE_S):
        while any(name.startswith("staging/adv_0") for name in stored_objects(api)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _a_crash_at_cancelling(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await begun(api, tenant.key, 10)
    await upload.part(b"abc")

    async def crash(*_: object) -> None:
        raise ConnectionError("the process ended here")

    with monkeypatch.context() as patch:
        patch.setattr(AdapterStorage, "discard", crash)
        assert (await upload.cancel()).status_code == 500
    assert await upload.status() == "cancelled"


async def test_one_process_sweeps_at_a_time(api: Api, crashed: set[str]) -> None:
    collector = Collector(api.state, grace=timedelta(0))
    async with api.state.db.admin_session() as session:
        assert await try_lock(session, "object-store:collector")
        assert await collector.sweep() == 0
    assert crashed <= stored_objects(api)
    assert await collector.sweep() >= len(crashed)
    assert not crashed & stored_objects(api)


MakeApi = Callable[..., Any]


async def test_a_starting_process_sweeps(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = asyncio.Event()

    async def sweep(_: Collector) -> int:
        swept.set()
        return 0

    monkeypatch.setattr(Collector, "sweep", sweep)
    async with make_api(), asyncio.timeout(PATIENCE_S):
        await swept.wait()
