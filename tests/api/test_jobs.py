"""Jobs: each step is kept, whoever works on one goes on where the last step ended, and only one
worker does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api_harness import Api
from tenora_platform.errors import ConflictError
from tenora_platform.ids import new_id
from tenora_platform.jobs import repository
from tenora_platform.jobs.tables import JobRow
from tenora_platform.jobs.work import Asked, Step, Work
from tenora_platform.jobs.worker import JobWorker

PATIENCE_S = 30.0  # only a hang takes as long
STEPS = 4


class Killed(BaseException):
    """The process has ended here."""


class Counting:
    """Counts to STEPS. `dies_in`: the step in which its worker dies, once."""

    def __init__(self, dies_in: int | None = None) -> None:
        self.begun: list[int] = []
        self._dies_in = dies_in

    async def __call__(self, asked: Asked) -> Step:
        at = asked.place["at"] if asked.place else 0
        self.begun.append(at)
        if at == self._dies_in:
            self._dies_in = None
            raise Killed
        place = {"at": at + 1} if at + 1 < STEPS else None
        return Step(place, at + 1, STEPS, {"seen": [*asked.result.get("seen", []), at]})


async def ask(api: Api, kind: str) -> str:
    async with api.state.db.admin_session() as session:
        return (await repository.ask(session, kind, {"of": "all"}, "somebody")).id


async def row_of(api: Api, job_id: str) -> JobRow:
    async with api.state.db.admin_session() as session:
        return await session.get_one(JobRow, job_id)


def worker(api: Api, kind: str, work: Work) -> JobWorker:
    return JobWorker(api.state.db, {kind: work})


async def test_a_job_is_done_step_by_step(api: Api) -> None:
    kind, work = new_id("kind"), Counting()
    job_id = await ask(api, kind)
    assert await ask(api, kind) == job_id, "it waits already"
    assert await worker(api, kind, work).run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.done, row.total, row.place) == ("done", STEPS, STEPS, None)
    assert row.result == {"seen": [0, 1, 2, 3]}
    assert not await worker(api, kind, work).run_once()
    assert await ask(api, kind) != job_id


async def test_another_worker_goes_on_where_one_has_died(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, work = new_id("kind"), Counting(dies_in=2)
    job_id = await ask(api, kind)
    with pytest.raises(BaseExceptionGroup):
        await worker(api, kind, work).run_once()
    assert (await row_of(api, job_id)).state == "running"
    second = worker(api, kind, work)
    assert not await second.run_once(), "it may still be at work"
    monkeypatch.setattr(repository, "LOST_AFTER", timedelta(0))
    assert await second.run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.result) == ("done", {"seen": [0, 1, 2, 3]})
    assert work.begun == [0, 1, 2, 2, 3]


async def test_who_was_thought_dead_changes_nothing_any_more(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, inside, may_end = new_id("kind"), asyncio.Event(), asyncio.Event()

    async def slow(_: Asked) -> Step:
        inside.set()
        await may_end.wait()
        return Step(None, 99, 99, {"by": "the first"})

    job_id = await ask(api, kind)
    first = asyncio.create_task(worker(api, kind, slow).run_once())
    await asyncio.wait_for(inside.wait(), PATIENCE_S)
    monkeypatch.setattr(repository, "LOST_AFTER", timedelta(0))
    assert await worker(api, kind, Counting()).run_once()
    may_end.set()
    assert await asyncio.wait_for(first, PATIENCE_S)
    assert (await row_of(api, job_id)).result == {"seen": [0, 1, 2, 3]}


async def test_what_cannot_be_done_has_failed(api: Api) -> None:
    kind = new_id("kind")

    async def refused(_: Asked) -> Step:
        raise ConflictError("The month has not ended yet.")

    job_id = await ask(api, kind)
    await worker(api, kind, refused).run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.error) == ("failed", "The month has not ended yet.")
    assert row.finished_at is not None


async def done(api: Api, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    asked = await api.admin("POST", path, json=body)
    assert asked.status_code == 202, asked.text
    job: dict[str, Any] = asked.json()
    async with asyncio.timeout(PATIENCE_S):
        while job["state"] in ("waiting", "running"):
            await asyncio.sleep(0.05)
            job = (await api.admin("GET", f"{path}/{job['id']}")).json()
    return job


async def test_a_months_invoices_are_made_by_a_worker(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant at a time, the progress told; a run that is repeated finds them unchanged."""
    monkeypatch.setattr("tenora_platform.invoices.run_job.STEP_S", 0.0)
    path = "/admin/v1/invoices/runs"
    await api.admin("PUT", "/admin/v1/plans/charged", json={})
    price = {
        "plan": "charged",
        "per_million": {"uncached_prefill": "1", "cached_prefill": "0", "output": "2"},
        "minimum": "12.5",
        "effective_from": "2020-01-01T00:00:00Z",
    }
    assert (await api.admin("POST", "/admin/v1/prices", json=price)).status_code == 201
    for number in range(3):
        body = {"name": f"charged {number}", "plan": "charged"}
        assert (await api.admin("POST", "/admin/v1/tenants", json=body)).status_code == 201
    this_month = await done(api, path, {"draft": True, "period": f"{_now():%Y-%m}"})
    assert (this_month["state"], this_month["status"]) == ("done", "draft")
    assert this_month["made"] >= 3
    assert this_month["done"] == this_month["total"] >= 3
    assert (this_month["failures"], this_month["failed"]) == (0, [])
    newest = (await api.admin("GET", path, params={"limit": 1})).json()["data"][0]
    assert newest["id"] == this_month["id"]
    refused = await api.admin("POST", path, json={"draft": False, "period": f"{_now():%Y-%m}"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "period_not_over")
    unknown = await api.admin("POST", path, json={"tenant": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "unknown_tenant")
    assert (await api.admin("GET", f"{path}/job_none")).status_code == 404


def _now() -> datetime:
    return datetime.now(UTC)
