"""Jobs: each step is kept, whoever works on one goes on where the last step ended, and only one
worker does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy import text
from sqlalchemy.exc import NoResultFound, OperationalError

from api_harness import ADMIN_KEY, SECRET, Api
from people import signed_in
from tenora_platform.audit.verify_job import verifications
from tenora_platform.background import doing, worker_work
from tenora_platform.errors import ConflictError, UnavailableError
from tenora_platform.ids import new_id
from tenora_platform.invoices.run_job import invoice_runs
from tenora_platform.jobs import repository
from tenora_platform.jobs.tables import JobRow
from tenora_platform.jobs.work import Asked, Kind, Step, Work
from tenora_platform.jobs.worker import ATTEMPTS_MAX, JobWorker
from tenora_platform.keys import hash_key, key_prefix
from tenora_platform.secret import ServerSecret
from tenora_platform.state import AppState

PATIENCE_S = 30.0  # only a hang takes as long
STEPS = 4


class Killed(BaseException):
    """The process has ended here."""


class Counting:
    """Counts to STEPS. `fails_in`: the step in which it fails, as often as there are `errors`."""

    def __init__(self, fails_in: int | None = None, *errors: BaseException) -> None:
        self.begun: list[int] = []
        self._fails_in = fails_in
        self._errors = list(errors)

    async def __call__(self, asked: Asked) -> Step:
        at = asked.place["at"] if asked.place else 0
        self.begun.append(at)
        if at == self._fails_in and self._errors:
            raise self._errors.pop(0)
        place = {"at": at + 1} if at + 1 < STEPS else None
        return Step(place, at + 1, STEPS, {"seen": [*asked.result.get("seen", []), at]})


CONFIGURED = f"admin_key:{hash_key(ADMIN_KEY, ServerSecret(SECRET.encode()))[:12]}"
"""A key that is good while the process runs."""


async def ask(
    api: Api,
    kind: str,
    asked_by: str = CONFIGURED,
    prefix: str | None = None,
    of: str = "all",
) -> str:
    async with api.state.db.admin_session() as session:
        return (await repository.ask(session, kind, {"of": of}, asked_by, prefix)).id


async def test_a_configured_key_that_is_none_any_more_ends_its_jobs(api: Api) -> None:
    kind, work = new_id("kind"), Counting()
    job_id = await ask(api, kind, "admin_key:removed")
    assert await worker(api, kind, work).run_once()
    row = await row_of(api, job_id)
    assert (row.state, work.begun) == ("failed", [])
    assert "no configured admin key" in (row.error or "")


async def test_a_step_that_ends_its_workers_is_given_up(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = new_id("kind")
    job_id = await ask(api, kind)
    monkeypatch.setattr(repository, "LOST_AFTER", timedelta(0))
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(Killed):
            await worker(api, kind, Counting(0, Killed())).run_once()
    assert await worker(api, kind, Counting()).run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.attempts) == ("failed", ATTEMPTS_MAX)
    assert "ended in the middle" in (row.error or "")


async def row_of(api: Api, job_id: str) -> JobRow:
    async with api.state.db.admin_session() as session:
        return await session.get_one(JobRow, job_id)


def worker(api: Api, kind: str, work: Work) -> JobWorker:
    return JobWorker(api.state, Kind(kind, ("billing",), work))


async def test_a_job_is_done_step_by_step(api: Api) -> None:
    kind, work = new_id("kind"), Counting()
    job_id = await ask(api, kind)
    assert await ask(api, kind) == job_id, "it waits already"
    assert await ask(api, kind, "admin_key:another") != job_id, "who may lose the right to it"
    assert await worker(api, kind, work).run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.done, row.total, row.place) == ("done", STEPS, STEPS, None)
    assert row.result == {"seen": [0, 1, 2, 3]}
    assert await worker(api, kind, work).run_once()
    assert not await worker(api, kind, work).run_once()
    assert await ask(api, kind) != job_id


async def test_another_worker_goes_on_where_one_has_died(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, work = new_id("kind"), Counting(2, Killed())
    job_id = await ask(api, kind)
    with pytest.raises(Killed):
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
    job_id = await ask(api, kind)
    work = Counting(0, ConflictError("The month has not ended yet."))
    await worker(api, kind, work).run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.error, row.attempts) == ("failed", "The month has not ended yet.", 0)
    assert row.finished_at is not None


ITS_OWN = [
    ValueError("a word"),
    GenericError("a folder is no file"),
    PermissionDeniedError("not this one"),
    FileNotFoundError("gone"),
    NoResultFound("no such row"),
    RuntimeError("anything"),
]


@pytest.mark.parametrize("error", ITS_OWN, ids=lambda each: type(each).__name__)
async def test_what_fails_is_tried_again_and_given_up(
    api: Api, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It delays no other, says why, and is a warning until a later one is done."""
    monkeypatch.setattr("tenora_platform.jobs.worker.RETRY_S", 0.0)
    kind = new_id("kind")
    parked = api.state.metrics.jobs_parked.labels(kind)
    job_id = await ask(api, kind)
    of_kind = worker(api, kind, Counting(2, *[error] * ATTEMPTS_MAX))
    for attempt in range(1, ATTEMPTS_MAX):
        assert await of_kind.run_once()
        row = await row_of(api, job_id)
        assert (row.state, row.attempts, row.done, row.error) == ("waiting", attempt, 2, None)
        assert f"{attempt} of 5 failed: {error}" in str(row.waiting_for)
        assert await told_by(api, of_kind) == {f"{job_id} is tried again"}
    assert await of_kind.run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.attempts, row.waiting_for) == ("failed", ATTEMPTS_MAX, None)
    assert str(error) in str(row.error)
    assert parked._value.get() == 1
    assert await told_by(api, of_kind) == {f"{job_id} was given up"}
    assert not await of_kind.run_once(), "never again"
    await ask(api, kind)
    assert await of_kind.run_once()
    assert await told_by(api, of_kind) == set()


