"""Storage is reserved before a byte comes: what is on its way counts in every process, is nobody's
soon after its own has died, and is never taken from under an upload that is about to be a version.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text, update

from adapter_files import adapter_config, adapter_tensors, safetensors
from api_harness import Api, TestTenant, stored_objects
from platform_fixtures import MakeApi
from tenora_platform.registry import repository
from tenora_platform.registry.collector import Collector
from tenora_platform.registry.tables import UploadRow
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.state import EngineLife

KB = 1000
PLAN_BYTES = 1_000 * KB
HEADERS = {"content-type": "multipart/form-data; boundary=b"}
CONFIG = json.dumps(adapter_config()).encode()


def head(name: str) -> bytes:
    parts = {"name": name.encode(), "adapter_config": CONFIG}
    fields = b"".join(
        b'--b\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (key.encode(), value)
        for key, value in parts.items()
    )
    return fields + b'--b\r\ncontent-disposition: form-data; name="weights"\r\n\r\n'


END = b"\r\n--b--\r\n"


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    await api.put_plan("small", {"adapter_bytes": PLAN_BYTES})
    return await api.new_tenant("small", plan="small")


class Coming:
    """An upload whose weights are half here."""

    def __init__(self) -> None:
        self.half = asyncio.Event()
        self.go_on = asyncio.Event()
        self.answer: asyncio.Task[httpx.Response] | None = None

    async def status(self) -> int:
        assert self.answer is not None
        self.go_on.set()
        async with asyncio.timeout(20):
            return (await self.answer).status_code


@asynccontextmanager
async def coming(
    api: Api, tenant: TestTenant, weights: bytes, *, declared: bool = True
) -> AsyncIterator[Coming]:
    it, opening = Coming(), head("coming")

    async def body() -> AsyncIterator[bytes]:
        yield opening + weights[: len(weights) // 2]
        it.half.set()
        await it.go_on.wait()
        yield weights[len(weights) // 2 :] + END

    length = {"content-length": str(len(opening) + len(weights) + len(END))} if declared else {}
    it.answer = asyncio.create_task(
        api.call(tenant.key, "POST", "/v1/adapters", content=body(), headers=HEADERS | length)
    )
    async with asyncio.timeout(20):
        await it.half.wait()
    try:
        yield it
    finally:
        it.answer.cancel()
        await asyncio.gather(it.answer, return_exceptions=True)


async def reserve(api: Api, tenant: TestTenant, size: int) -> tuple[int, str | None]:
    made = await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": size})
    return made.status_code, made.json().get("error", {}).get("code")


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_what_is_on_its_way_counts_in_every_process(
    api: Api, make_api: MakeApi, tenant: TestTenant, declared: bool
) -> None:
    async with (
        make_api() as another,
        coming(api, tenant, bytes(700 * KB), declared=declared) as upload,
    ):
        for process in (api, another):
            assert await reserve(process, tenant, 400 * KB) == (413, "adapter_storage_exceeded")
        large = {"name": "x", "adapter_config": CONFIG, "weights": bytes(900 * KB)}
        files = {key: (None, value) for key, value in large.items()}
        refused = await another.call(tenant.key, "POST", "/v1/adapters", files=files)
        assert refused.json()["error"]["code"] == "adapter_storage_exceeded"
        assert await upload.status() == 202
        assert await reserve(another, tenant, 400 * KB) == (413, "adapter_storage_exceeded")
        assert (await reserve(another, tenant, 290 * KB))[0] == 200


async def test_what_is_broken_off_counts_no_more(api: Api, tenant: TestTenant) -> None:
    async with coming(api, tenant, bytes(700 * KB)):
        assert (await reserve(api, tenant, 400 * KB))[0] == 413
    async with asyncio.timeout(20):
        while (await reserve(api, tenant, 1000 * KB))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_two_processes_cannot_pass_the_limit_together(
    api: Api, make_api: MakeApi, tenant: TestTenant
) -> None:
    files = {"adapter_config": (None, CONFIG), "weights": bytes(300 * KB)}
    most = 0
    async with make_api() as another:
        over = asyncio.Event()

        async def watch() -> None:
            nonlocal most
            while not over.is_set():
                async with api.state.db.admin_session() as session:
                    most = max(most, await repository.stored_bytes(session, tenant.id))

        watching = asyncio.create_task(watch())
        uploads = [
            process.call(
                tenant.key, "POST", "/v1/adapters", files=files | {"name": (None, f"a{number}")}
            )
            for number in range(4)
            for process in (api, another)
        ]
        resumable = [reserve(process, tenant, 300 * KB) for process in (api, another) * 2]
        made = await asyncio.gather(*uploads)
        reserved = await asyncio.gather(*resumable)
        over.set()
        await watching
    taken = sum(answer.status_code == 202 for answer in made)
    taken += sum(status == 200 for status, _ in reserved)
    assert taken >= 1  # three fit, and one more for each that has been checked and rejected
    assert most <= PLAN_BYTES


async def receiving(api: Api, tenant: TestTenant) -> list[str]:
    async with api.state.db.admin_session() as session:
        query = select(UploadRow.id).where(
            UploadRow.tenant_id == tenant.id, UploadRow.status == "receiving"
        )
        return list(await session.scalars(query))


async def lapse(api: Api, tenant: TestTenant) -> None:
    """As if its process had died: nobody renews it."""
    async with api.state.db.admin_session() as session:
        await session.execute(
            update(UploadRow)
            .where(UploadRow.tenant_id == tenant.id)
            .values(expires_at=datetime.now(UTC) - timedelta(seconds=1))
        )


async def test_what_nobody_renews_is_given_back_and_makes_no_version(
    api: Api, tenant: TestTenant
) -> None:
    weights = safetensors(adapter_tensors(api.engine.model))
    async with coming(api, tenant, weights) as upload:
        version_id = (await receiving(api, tenant))[0]
        await lapse(api, tenant)
        assert (await reserve(api, tenant, PLAN_BYTES))[0] == 200, "it counts no more"
        await IntakeWorker(api.state).run_once()
        assert await receiving(api, tenant) == []
        assert await upload.status() in (409, 413), "its claim is gone"
    assert not any(version_id in name for name in stored_objects(api))


async def test_the_collector_leaves_what_is_about_to_be_a_version(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old it is: its reservation says whose it is until the version does."""
    weights = safetensors(adapter_tensors(api.engine.model, seed=8))
    collector = Collector(api.state, grace=timedelta(seconds=-1))
    swept: list[set[str]] = []
    by_name = repository.adapter_by_name

    async def sweep_before_the_commit(session: Any, tenant_id: str, name: str, **more: Any) -> Any:
        await collector.sweep()
        swept.append(stored_objects(api))
        return await by_name(session, tenant_id, name, **more)

    monkeypatch.setattr(repository, "adapter_by_name", sweep_before_the_commit)
    api.state.engine_life.started = False
    try:
        files = {"name": (None, "kept"), "adapter_config": (None, CONFIG), "weights": weights}
        made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
        assert made.status_code == 202, made.text
        assert swept
        await collector.sweep()
        life = EngineLife(started=True)
        await IntakeWorker(dataclasses.replace(api.state, engine_life=life)).run_once()
    finally:
        api.state.engine_life.started = True
    monkeypatch.undo()
    found = await api.call(tenant.key, "GET", "/v1/adapters/kept/versions/1")
    assert found.json()["state"] == "active", "nothing of it was taken"
    async with api.state.db.admin_session() as session:
        left = await session.scalar(text("select count(*) from uploads where status='receiving'"))
    assert left == 0
