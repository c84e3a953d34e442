"""A disk without room: uploads are answered 507 in words, nothing of them stays, and nobody else
notices. On a real small disk where a test may mount one, and by the reserve everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapter_files import adapter_config, adapter_form, form
from api_harness import Api, TestTenant
from platform_fixtures import Servers
from small_disk import fill
from small_disk import small_disk as mounted
from tenora_platform.audit.witness import OBJECT as ENDS
from tenora_platform.object_store import PROBE
from tenora_platform.registry import storage
from tenora_platform.registry.disk import StorageFullError, full_disk_named
from tenora_platform.registry.store_identity import OBJECT
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.state import EngineLife

MakeApi = Callable[..., Any]
DISK_BYTES = 8 * 1024**2
MB = 1_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", DISK_BYTES) as folder:
        yield folder


@pytest.fixture(params=["asked first", "met by the write"])
def met(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full disk is seen by asking for room, or, where others are quicker, by the write."""
    if request.param == "met by the write":
        monkeypatch.setattr(storage, "require_room", lambda *_: None)


async def direct(api: Api, key: str, name: str, size: int) -> httpx.Response:
    files = form(name, adapter_config(), bytes(size))
    return await api.call(key, "POST", "/v1/adapters", files=files)


def left(data: Path) -> list[Path]:
    """Files of uploads."""
    ours = ("filler", OBJECT, PROBE, ENDS)
    return [path for path in data.rglob("*") if path.is_file() and path.name not in ours]


async def others_are_served(api: Api, tenant: TestTenant) -> None:
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}]}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert (await api.call(tenant.key, "GET", "/v1/adapters")).status_code == 200
    assert (await api.http.get("/readyz")).status_code == 200


def says_so(answer: httpx.Response) -> None:
    assert answer.status_code == 507, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "storage_full"
    assert "kept none of it" in error["message"]
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.usefixtures("met")
@pytest.mark.parametrize("size", [12 * MB, 9 * MB], ids=["far too large", "just too large"])
async def test_uploads_on_a_full_disk(make_api: MakeApi, small_disk: Path, size: int) -> None:
    async with make_api(data_dir=small_disk, disk_reserve=0) as api:
        tenant = await api.new_tenant("large", plan="premium")
        other = await api.new_tenant("other", plan="premium")
        says_so(await direct(api, tenant.key, "large", size))
        assert left(small_disk) == []
        assert (await api.call(tenant.key, "GET", "/v1/adapters")).json()["data"] == []
        fill(small_disk)
        says_so(await direct(api, tenant.key, "large", MB))
        await others_are_served(api, other)
        assert left(small_disk) == []
        (small_disk / "filler").unlink()
        assert (await direct(api, tenant.key, "large", MB)).status_code == 202


@pytest.mark.usefixtures("met")
async def test_parts_on_a_full_disk(make_api: MakeApi, small_disk: Path) -> None:
    """The upload stays open; the part can be sent again."""
    async with make_api(data_dir=small_disk, disk_reserve=0) as api:
        tenant = await api.new_tenant("parts", plan="premium")
        made = await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 6 * MB})
        path = f"/v1/uploads/{made.json()['id']}"
        (small_disk / "filler").write_bytes(bytes(DISK_BYTES - 2 * MB))
        part = {"files": {"data": bytes(3 * MB)}}
        says_so(await api.call(tenant.key, "POST", f"{path}/parts", **part))
        assert left(small_disk) == []
        upload = (await api.call(tenant.key, "GET", path)).json()
        assert (upload["status"], upload["parts"]) == ("pending", [])
        (small_disk / "filler").unlink()
        assert (await api.call(tenant.key, "POST", f"{path}/parts", **part)).status_code == 200


async def test_a_check_waits_for_room(
    make_api: MakeApi, small_disk: Path, servers: Servers
) -> None:
    own = servers.new_database()  # a version of another store would wait for that
    async with make_api(data_dir=small_disk, disk_reserve=0, database_url=own) as api:
        tenant = await api.new_tenant("waits", plan="premium")
        api.state.engine_life.started = False  # keeps the application's own worker away
        files = adapter_form(api.engine.model, "waits", seed=31)
        assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202
        fill(small_disk)
        worker = IntakeWorker(dataclasses.replace(api.state, engine_life=EngineLife(started=True)))
        with pytest.raises((StorageFullError, OSError)):
            await worker.run_once()
        found = (await api.call(tenant.key, "GET", "/v1/adapters/waits")).json()
        assert found["state"] == "validating"
        (small_disk / "filler").unlink()
        await worker.run_once()
        found = (await api.call(tenant.key, "GET", "/v1/adapters/waits")).json()
        assert found["state"] == "active"


async def test_uploads_leave_the_reserve(make_api: MakeApi) -> None:
    """No disk has that much free: everything else goes on."""
    async with make_api(disk_reserve=2**60) as api:
        tenant = await api.new_tenant("reserve", plan="premium")
        says_so(await direct(api, tenant.key, "more", 1000))
        says_so(await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 10}))
        await others_are_served(api, tenant)


def test_other_failures_keep_their_names() -> None:
    with pytest.raises(PermissionError), full_disk_named():
        raise PermissionError(13, "Permission denied")


async def test_an_engine_that_cannot_record_usage_is_not_ready(make_api: MakeApi) -> None:
    """It takes no new work; the API says why, and goes on when the engine does."""
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}]}
    async with make_api() as api:
        tenant = await api.new_tenant("refused", plan="premium")
        api.engine.refuses = "usage cannot be recorded: No space left on device"
        ready = await api.http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "not_ready")
        assert "accepts no new requests" in ready.json()["reason"]
        told = (await api.admin("GET", "/readyz")).json()["reason"]
        assert "usage cannot be recorded: No space left" in told
        refused = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
        assert refused.status_code == 503
        error = refused.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "engine_unavailable"
        assert "accepts no new requests" in error["message"]
        assert "tenora_engine_refuses 1.0" in (await api.http.get("/metrics")).text
        assert api.engine.requests == []
        api.engine.refuses = None
        await others_are_served(api, tenant)
