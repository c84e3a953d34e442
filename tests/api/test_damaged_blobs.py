"""A stored adapter that is altered, cut short or gone: its requests get an error that says so and
no path, its tenant an event, the version a warning, the operator a warning and a metric, until it
is whole again. `tenora doctor --store` finds all of it, and other objects. With a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adapter_files import adapter_form
from api_harness import SECRET, Api, TestTenant
from platform_fixtures import Servers
from served_api import until
from shell import run
from tenora_engine.adapters.identity import config_key, weights_key
from tenora_engine.transport.inprocess import InProcessEngineClient
from tenora_platform.registry import damage, store_identity
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.settings import Settings
from tiny_engine_api import api_over, tiny_config

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
Damage = Callable[[Path], None]


def altered(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(path: Path) -> None:
    path.unlink()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "COUNT_EVERY_S", 0.05)
    monkeypatch.setattr(damage, "TOLD_EVERY_S", 0.0)


@pytest.fixture
async def real(settings: Settings, servers: Servers, tmp_path: Path) -> AsyncIterator[Api]:
    own = {"data_dir": tmp_path / "data", "database_url": servers.new_database()}
    settings = settings.model_copy(update=own)
    config = replace(tiny_config(tmp_path), object_store=settings.object_store_url, max_adapters=4)
    async with api_over(settings, InProcessEngineClient(config)) as api:
        yield api


async def pushed(api: Api, tenant: TestTenant, name: str, seed: int) -> dict[str, Any]:
    """An active version that nobody has asked for."""
    files = adapter_form(api.engine.model, name, seed=seed)
    made = (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).json()
    async with asyncio.timeout(30):
        while True:
            await IntakeWorker(api.state).run_once()
            version = await seen(api, tenant, name, made["version"])
            if version["state"] == "active":
                return version
            await asyncio.sleep(0.02)


async def seen(api: Api, tenant: TestTenant, name: str, number: int = 1) -> dict[str, Any]:
    answer = await api.call(tenant.key, "GET", f"/v1/adapters/{name}/versions/{number}")
    found: dict[str, Any] = answer.json()
    return found


async def asked(api: Api, tenant: TestTenant, model: str, **more: Any) -> Any:
    return await api.call(
        tenant.key, "POST", "/v1/chat/completions", json={"model": model, **CHAT, **more}
    )


def stored(api: Api, key: str) -> Path:
    return Path(api.state.settings.object_store_url) / key


async def damaged_versions(api: Api) -> float:
    text = (await api.http.get("/metrics")).text
    lines = [each for each in text.splitlines() if each.startswith("tenora_store_damaged_versions")]
    return float(lines[0].split()[1]) if lines else 0.0


async def doctor(api: Api) -> tuple[int, str]:
    settings = api.state.settings
    return await asyncio.to_thread(
        run,
        "doctor",
        "--store",
        TENORA_DATABASE_URL=str(settings.database_url),
        TENORA_SECRET=SECRET,
        TENORA_DATA_DIR=str(settings.data_dir),
    )


@pytest.mark.parametrize("spoil", [altered, cut, emptied, removed])
@pytest.mark.parametrize("key", [config_key, weights_key])
async def test_a_request_for_what_is_damaged(
    real: Api, key: Callable[[str], str], spoil: Damage
) -> None:
    tenant = await real.new_tenant("acme", plan="premium")
    version = await pushed(real, tenant, "mine", seed=1)
    await pushed(real, tenant, "well", seed=2)
    spoil(stored(real, key(version["digest"])))
    answer = await asked(real, tenant, "mine")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "adapter_damaged")
    assert answer.headers["x-should-retry"] == "false"
    assert "adapters/" not in answer.text
    assert str(real.state.settings.data_dir) not in answer.text
    assert (await asked(real, tenant, "well")).status_code == 200
    found = await seen(real, tenant, "mine")
    assert found["damaged_at"] is not None
    assert "adapter_damaged" in [each["code"] for each in found["validation"]["warnings"]]
    [event] = (await real.call(tenant.key, "GET", "/v1/events?type=adapter.damaged")).json()["data"]
    assert (event["data"]["adapter"], event["data"]["version"]) == ("mine", 1)
    await until(lambda: bool(real.state.store.told and real.state.store.told.damaged))
    ready = await real.http.get("/readyz")
    assert "1 adapter versions cannot be served" in " ".join(ready.json()["warnings"])
    assert await damaged_versions(real) == 1
    usage = (await real.call(tenant.key, "GET", "/v1/usage")).text
    assert "mine" not in usage, "nothing is charged for it"


async def test_a_stream_says_so_too(real: Api) -> None:
    tenant = await real.new_tenant("acme", plan="premium")
    version = await pushed(real, tenant, "mine", seed=1)
    altered(stored(real, weights_key(version["digest"])))
    for _ in range(2):
        answer = await asked(real, tenant, "mine", stream=True)
        assert "adapter_damaged" in answer.text
    events = await real.call(tenant.key, "GET", "/v1/events?type=adapter.damaged")
    assert len(events.json()["data"]) == 1, "told once"


async def test_the_same_files_again_make_it_whole(real: Api) -> None:
    tenant = await real.new_tenant("acme", plan="premium")
    version = await pushed(real, tenant, "mine", seed=1)
    altered(stored(real, weights_key(version["digest"])))
    assert (await asked(real, tenant, "mine@1")).status_code == 500
    assert (await pushed(real, tenant, "mine", seed=1))["digest"] == version["digest"]
    found = await seen(real, tenant, "mine")
    assert found["damaged_at"] is None
    assert (await asked(real, tenant, "mine@1")).status_code == 200
    await until(lambda: real.state.store.told is not None and real.state.store.told.damaged == 0)


async def test_a_store_that_does_not_answer_is_no_damage(real: Api) -> None:
    tenant = await real.new_tenant("acme", plan="premium")
    version = await pushed(real, tenant, "mine", seed=1)
    path = stored(real, weights_key(version["digest"]))
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path)  # no file can be opened there
    answer = await asked(real, tenant, "mine")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "adapter_unavailable")
    assert "adapters/" not in answer.text
    assert (await seen(real, tenant, "mine"))["damaged_at"] is None
    code, text = await doctor(real)
    assert code == 1
    assert "unreadable adapters/" in text
    assert (await seen(real, tenant, "mine"))["damaged_at"] is None
    path.unlink()
    path.write_bytes(content)
    assert (await asked(real, tenant, "mine")).status_code == 200


async def test_the_doctor_reads_everything(real: Api) -> None:
    tenant = await real.new_tenant("acme", plan="premium")
    versions = [await pushed(real, tenant, f"a{seed}", seed=seed) for seed in range(4)]
    await until(lambda: real.state.store.told is not None)
    code, text = await doctor(real)
    assert code == 0, text
    assert "8 objects" in text
    assert "0 of them wrong" in text
    kept = {path: path.read_bytes() for path in stored(real, "adapters").rglob("*.*")}
    altered(stored(real, weights_key(versions[1]["digest"])))
    removed(stored(real, config_key(versions[2]["digest"])))
    code, text = await doctor(real)
    assert code == 1, text
    assert f"{tenant.id} a1@1" in text
    assert f"missing {config_key(versions[2]['digest'])} ({tenant.id} a2@1)" in text
    assert "2 of them wrong" in text
    found = [(await seen(real, tenant, f"a{seed}"))["damaged_at"] for seed in range(4)]
    assert [each is not None for each in found] == [False, True, True, False]
    for path, content in kept.items():  # from a backup
        path.write_bytes(content)
    code, text = await doctor(real)
    assert code == 0, text
    for seed in range(4):
        assert (await seen(real, tenant, f"a{seed}"))["damaged_at"] is None
        assert (await asked(real, tenant, f"a{seed}")).status_code == 200


async def test_the_doctor_reads_what_waits(real: Api) -> None:
    tenant = await real.new_tenant("acme", plan="premium")
    real.state.engine_life.started = False  # nothing is checked
    upload = (await real.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 8})).json()
    files = {"data": b"8 bytes."}
    part = f"/v1/uploads/{upload['id']}/parts"
    assert (await real.call(tenant.key, "POST", part, files=files)).status_code == 200
    form = adapter_form(real.engine.model, "waits", seed=5)
    assert (await real.call(tenant.key, "POST", "/v1/adapters", files=form)).status_code == 202
    assert (await doctor(real))[0] == 0
    [path] = stored(real, "uploads").rglob("*/*")
    altered(path)
    [waits] = stored(real, "staging").rglob("adapter_model.safetensors")
    cut(waits)
    code, text = await doctor(real)
    assert code == 1
    assert f"upload {upload['id']} of {tenant.id}" in text
    assert f"upload of {tenant.id} waits@1" in text


def exchange(objects: Path, unmounted: Path) -> None:
    objects.rename(unmounted)
    objects.mkdir()


async def test_another_store_marks_nothing(
    real: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its disk is not mounted: requests and the doctor say so, tenants are not told."""
    tenant = await real.new_tenant("acme", plan="premium")
    await pushed(real, tenant, "mine", seed=1)
    for _ in range(2):
        await real.state.store.problem()
    exchange(Path(real.state.settings.object_store_url), tmp_path / "unmounted")
    monkeypatch.setattr(store_identity, "LATELY_S", 0.0)
    for stream in (False, True):
        answer = await asked(real, tenant, "mine", stream=stream)
        assert "adapter_unavailable" in answer.text
        assert "adapter_damaged" not in answer.text
        assert answer.status_code == 503 or stream
    events = await real.call(tenant.key, "GET", "/v1/events?type=adapter.damaged")
    assert events.json()["data"] == []
    code, text = await doctor(real)
    assert code == 1
    assert "missing adapters/" in text
    assert (await seen(real, tenant, "mine"))["damaged_at"] is None
