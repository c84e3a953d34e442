"""What tests of an object store and its database do with an installation."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import obstore
import psycopg

from adapter_files import adapter_form
from api_harness import SECRET, Api, TestTenant
from platform_fixtures import plain_url
from served_api import until
from shell import run
from tenora_engine.adapters.identity import config_key, weights_key
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.settings import Settings


@contextmanager
def database(settings: Settings) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(plain_url(str(settings.database_url)), autocommit=True) as link:
        yield link


def make_old(settings: Settings) -> None:
    """Everything in the store was written two hours ago, and the store adopted then."""
    then = time.time() - 7200
    for path in (settings.data_dir / "objects").rglob("*"):
        os.utime(path, (then, then))
    with database(settings) as link:
        link.execute("UPDATE database_identity SET adopted_at = adopted_at - interval '2 hours'")


async def pushed(api: Api, tenant: TestTenant, name: str, seed: int) -> str:
    """An active version's digest."""
    files = adapter_form(api.engine.model, name, seed=seed)
    assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202
    return await become_active(api, tenant, name)


async def become_active(api: Api, tenant: TestTenant, name: str) -> str:
    async with asyncio.timeout(30):
        while True:
            await IntakeWorker(api.state).run_once()
            found = (await api.call(tenant.key, "GET", f"/v1/adapters/{name}")).json()
            if found["state"] == "active":
                return str(found["digest"])
            await asyncio.sleep(0.02)


async def lost(api: Api, count: int) -> set[str]:
    """Objects as crashes leave them."""
    paths = {f"uploads/upload_nobodys/part_{number}" for number in range(count)}
    for path in paths:
        await obstore.put_async(api.state.objects, path, b"lost")
    return paths


def contents(*digests: str) -> set[str]:
    return {key(digest) for digest in digests for key in (config_key, weights_key)}


async def warnings(api: Api) -> str:
    await until(lambda: api.state.store.told is not None)
    answer = await api.http.get("/readyz")
    assert answer.status_code == 200, answer.text
    return " ".join(answer.json()["warnings"])


async def stopped(api: Api) -> bool:
    text = (await api.http.get("/metrics")).text
    return "tenora_store_sweep_stopped 1.0" in text


def tenora(settings: Settings, *words: str) -> tuple[int, str]:
    return run(
        *words,
        TENORA_DATABASE_URL=str(settings.database_url),
        TENORA_SECRET=SECRET,
        TENORA_DATA_DIR=str(settings.data_dir),
    )
