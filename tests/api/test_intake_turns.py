"""Whose turn it is to be checked, and what becomes of checks that never come to their end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DataError

from adapter_files import adapter_form
from api_harness import Api, TestTenant, stored_objects
from tenora_engine.adapters.identity import config_key, weights_key
from tenora_platform.intake.checker import Checker, CheckLostError
from tenora_platform.registry.set_aside import FIRST_RETRY_S, RETRY_MAX_S, SetAside
from tenora_platform.registry.storage import AdapterStorage
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.registry.worker import ATTEMPTS_MAX, IntakeWorker
from tenora_platform.settings import Settings
from tenora_platform.state import EngineLife

MANY = 20


@pytest.fixture
def resting(api: Api) -> Iterator[None]:
    """The application's own worker checks nothing meanwhile."""
    api.state.engine_life.started = False
    yield
    api.state.engine_life.started = True


class Noting(IntakeWorker):
    """Says of each check whose it is; `checker` does them."""

    def __init__(self, api: Api, checker: Any = None) -> None:
        self.checked: list[str] = []
        life = EngineLife(started=True)
        with_checker = {} if checker is None else {"checker": checker}
        super().__init__(dataclasses.replace(api.state, engine_life=life, **with_checker))

    async def _examine(self, row: AdapterVersionRow) -> None:
        self.checked.append(row.tenant_id)
        await super()._examine(row)


async def upload(api: Api, tenant: TestTenant, name: str, seed: int = 0) -> str:
    files = adapter_form(api.engine.model, name, seed=seed)
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    assert made.status_code == 202, made.text
    return str(made.json()["id"])


async def drained(worker: IntakeWorker) -> None:
    while await worker.run_once():
        continue


@pytest.mark.usefixtures("resting")
async def test_one_with_many_uploads_delays_another_by_one_check(api: Api) -> None:
    await api.put_plan("turns", {})
    many, few, late = [await api.new_tenant(name, plan="turns") for name in ("many", "few", "late")]
    for number in range(MANY):
        await upload(api, many, f"a{number}", seed=number % 3)
    await upload(api, few, "b1")
    await upload(api, few, "b2")

    class Busy(Noting):
        async def _examine(self, row: AdapterVersionRow) -> None:
            await super()._examine(row)
            if len(self.checked) == 7:
                await upload(api, late, "c")

    worker = Busy(api)
    await drained(worker)
    order = ["many", "few"] * 2 + ["many"] * 3 + ["late"] + ["many"] * (MANY - 5)
    names = {many.id: "many", few.id: "few", late.id: "late"}
    assert [names[tenant] for tenant in worker.checked] == order


class Lost(Checker):
    async def check(self, *_: Any) -> Any:
        raise CheckLostError("the machine was switched off")


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("lost", plan="premium")


async def version(api: Api, tenant: TestTenant, name: str) -> dict[str, Any]:
    found = await api.call(tenant.key, "GET", f"/v1/adapters/{name}/versions/1")
    return dict(found.json())


@pytest.mark.usefixtures("resting")
async def test_what_is_lost_is_begun_anew_so_often(api: Api, tenant: TestTenant) -> None:
    await upload(api, tenant, "lost")
    lossy = Noting(api, Lost())
    for _ in range(ATTEMPTS_MAX):
        assert await lossy.run_once()
        assert (await version(api, tenant, "lost"))["state"] == "validating"
    await lossy.run_once()
    found = await version(api, tenant, "lost")
    assert found["state"] == "rejected"
    assert [problem["code"] for problem in found["validation"]["problems"]] == ["check_crashed"]
    assert f"started {ATTEMPTS_MAX} times" in found["validation"]["problems"][0]["message"]


@pytest.mark.usefixtures("resting")
async def test_one_lost_check_costs_nothing(api: Api, tenant: TestTenant) -> None:
    await upload(api, tenant, "anew")
    await Noting(api, Lost()).run_once()
    await drained(Noting(api))
    assert (await version(api, tenant, "anew"))["state"] == "active"


