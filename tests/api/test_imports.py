"""Imports from folders that the operator allows: read as a pushed folder is, checked as an upload
is, and no way leads from a tenant's text to any other file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from adapter_files import adapter_config, adapter_tensors, safetensors
from api_harness import Api, TestTenant, stored_objects
from draft_files import draft_file, draft_tensors
from platform_fixtures import MakeApi
from tenora_platform.errors import BadRequestError
from tenora_platform.registry.sources import ObjectFolder, open_source, read_whole
from trainers import sharded


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """What the operator allows: a folder of each tenant's and one for all."""
    return tmp_path / "shared"


@pytest.fixture
async def importing(make_api: MakeApi, shared: Path) -> AsyncIterator[Api]:
    prefixes = f"file://{shared}/tenants/{{tenant}}, file://{shared}/common/"
    async with make_api(import_prefixes=prefixes) as api:
        yield api


def put(folder: Path, api: Api, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(adapter_config(**changes)))
    weights = safetensors(adapter_tensors(api.engine.model))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


async def imported(api: Api, tenant: TestTenant, source: str, name: str = "a") -> httpx.Response:
    body = {"name": name, "source": source}
    return await api.call(tenant.key, "POST", "/v1/adapters/import", json=body)


async def checked(api: Api, tenant: TestTenant, made: httpx.Response) -> dict[str, Any]:
    assert made.status_code == 202, made.text
    path = f"/v1/adapters/{made.json()['name']}/versions/{made.json()['version']}"
    for _ in range(1000):
        found: dict[str, Any] = (await api.call(tenant.key, "GET", path)).json()
        if found["state"] not in ("quarantined", "validating"):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError("not checked")


async def nothing_kept(api: Api, tenant: TestTenant) -> bool:
    """Neither a version nor a byte of one."""
    listed = (await api.call(tenant.key, "GET", "/v1/adapters")).json()["data"]
    staged = [path for path in stored_objects(api) if path.startswith("staging/")]
    return listed == [] and staged == []


async def test_a_folder_becomes_a_version(importing: Api, shared: Path) -> None:
    tenant = await importing.new_tenant()
    mine = put(shared / "tenants" / tenant.id / "run-7" / "final", importing)
    whole = await checked(importing, tenant, await imported(importing, tenant, f"file://{mine}/"))
    assert whole["state"] == "active"
    sharded(mine, 3)
    merged = await checked(importing, tenant, await imported(importing, tenant, f"file://{mine}"))
    assert merged["state"] == "active"
    first, second = (each["validation"]["facts"] for each in (whole, merged))
    assert first["modules"] == second["modules"]
    put(mine, importing, use_dora=True)
    bad = await checked(importing, tenant, await imported(importing, tenant, f"file://{mine}"))
    assert bad["state"] == "rejected"
    only = {"action": "adapter_version.create"}
    log = (await importing.call(tenant.key, "GET", "/v1/audit_logs", params=only)).json()
    sources = [entry["after"]["source"].rstrip("/") for entry in log["data"]]
    assert sources == [f"file://{mine}"] * 3


async def test_a_draft_layer_comes_with_its_folder(importing: Api, shared: Path) -> None:
    tenant = await importing.new_tenant()
    mine = put(shared / "tenants" / tenant.id / "quick", importing)
    layer = draft_file(draft_tensors(importing.engine.model))
    (mine / "draft_layer.safetensors").write_bytes(layer)
    found = await checked(importing, tenant, await imported(importing, tenant, f"file://{mine}"))
    assert found["state"] == "active"
    assert found["draft_layer"]["bytes"] == len(layer)


async def test_tenants_read_their_own_and_what_is_for_all(importing: Api, shared: Path) -> None:
    acme, other = await importing.new_tenant("acme"), await importing.new_tenant("other")
    mine = put(shared / "tenants" / acme.id / "x", importing)
    common = put(shared / "common" / "x", importing)
    refused = await imported(importing, other, f"file://{mine}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "source_not_allowed")
    assert acme.id not in refused.json()["error"]["message"].replace(f"file://{mine}", "")
    for tenant in (acme, other):
        made = await imported(importing, tenant, f"file://{common}")
        assert (await checked(importing, tenant, made))["state"] == "active"


@pytest.mark.parametrize(
    "path",
    [
        "../{other}/x",
        "x/../../{other}/x",
        "./x",
        "x/..",
        "/etc",
        "x//y",
        "%2e%2e/{other}/x",
        "x\0y",
        "x?y",
        "x#y",
        "a" * 200,
        "/".join(["a"] * 40),
        "",
    ],
)
async def test_no_path_leads_out(importing: Api, shared: Path, path: str) -> None:
    tenant, other = await importing.new_tenant("acme"), await importing.new_tenant("other")
    put(shared / "tenants" / other.id / "x", importing)
    put(shared / "tenants" / tenant.id / "y", importing)
    source = f"file://{shared}/tenants/{tenant.id}/{path.format(other=other.id)}"
    refused = await imported(importing, tenant, source)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "source_not_allowed")