async def told_by(api: Api, of_kind: JobWorker) -> set[str]:
    """What it has put beside the failures of other work, for `/readyz`."""
    of_kind._told_s = float("-inf")
    await of_kind._tell()
    name = f"jobs of {of_kind._kind.name}"
    return {text.partition(" after ")[0] for key, text in api.state.outages.items() if key == name}


async def test_a_step_that_succeeds_forgets_attempts(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_platform.jobs.worker.RETRY_S", 0.0)
    kind, work = new_id("kind"), Counting(1, *[ValueError("now and then")] * 4)
    job_id = await ask(api, kind)
    of_kind = worker(api, kind, work)
    while await of_kind.run_once():
        pass
    row = await row_of(api, job_id)
    assert (row.state, row.attempts, row.waiting_for) == ("done", 0, None)
    assert work.begun == [0, 1, 1, 1, 1, 1, 2, 3]


async def test_one_that_is_tried_again_keeps_no_other_waiting(api: Api) -> None:
    kind = new_id("kind")
    first = await ask(api, kind)
    of_kind = worker(api, kind, Counting(0, ValueError("a word")))
    assert await of_kind.run_once()
    second = await ask(api, kind)
    assert second != first, "which has been begun"
    assert await of_kind.run_once()
    assert (await row_of(api, second)).state == "done"
    assert not await of_kind.run_once(), "the first waits for its time"


AWAY = [
    OperationalError("select", {}, Exception("terminating connection")),
    UnavailableError("The engine is away."),
    RedisConnectionError("refused"),
    TimeoutError("no answer"),
    GenericError("error sending request: client error (Connect): kind: Connect"),
]


@pytest.mark.parametrize("error", AWAY, ids=lambda each: type(each).__name__)
async def test_a_server_that_is_away_is_waited_for(api: Api, error: Exception) -> None:
    """However often; the same worker goes on from where it was, at once."""
    kind, work = new_id("kind"), Counting(2, *[error] * 2 * ATTEMPTS_MAX)
    job_id = await ask(api, kind)
    of_kind = worker(api, kind, work)
    for _ in range(2 * ATTEMPTS_MAX):
        with pytest.raises(type(error)):
            await of_kind.run_once()
        row = await row_of(api, job_id)
        assert (row.state, row.attempts, row.done) == ("running", 0, 2)
        assert row.waiting_for
    assert await of_kind.run_once()
    assert (await row_of(api, job_id)).result == {"seen": [0, 1, 2, 3]}
    assert work.begun.count(0) == work.begun.count(1) == 1


async def test_a_job_outlives_its_connections(api: Api) -> None:
    """The server ends the one that a step works by: the job goes on from where it was."""
    kind, begun = new_id("kind"), list[int]()

    async def work(asked: Asked) -> Step:
        at = asked.place["at"] if asked.place else 0
        begun.append(at)
        async with api.state.db.admin_session() as session:
            if begun.count(2) == 1 and at == 2:
                await session.execute(text("select pg_terminate_backend(pg_backend_pid())"))
        return Step({"at": at + 1} if at < 3 else None, at + 1, 4, {})

    job_id = await ask(api, kind)
    running = worker(api, kind, work).run
    outages = dict[str, str]()
    async with doing({kind: running}, outages), asyncio.timeout(PATIENCE_S):
        while (await row_of(api, job_id)).state != "done":  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.05)
    assert begun == [0, 1, 2, 2, 3]


async def test_kinds_do_not_wait_for_one_another(api: Api) -> None:
    names = set(worker_work(api.state))
    assert {"invoice_runs", "verifications"} <= names
    kind, other, may_end = new_id("kind"), new_id("kind"), asyncio.Event()

    async def slow(_: Asked) -> Step:
        await may_end.wait()
        return Step(None, 1, 1, {})

    first = await ask(api, kind)
    waits = await ask(api, other)
    running = asyncio.create_task(worker(api, kind, slow).run_once())
    assert await worker(api, other, Counting()).run_once()
    assert (await row_of(api, waits)).state == "done"
    assert (await row_of(api, first)).state != "done"
    may_end.set()
    assert await asyncio.wait_for(running, PATIENCE_S)


