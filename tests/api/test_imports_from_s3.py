"""Imports from a store of objects over HTTP that checks signatures, and how many run at once over
all processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from adapter_files import adapter_config, adapter_tensors, safetensors
from api_harness import Api, TestTenant
from platform_fixtures import MakeApi
from signed_store import SignedStore, signature, signed_store
from tenora_platform.errors import RateLimitedError
from tenora_platform.registry import import_places, importing

_REGION = {
    "AWS_REGION": "eu-central-1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
}


def test_signatures_are_those_of_the_documentation() -> None:
    """Amazon S3, "Authenticating Requests: Using the Authorization Header", GET Object."""
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "range": "bytes=0-9",
        "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "x-amz-date": "20130524T000000Z",
    }
    names = "host;range;x-amz-content-sha256;x-amz-date"
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    scope = "20130524/us-east-1/s3/aws4_request"
    assert signature(secret, "GET", "/test.txt", headers, names, scope) == (
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SignedStore]:
    with signed_store() as made:
        for name, value in _REGION.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", made.secret)
        yield made


@pytest.fixture
async def importing_api(make_api: MakeApi) -> AsyncIterator[Api]:
    async with make_api(import_prefixes="s3://adapters/of/{tenant}") as api:
        yield api


def put(store: SignedStore, api: Api, tenant: TestTenant, name: str) -> str:
    folder = f"adapters/of/{tenant.id}/{name}"
    store.objects[f"{folder}/adapter_config.json"] = json.dumps(adapter_config()).encode()
    weights = safetensors(adapter_tensors(api.engine.model))
    store.objects[f"{folder}/adapter_model.safetensors"] = weights
    return f"s3://{folder}"


async def imported(api: Api, tenant: TestTenant, source: str) -> httpx.Response:
    body = {"name": "a", "source": source}
    return await api.call(tenant.key, "POST", "/v1/adapters/import", json=body)


async def test_a_folder_of_a_bucket_becomes_a_version(
    importing_api: Api, store: SignedStore
) -> None:
    api = importing_api
    tenant = await api.new_tenant()
    made = await imported(api, tenant, put(store, api, tenant, "run=7/a+b"))
    assert made.status_code == 202, made.text
    path = f"/v1/adapters/a/versions/{made.json()['version']}"
    async with asyncio.timeout(30):
        while (found := (await api.call(tenant.key, "GET", path)).json())["state"] != "active":
            assert found["state"] != "rejected", found
            await asyncio.sleep(0.05)
    assert store.answered >= 3
    assert store.refused == 0
    missing = await imported(api, tenant, f"s3://adapters/of/{tenant.id}/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, "config_missing")


async def test_a_wrong_secret_is_the_operators_affair(
    importing_api: Api, store: SignedStore
) -> None:
    """Nothing of the store's answer or its address is told."""
    api = importing_api
    tenant = await api.new_tenant()
    source = put(store, api, tenant, "x")
    store.secret = "another secret"
    refused = await imported(api, tenant, source)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "source_unavailable")
    assert store.refused
    assert not store.answered
    assert "127.0.0.1" not in refused.text
    assert "Signature" not in refused.text


async def refusal(answer: httpx.Response) -> tuple[int, str]:
    assert int(answer.headers["retry-after-ms"]) > 0
    return answer.status_code, answer.json()["error"]["code"]


async def test_so_many_run_at_once_over_all_processes(
    make_api: MakeApi, store: SignedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two applications over one Redis stand for two processes."""
    goes_on, begun = asyncio.Event(), asyncio.Queue[None]()
    real = importing._import

    async def waits(*given: Any) -> Any:
        begun.put_nowait(None)
        await goes_on.wait()
        return await real(*given)

    monkeypatch.setattr(importing, "_import", waits)
    prefixes = "s3://adapters/of/{tenant}"
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(make_api(import_prefixes=prefixes))
        two = await stack.enter_async_context(make_api(import_prefixes=prefixes))
        tenants = [await one.new_tenant() for _ in range(import_places.IN_ALL + 1)]
        sources = [put(store, one, tenant, "x") for tenant in tenants]
        running = []
        for number in range(import_places.IN_ALL):
            api = (one, two)[number % 2]
            running.append(asyncio.create_task(imported(api, tenants[number], sources[number])))
            await asyncio.wait_for(begun.get(), 10)
        mine = await imported(two, tenants[0], sources[0])
        assert await refusal(mine) == (429, "import_running")
        late = await imported(one, tenants[-1], sources[-1])
        assert await refusal(late) == (429, "imports_busy")
        # A source that is not allowed is told so, whatever runs.
        wrong = await imported(one, tenants[-1], "s3://elsewhere/x")
        assert wrong.json()["error"]["code"] == "source_not_allowed"
        goes_on.set()
        assert {made.status_code for made in await asyncio.gather(*running)} == {202}
        assert (await imported(one, tenants[-1], sources[-1])).status_code == 202
        assert (await imported(two, tenants[0], sources[0])).status_code == 202


async def test_a_place_is_given_back_and_one_whose_process_died_lapses(
    importing_api: Api, store: SignedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = importing_api
    tenant = await api.new_tenant()
    source = put(store, api, tenant, "x")
    refused = await imported(api, tenant, f"{source}/nothing")
    assert refused.status_code == 400
    assert await api.state.redis.zcard(import_places.KEY) == 0
    lapses_ms = 10**12  # long ago: its process has not renewed it
    await api.state.redis.zadd(import_places.KEY, {f"{tenant.id}:upload_1": lapses_ms})
    assert (await imported(api, tenant, source)).status_code == 202
    monkeypatch.setattr(import_places, "RENEW_S", 0.05)
    monkeypatch.setattr(import_places, "LEASE_S", 0.3)
    async with import_places.import_place(api.state.redis, tenant.id):
        await asyncio.sleep(0.8)  # it is renewed, as long as its process lives
        with pytest.raises(RateLimitedError):
            async with import_places.import_place(api.state.redis, tenant.id):
                pass