@pytest.mark.parametrize(
    "source",
    ["https://example.com/a", "s3://elsewhere/a", "/etc", "file:///etc", "", "data:,x", "x"],
)
async def test_no_url_of_a_tenants_is_opened(importing: Api, source: str) -> None:
    tenant = await importing.new_tenant()
    refused = await imported(importing, tenant, source)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "source_not_allowed"
    assert "source must start with file://" in refused.json()["error"]["message"]


@pytest.mark.parametrize("what", ["folder", "config", "weights", "above"])
async def test_no_link_is_followed(importing: Api, shared: Path, tmp_path: Path, what: str) -> None:
    tenant = await importing.new_tenant()
    secret = put(tmp_path / "secret" / "x", importing)
    mine = shared / "tenants" / tenant.id
    if what == "above":
        mine.mkdir(parents=True)
        (mine / "x").symlink_to(secret.parent / "x")
    elif what == "folder":
        mine.mkdir(parents=True)
        (mine / "deep").symlink_to(secret.parent)
    else:
        put(mine / "x", importing)
        file = {"config": "adapter_config.json", "weights": "adapter_model.safetensors"}[what]
        (mine / "x" / file).unlink()
        (mine / "x" / file).symlink_to(secret / file)
    path = "deep/x" if what == "folder" else "x"
    refused = await imported(importing, tenant, f"file://{mine}/{path}")
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["code"] in ("config_missing", "weights_missing")
    assert await nothing_kept(importing, tenant)


async def test_what_is_no_file_is_not_read(importing: Api, shared: Path) -> None:
    tenant = await importing.new_tenant()
    mine = put(shared / "tenants" / tenant.id / "x", importing)
    (mine / "adapter_config.json").unlink()
    os.mkfifo(mine / "adapter_config.json")
    refused = await asyncio.wait_for(imported(importing, tenant, f"file://{mine}"), 5)
    assert refused.json()["error"]["code"] == "config_missing"


async def test_limits_hold_before_anything_is_kept(importing: Api, shared: Path) -> None:
    await importing.put_plan("small", {"adapter_bytes": 1000})
    tenant = await importing.new_tenant(plan="small")
    mine = put(shared / "tenants" / tenant.id / "x", importing)
    refused = await imported(importing, tenant, f"file://{mine}")
    assert refused.status_code in (403, 413, 429), refused.text
    with (mine / "adapter_config.json").open("ab") as file:
        file.truncate(10 * 1024**3)  # a hole: it takes no room
    refused = await imported(importing, tenant, f"file://{mine}")
    assert refused.status_code == 400
    assert "at most" in refused.json()["error"]["message"]
    assert await nothing_kept(importing, tenant)


async def test_pickles_are_named(importing: Api, shared: Path) -> None:
    tenant = await importing.new_tenant()
    mine = put(shared / "tenants" / tenant.id / "x", importing)
    (mine / "adapter_model.safetensors").rename(mine / "adapter_model.bin")
    refused = await imported(importing, tenant, f"file://{mine}")
    assert "pickled weights" in refused.json()["error"]["message"]


async def test_without_a_prefix_nothing_is_imported(api: Api) -> None:
    tenant = await api.new_tenant()
    refused = await imported(api, tenant, "s3://bucket/a")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "imports_not_allowed")


async def test_objects_are_read_by_name() -> None:
    store = MemoryStore()
    await obstore.put_async(store, "run/adapter_config.json", b'{"r": 8}')
    folder = ObjectFolder(store, "run")
    assert await read_whole(folder, "adapter_config.json", 100) == b'{"r": 8}'
    assert await read_whole(folder, "other", 100) is None
    assert b"".join([piece async for piece in folder.read("adapter_config.json", 2, 5)]) == b'r":'
    with pytest.raises(BadRequestError, match="at most 4"):
        await read_whole(folder, "adapter_config.json", 4)


@given(path=st.text(st.sampled_from("a.b/\\%\0 -_é{}"), max_size=12))
def test_only_plain_paths_are_paths(path: str) -> None:
    """Whatever follows the root: refused, or a path that stays below it wherever it is read."""
    with contextlib.suppress(BadRequestError):
        folder: Any = open_source(
            "file:///allowed/{tenant}", "tnt_1", f"file:///allowed/tnt_1/{path}"
        )
        kept = os.path.normpath(f"/allowed/tnt_1/{folder.path}")
        assert kept == f"/allowed/tnt_1/{folder.path}"
        assert "\0" not in kept
