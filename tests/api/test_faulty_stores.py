"""An object store that is refused, hangs, is slow or answers nonsense, and a folder that is
read-only or full: uploads are told so by name and in time, and everything else goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from fault_proxy import FaultProxy, State, fault_proxy
from platform_fixtures import MakeApi
from signed_store import SignedStore, signed_store
from small_disk import fill, remount, small_disk
from tenora_platform import object_store
from tenora_platform.operations import probes

ASK = {"model": "fake-base", "prompt": "0123456789", "max_tokens": 6}
BOUND_S = 30
DISK_BYTES = 8 * 1024**2


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(object_store, "CONNECT_S", 0.5)
    monkeypatch.setattr(object_store, "_TRIES", 1)
    monkeypatch.setattr(probes, "ANSWER_S", 0.7)
    monkeypatch.setattr("tenora_platform.assembly._STORE_PROBED_S", 0.05)


async def upload(api: Api, tenant: TestTenant, name: str) -> httpx.Response:
    files = adapter_form(api.engine.model, name)
    async with asyncio.timeout(BOUND_S):
        return await api.call(tenant.key, "POST", "/v1/adapters", files=files)


async def warned(api: Api) -> str:
    """Of the store; everything else is served."""
    shown = await api.http.get("/readyz")
    assert shown.status_code == 200, shown.text
    said = ("The object store takes", "The object store does")
    return " ".join(each for each in shown.json()["warnings"] if each.startswith(said))


async def takes_uploads(api: Api, tenant: TestTenant) -> None:
    deadline = time.monotonic() + BOUND_S
    while (answer := await upload(api, tenant, "again")).status_code != 202:
        assert time.monotonic() < deadline, answer.text
        await asyncio.sleep(0.05)
    while await warned(api):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@asynccontextmanager
async def over_s3(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Api, FaultProxy, SignedStore]]:
    with signed_store() as store:
        async with fault_proxy(int(store.url.rpartition(":")[2])) as proxy:
            for name, value in {
                "AWS_REGION": "eu-central-1",
                "AWS_ALLOW_HTTP": "true",
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
                "AWS_ACCESS_KEY_ID": store.key,
                "AWS_SECRET_ACCESS_KEY": store.secret,
            }.items():
                monkeypatch.setenv(name, value)
            async with make_api(object_store="s3://hidden-away/prefix") as api:
                yield api, proxy, store


STATES: dict[State, tuple[str, ...]] = {
    "refused": ("refused",),
    "hanging": ("timeout",),
    "garbage": ("refused", "failed"),
}


@pytest.mark.parametrize("state", STATES)
async def test_a_faulty_bucket(
    state: State, make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with over_s3(make_api, monkeypatch) as (api, proxy, store):
        tenant = await api.new_tenant()
        assert (await upload(api, tenant, "first")).status_code == 202
        assert await warned(api) == ""
        await proxy.set(state)
        answer = await upload(api, tenant, "second")
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "object_store_unavailable"
        assert int(answer.headers["retry-after"]) > 0
        deadline = time.monotonic() + BOUND_S
        while not (said := await warned(api)):  # the last good answer holds for a while
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert any(f"does not answer ({each})" in said for each in STATES[state]), said
        for path in ("/readyz", "/metrics"):
            shown = (await api.http.get(path)).text
            for place in ("127.0.0.1", proxy.port, store.key, "hidden-away"):
                assert str(place) not in shown
        asked = await api.call(tenant.key, "POST", "/v1/completions", json=ASK)
        assert asked.status_code == 200
        await proxy.set("works")
        await takes_uploads(api, tenant)


async def test_a_slow_bucket_takes_uploads(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with over_s3(make_api, monkeypatch) as (api, proxy, _):
        tenant = await api.new_tenant()
        await proxy.set("slow")
        await takes_uploads(api, tenant)


@pytest.fixture
def disk(tmp_path: Path) -> Any:
    return small_disk(tmp_path / "disk", DISK_BYTES)


async def test_a_folder_that_is_read_only(disk: Any, make_api: MakeApi) -> None:
    with disk as folder:
        async with make_api(object_store=str(folder), disk_reserve=0) as api:
            tenant = await api.new_tenant()
            remount(folder, "ro")
            answer = await upload(api, tenant, "second")
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["code"] == "object_store_unavailable"
            said = await warned(api)
            assert "takes no writes (read-only)" in said
            assert str(folder) not in (await api.http.get("/readyz")).text
            assert str(folder) in (await api.admin("GET", "/readyz")).text
            remount(folder, "rw")
            await takes_uploads(api, tenant)


async def test_a_folder_that_is_full(disk: Any, make_api: MakeApi) -> None:
    with disk as folder:
        async with make_api(object_store=str(folder), disk_reserve=0) as api:
            tenant = await api.new_tenant()
            filler = fill(folder)
            answer = await upload(api, tenant, "second")
            assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
            assert "takes no writes (full)" in await warned(api)
            filler.unlink()
            await takes_uploads(api, tenant)
