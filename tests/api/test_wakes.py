"""Work that waits is woken by what other processes commit, and looks by time where it hears of
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import pytest

from api_harness import Api
from tenora_platform.evaluations import worker as evaluations_worker
from tenora_platform.evaluations.worker import EvaluationWorker
from tenora_platform.invoices.run_job import invoice_runs
from tenora_platform.jobs import worker as jobs_worker
from tenora_platform.jobs.worker import JobWorker
from tenora_platform.live.changes import Changes
from tenora_platform.live.hub import Hub
from tenora_platform.live.stream import Stream
from tenora_platform.live.topics import FOR_WORKERS, TOPICS
from tenora_platform.live.wakes import Wake, Wakes
from tenora_platform.reconciliation import repository as reconciliation
from tenora_platform.reconciliation import service as reconciliation_service
from tenora_platform.reconciliation.service import Reconciler
from tenora_platform.reconciliation.task import Scope
from tenora_platform.rollouts import keeper as rollout_keeper
from tenora_platform.rollouts.keeper import RolloutKeeper
from tenora_platform.webhooks import delivery as webhook_delivery
from tenora_platform.webhooks.delivery import WebhookWorker

LONG_S = 600.0


@pytest.fixture
async def wakes(api: Api) -> AsyncIterator[Wakes]:
    made = Wakes(Changes(api.state.redis, api.state.seal))
    task = asyncio.create_task(made.keep())
    await asyncio.wait_for(made._listening.wait(), 10)
    yield made
    task.cancel()


async def test_it_is_woken_by_what_another_commits(api: Api, wakes: Wakes) -> None:
    wake, other = wakes.on("reconciliation"), wakes.on("evaluations")
    waiting = asyncio.create_task(wake.wait(LONG_S, LONG_S))
    others = asyncio.create_task(other.wait(LONG_S, LONG_S))
    async with api.state.db.admin_session() as session:
        await reconciliation.ask(session, Scope(), "somebody")
    await asyncio.wait_for(waiting, 30)
    assert not others.done()
    others.cancel()


async def test_what_changed_while_it_worked_is_not_missed(api: Api) -> None:
    wake = Wake()
    wake.ring()
    await asyncio.wait_for(wake.wait(LONG_S, LONG_S), 30)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wake.wait(LONG_S, LONG_S), 0.05)


async def test_without_a_channel_it_looks_by_time() -> None:
    await asyncio.wait_for(Wake(asyncio.Event()).wait(LONG_S, 0.01), 30)


WORKERS = {
    "reconciliation": (reconciliation_service, "_LOOK_EVERY_S", Reconciler, "run_once"),
    "rollouts": (rollout_keeper, "_QUIET_S", RolloutKeeper, "run_once"),
    "events": (webhook_delivery, "QUIET_S", WebhookWorker, "step"),
    "jobs": (jobs_worker, "_LOOK_EVERY_S", JobWorker, "run_once"),
    "evaluations": (evaluations_worker, "_QUIET_S", EvaluationWorker, "run_once"),
}


@pytest.mark.parametrize("topic", WORKERS)
async def test_quiet_work_looks_again_when_it_is_told(
    api: Api, wakes: Wakes, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """By time it would only after ten minutes."""
    module, every, kind, look = WORKERS[topic]
    looks = asyncio.Semaphore(0)

    async def looked(self: Any) -> bool:
        looks.release()
        self._waits, self._none_open = False, True
        return False

    monkeypatch.setattr(module, every, LONG_S)
    monkeypatch.setattr(kind, look, looked)
    wake = wakes.on(topic)
    made: dict[type, Callable[[], Any]] = {
        Reconciler: lambda: Reconciler(api.state, wake),
        RolloutKeeper: lambda: RolloutKeeper(api.state, wake),
        WebhookWorker: lambda: WebhookWorker.of(api.state, wake),
        JobWorker: lambda: JobWorker(api.state, invoice_runs(api.state), wake),
        EvaluationWorker: lambda: EvaluationWorker(api.state, partial(wakes.on, topic)),
    }
    working = asyncio.create_task(made[kind]().run())
    try:
        async with asyncio.timeout(30):
            for _ in range(2 if kind is EvaluationWorker else 1):  # each of its turns
                await looks.acquire()
            api.state.live._changes.tell(None, [topic])
            await looks.acquire()
    finally:
        working.cancel()


class Listener:
    """A stream of the operator's."""

    tenant_id = None

    def __init__(self, heard: list[frozenset[str]]) -> None:
        self.change = heard.append


def test_no_page_hears_of_what_is_for_workers() -> None:
    assert not TOPICS & FOR_WORKERS
    heard: list[frozenset[str]] = []
    hub = Hub(None, None)  # type: ignore[arg-type]
    hub._streams[cast(Stream, Listener(heard))] = None
    hub._heard(None, frozenset({"jobs"}))
    hub._heard(None, frozenset({"jobs", "audit"}))
    assert heard == [frozenset({"audit"})]