async def test_a_job_says_what_it_waits_for(api: Api) -> None:
    kind, may_end, inside = new_id("kind"), asyncio.Event(), asyncio.Event()

    async def slow(_: Asked) -> Step:
        inside.set()
        await may_end.wait()
        return Step(None, 1, 1, {})

    ids = [await ask(api, kind, of=str(number)) for number in range(3)]
    assert await waiting_for(api, kind, ids) == [repository.A_WORKER] * 3
    running = asyncio.create_task(worker(api, kind, slow).run_once())
    await asyncio.wait_for(inside.wait(), PATIENCE_S)
    assert await waiting_for(api, kind, ids) == [None, "1 job before it", "2 jobs before it"]
    may_end.set()
    assert await asyncio.wait_for(running, PATIENCE_S)
    assert await waiting_for(api, kind, ids) == [None, *[repository.A_WORKER] * 2]


async def waiting_for(api: Api, kind: str, ids: list[str]) -> list[str | None]:
    async with api.state.db.admin_session() as session:
        rows = await repository.list_jobs(session, kind, after=None, limit=9)
    return [row.waiting_for for job_id in ids for row in rows if row.id == job_id]


class Stopping(Counting):
    """Takes the right away, by `takes`, in its second step."""

    def __init__(self, takes: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._takes = takes

    async def __call__(self, asked: Asked) -> Step:
        if self.begun == [0]:
            await self._takes()
        return await super().__call__(asked)


async def test_a_job_ends_with_the_key_that_asked(api: Api) -> None:
    kind = new_id("kind")
    made = (await api.admin("POST", "/admin/v1/admin_keys", json={"role": "billing"})).json()
    path = f"/admin/v1/admin_keys/{made['id']}"
    prefix = key_prefix(made["key"], kind="tna")
    job_id = await ask(api, kind, f"admin_key:{made['id']}", prefix)
    work = Stopping(lambda: api.admin("DELETE", path))
    assert await worker(api, kind, work).run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.done, work.begun) == ("failed", 2, [0, 1])
    assert "has been revoked" in str(row.error)
    assert made["id"] in str(row.error)


async def test_a_job_ends_with_the_role_of_the_person_who_asked(api: Api) -> None:
    """Another role that may do it goes on."""
    kind = new_id("kind")
    person = await signed_in(api, (None, "owner"))
    path = f"/admin/v1/people/{person.id}"
    for role, ends in (("billing", "done"), ("read_only", "failed")):
        job_id = await ask(api, kind, f"person:{person.id}")
        change = partial(api.admin, "PATCH", path, json={"role": role})
        assert await worker(api, kind, Stopping(change)).run_once()
        row = await row_of(api, job_id)
        assert row.state == ends, row.error
    assert "has the role 'read_only' by now" in str(row.error)
    job_id = await ask(api, kind, f"person:{person.id}")
    await api.admin("PATCH", path, json={"role": "billing"})
    leaves = Stopping(lambda: api.admin("DELETE", path))
    assert await worker(api, kind, leaves).run_once()
    row = await row_of(api, job_id)
    assert row.state == "failed"
    assert "not a member" in str(row.error)


async def test_a_job_that_is_cancelled_ends_with_its_step(api: Api) -> None:
    kind = new_id("kind")
    job_id = await ask(api, kind)

    async def cancel() -> None:
        async with api.state.db.admin_session() as session:
            await repository.cancel(session, job_id, "somebody")

    work = Stopping(cancel)
    assert await worker(api, kind, work).run_once()
    row = await row_of(api, job_id)
    assert (row.state, row.done, work.begun) == ("cancelled", 1, [0, 1])
    assert not await worker(api, kind, Counting()).run_once()


PATHS: dict[Callable[[AppState], Kind], str] = {
    invoice_runs: "/admin/v1/invoices/runs",
    verifications: "/admin/v1/audit_logs/verifications",
}


@pytest.mark.parametrize("kind_of", PATHS)
async def test_whoever_may_start_a_job_may_cancel_it(
    api: Api, kind_of: Callable[[AppState], Kind]
) -> None:
    """The log says who did it; once more is no error."""
    kind, path = kind_of(api.state).name, PATHS[kind_of]
    spec = {"mode": "full", "period": "2026-01", "tenant": None, "draft": True}
    async with api.state.db.admin_session() as session:
        row = await repository.ask(session, kind, spec, CONFIGURED)
        row.not_before = datetime.now(UTC) + timedelta(hours=1)  # no worker takes it
    for _ in range(2):
        answer = await api.admin("POST", f"{path}/{row.id}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled"), answer.text
        assert "Cancelled by admin_key:" in answer.json()["error"]
    log = await api.admin("GET", "/admin/v1/audit_logs", params={"target": row.id})
    assert [each["action"] for each in log.json()["data"]] == [f"{kind}.cancel"]
    assert (await api.admin("POST", f"{path}/job_none/cancel")).status_code == 404


async def test_what_has_ended_cannot_be_cancelled(api: Api) -> None:
    path = PATHS[verifications]
    job = await done(api, path, {"mode": "recent"})
    answer = await api.admin("POST", f"{path}/{job['id']}/cancel")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_ended")


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