@pytest.mark.usefixtures("resting")
async def test_a_store_that_is_away_is_no_attempt(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(api, tenant, "patient")

    async def away(*_: object) -> bytes:
        raise ConnectionError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr("obstore.get_async", away)
        for _ in range(2 * ATTEMPTS_MAX):
            with pytest.raises(ConnectionError):
                await Noting(api).run_once()
    await drained(Noting(api))
    assert (await version(api, tenant, "patient"))["state"] == "active"


@pytest.mark.usefixtures("resting")
async def test_what_the_store_never_takes_is_refused(
    api: Api, tenant: TestTenant, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its content is to lie, something else is."""
    await upload(api, tenant, "nowhere", seed=81)
    found: list[Path] = []

    async def publish(storage: AdapterStorage, digest: str, *of: Any) -> None:
        blocked = settings.data_dir / "objects" / weights_key(digest) / "in the way"
        blocked.mkdir(parents=True, exist_ok=True)
        found.append(blocked.parent)
        await published(storage, digest, *of)

    published = AdapterStorage.publish
    monkeypatch.setattr(AdapterStorage, "publish", publish)
    for _ in range(ATTEMPTS_MAX - 1):
        await Noting(api).run_once()  # and nobody waits for it
        assert (await version(api, tenant, "nowhere"))["state"] == "validating"
    await Noting(api).run_once()
    shutil.rmtree(found[0])
    refused = await version(api, tenant, "nowhere")
    assert refused["state"] == "rejected"
    assert [each["code"] for each in refused["validation"]["problems"]] == ["store_failed"]


def refused_by_the_database() -> Exception:
    return DataError("UPDATE ...", {}, Exception("a NUL"))


@pytest.mark.usefixtures("resting")
@pytest.mark.parametrize("error", [refused_by_the_database(), ValueError("odd"), KeyError("odd")])
async def test_a_check_that_can_never_succeed_is_given_up(api: Api, error: Exception) -> None:
    """By what is in it, say; until then nobody else waits for it."""
    poisoned, other = [await api.new_tenant(name, plan="premium") for name in ("poison", "other")]

    class Failing(Checker):
        async def check(self, *_: Any) -> Any:
            raise error

    await upload(api, poisoned, "poison", seed=90)
    worker = Noting(api, Failing())
    assert await worker.run_once(), "the worker does not pause"
    assert worker.checked == [poisoned.id]
    await worker.run_once()
    assert worker.checked == [poisoned.id], "it is not tried again at once"
    await upload(api, other, "good", seed=91)
    await worker.run_once()
    assert worker.checked == [poisoned.id, other.id]

    before = parked(api)
    for _ in range(ATTEMPTS_MAX):
        await Noting(api, Failing()).run_once()
    found = await version(api, poisoned, "poison")
    assert found["state"] == "rejected"
    assert [each["code"] for each in found["validation"]["problems"]] == ["check_failed"]
    events = (await api.call(poisoned.key, "GET", "/v1/events")).json()["data"]
    assert "adapter.rejected" in [each["type"] for each in events]
    assert parked(api) > before


def parked(api: Api) -> float:
    return float(api.state.metrics.jobs_parked.labels("intake")._value.get())


@pytest.mark.usefixtures("resting")
async def test_what_cannot_be_deleted_keeps_nobody_waiting(api: Api, settings: Settings) -> None:
    owner, other = [await api.new_tenant(name, plan="premium") for name in ("stuck", "other")]
    for seed, name in enumerate(("stuck", "free")):
        await upload(api, owner, name, seed=70 + seed)
    await drained(Noting(api))
    kept = {name: str((await version(api, owner, name))["digest"]) for name in ("stuck", "free")}
    stuck = settings.data_dir / "objects" / weights_key(kept["stuck"])
    stuck.unlink()
    (stuck / "in the way").mkdir(parents=True)
    for name in kept:
        deleted = await api.call(owner.key, "DELETE", f"/v1/adapters/{name}")
        assert deleted.status_code == 200, deleted.text
    made = await upload(api, other, "waits", seed=72)
    worker = Noting(api)
    worker._release_after = timedelta(seconds=-60)
    await drained(worker)
    assert (await version(api, other, "waits"))["state"] == "active", made
    assert not {weights_key(kept["free"]), config_key(kept["free"])} & stored_objects(api)
    async with asyncio.timeout(20):
        while "1 adapter versions could not be deleted" not in str(
            (await api.http.get("/readyz")).json()["warnings"]
        ):
            await worker.run_once()
    shutil.rmtree(stuck)
    again = Noting(api)
    again._release_after = timedelta(seconds=-60)
    await drained(again)
    assert config_key(kept["stuck"]) not in stored_objects(api)
    assert "could not be deleted" not in (await api.http.get("/readyz")).text


@pytest.mark.usefixtures("resting")
async def test_a_store_that_cannot_be_asked_leaves_the_checks(api: Api, tenant: TestTenant) -> None:
    class Unclean(Noting):
        async def _release_revoked(self) -> bool:
            raise OSError("the record cannot be read")

    await upload(api, tenant, "checked")
    with pytest.raises(OSError, match="record"):
        await Unclean(api).run_once()
    assert (await version(api, tenant, "checked"))["state"] == "active"


def test_what_fails_is_tried_again_ever_later() -> None:
    now_s = [0.0]
    aside = SetAside(clock_s=lambda: now_s[0])

    def fail(key: str) -> None:
        with aside.trying(key):
            raise OSError("busy")

    fail("a")
    assert (aside.waiting(), len(aside)) == (["a"], 1)
    now_s[0] = FIRST_RETRY_S
    assert (aside.waiting(), len(aside)) == ([], 1)
    fail("a")
    now_s[0] += FIRST_RETRY_S
    assert aside.waiting() == ["a"], "twice as long"
    with aside.trying("a"):
        pass
    assert len(aside) == 0
    fail("b")
    now_s[0] += FIRST_RETRY_S + RETRY_MAX_S + 1
    assert len(aside) == 0, "somebody else removed it"


@pytest.mark.usefixtures("resting")
@pytest.mark.parametrize(
    ("kind", "code"), [("bomb", "check_out_of_memory"), ("crash", "check_crashed")]
)
async def test_a_bomb_refuses_its_version_and_nothing_else(
    api: Api, tenant: TestTenant, kind: str, code: str
) -> None:
    before = stored_objects(api)
    other = await api.new_tenant("beside a bomb", plan="premium")
    files = adapter_form(api.engine.model, kind) | {"adapter_config": kind.encode()}
    assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202
    checker = Checker("sick_checks:chosen")
    with contextlib.closing(checker):
        await drained(Noting(api, checker))
        assert stored_objects(api) <= before
        await upload(api, other, "good", seed=5)
        await drained(Noting(api, checker))
    assert (await version(api, other, "good"))["state"] == "active"
    found = await version(api, tenant, kind)
    assert [problem["code"] for problem in found["validation"]["problems"]] == [code]
