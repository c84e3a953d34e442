"""Whose turn it is to be checked, and what becomes of checks that never come to their end."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from adapter_files import adapter_form
from api_harness import Api, TestTenant, stored_objects
from tenora_platform.intake.checker import Checker, CheckLostError
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.registry.worker import ATTEMPTS_MAX, IntakeWorker
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
        patch.setattr("tenora_platform.registry.storage.AdapterStorage.staged_config", away)
        for _ in range(2 * ATTEMPTS_MAX):
            with pytest.raises(ConnectionError):
                await Noting(api).run_once()
    await drained(Noting(api))
    assert (await version(api, tenant, "patient"))["state"] == "active"


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
