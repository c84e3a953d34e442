"""The work beside requests, in two tables: what each API process does for itself, and what a worker
does for all of them. New work goes into one of the two; who runs them is its caller's affair."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import structlog

from tenora_platform import marks
from tenora_platform.installation import Installation
from tenora_platform.outages import kind_of, log_failure
from tenora_platform.state import AppState

Work = Mapping[str, Callable[[], Awaitable[None]]]
"""By name; each would run for ever, and is begun again should it end."""

NEEDED = ("leases", "flights", "redis", "usage")
"""Without these, requests must not be served by the process that does them itself: it shows in its
/readyz when one fails. What fails in a worker is a warning there."""

IN_FLIGHT = ("leases", "flights", "budgets", "copies")
"""What of an API process' work is about requests of its own making too."""

_RETRY_S = 5.0
_CANCEL_S = 0.5
_log = structlog.get_logger(__name__)


def api_work(state: AppState) -> Work:
    """Of each process that answers requests: about what is in flight in it."""
    from tenora_platform.live.payloads import SOURCES
    from tenora_platform.operations.service import wrong

    return {
        "leases": state.limits.keep_leases,
        "flights": state.flights.keep_watch,
        "budgets": state.budgets.keep,
        "copies": state.copies.keep_on,
        "presence": state.presence.keep,
        "contents": state.contents.run,
        "answers": state.answers.keep,
        "rejected": state.rejected.keep,
        "since": partial(state.since.keep, partial(wrong, state)),
        "live": partial(state.live.keep, SOURCES, lambda source: source.begin(state)),
        "outcomes": state.outcomes.keep,
        "redis": partial(marks.keep, state.redis, _mark(state)),
    }


def _mark(state: AppState) -> str:
    return marks.mark_of(Installation(state.settings.installation), state.secret)


def worker_work(state: AppState) -> Work:
    """Of workers. Several may run: each job is taken by one of them, or does no harm twice."""
    from tenora_platform import retention
    from tenora_platform.audit.verify_job import verifications
    from tenora_platform.audit.witness import Witness
    from tenora_platform.budgets.true_up import TrueUp
    from tenora_platform.canary.rounds import Canary
    from tenora_platform.erasure.worker import Eraser
    from tenora_platform.evaluations.worker import EvaluationWorker
    from tenora_platform.history.sampler import HistorySampler
    from tenora_platform.idempotency.sweeper import keep_swept
    from tenora_platform.invoices.run_job import invoice_runs
    from tenora_platform.invoices.worker import InvoiceWorker
    from tenora_platform.jobs.worker import JobWorker
    from tenora_platform.ledger.expiry import CreditKeeper
    from tenora_platform.ledger.poster import Poster
    from tenora_platform.live.changes import Changes
    from tenora_platform.live.wakes import Wakes
    from tenora_platform.memory import pins
    from tenora_platform.memory.history import PageHistory
    from tenora_platform.people import sweeper as people_sweeper
    from tenora_platform.probing.worker import Prober
    from tenora_platform.receipts import sweeper as receipts_sweeper
    from tenora_platform.reconciliation.service import Reconciler
    from tenora_platform.registry import damage
    from tenora_platform.registry.collector import Collector
    from tenora_platform.registry.forgetting import Forgetter
    from tenora_platform.registry.worker import IntakeWorker
    from tenora_platform.rejections import sweeper as rejections_sweeper
    from tenora_platform.rollouts.keeper import RolloutKeeper
    from tenora_platform.usage.archive import UsageArchive
    from tenora_platform.usage.copies import CopyReader
    from tenora_platform.usage.engine_totals import TotalsKeeper
    from tenora_platform.usage.gate import UsageGate
    from tenora_platform.usage.leftovers import Leftovers
    from tenora_platform.usage.partitions import UsageMonths
    from tenora_platform.usage.sink import UsageSink
    from tenora_platform.usage.storage import StorageDays
    from tenora_platform.waits.sampler import WaitSampler
    from tenora_platform.webhooks.delivery import WebhookWorker

    state = dataclasses.replace(state, db=state.db.patient())
    gate = UsageGate(state.db, state.store)
    sink = UsageSink(state.engine, state.db, told=state.budgets.book, gate=gate)
    archive = UsageArchive(state.db, state.objects, state.settings.installation)
    months = state.settings.usage_retention_months
    wakes = Wakes(Changes(state.redis, state.seal))
    return {
        "wakes": wakes.keep,
        "presence": state.presence.keep,
        "uploads": state.upload_waits.listen,
        "intake": IntakeWorker(state).run,
        "store": state.store.keep,
        "collector": Collector(state).run,
        "damage": partial(damage.keep_counted, state),
        "forgetter": Forgetter(state).run,
        "eraser": Eraser(state).run,
        "rollouts": RolloutKeeper(state, wakes.on("rollouts")).run,
        "idempotency": partial(keep_swept, state.db),
        "receipts": partial(receipts_sweeper.keep_swept, state.db),
        "rejected_swept": partial(
            rejections_sweeper.keep_swept, state.db, state.settings.history_minutes_days
        ),
        "retention": partial(retention.keep_swept, state.db),
        "people": partial(people_sweeper.keep_swept, state.db, state.auth.sessions),
        "usage": sink.run,
        "ledger": Poster(state.db, state.ledger).run,
        "credit": CreditKeeper(state.db, state.ledger).run,
        "audit": partial(Witness(state.objects, state.secret).keep, state.db, state.store),
        "storage": StorageDays(state.db, state.engine, told=state.budgets.book).run,
        "totals": TotalsKeeper(state.engine, state.db, gate=gate).run,
        "waits": WaitSampler(state.engine, state.db, state.settings.history_minutes_days).run,
        "copies_read": CopyReader(state.redis, state.seal, state.db, sink, state.metrics).run,
        "budget_alerts": state.budgets.alerts.run,
        "true_up": TrueUp(state.db, state.budgets.store, state.metrics, state.seal).run,
        "invoices": InvoiceWorker(state).run,
        "invoice_runs": JobWorker(state, invoice_runs(state), wakes.on("jobs")).run,
        "verifications": JobWorker(state, verifications(state), wakes.on("jobs")).run,
        "webhooks": WebhookWorker.of(state, wakes.on("events", "webhooks")).run,
        "usage_months": UsageMonths(state.db, archive, state.store, state.metrics, months).run,
        "leftovers": Leftovers(state.db, sink, state.unbilled).run,
        "reconciliation": Reconciler(state, wakes.on("reconciliation")).run,
        "canary": Canary(state).run,
        "probes": Prober(state).run,
        "pins": partial(pins.keep_told, state),
        "pages": partial(PageHistory(state.redis, state.seal).keep, state.engine),
        "evaluations": EvaluationWorker(state, partial(wakes.on, "evaluations")).run,
        "history": HistorySampler(state).run,
        # What evaluations ask is in flight here, as requests are in API processes.
        **{name: each for name, each in api_work(state).items() if name in IN_FLIGHT},
    }


def all_work(state: AppState) -> Work:
    """Both, of a process that is alone."""
    return {**api_work(state), **worker_work(state)}


@asynccontextmanager
async def doing(work: Work, outages: dict[str, str]) -> AsyncIterator[None]:
    """All of `work` runs for as long as the block does; what fails is named in `outages`."""
    async with AsyncExitStack() as stack:
        for name, each in work.items():
            await stack.enter_async_context(_beside(name, each, outages))
        yield


@asynccontextmanager
async def _beside(
    name: str, work: Callable[[], Awaitable[None]], outages: dict[str, str]
) -> AsyncIterator[None]:
    """Run `work` for as long as the block does. Should it end, say so (in `outages` too, until it
    works again) and begin it again."""

    async def keep_working() -> None:
        while True:
            try:
                await work()
                outages[name] = "it has ended"
            except Exception as error:
                outages[name] = kind_of(error)
                log_failure(_log, "background work failed", error, work=name, again_in_s=_RETRY_S)
            await asyncio.sleep(_RETRY_S)
            outages.pop(name, None)

    task = asyncio.create_task(keep_working(), name=name)
    try:
        yield
    finally:
        while not task.done():
            task.cancel()  # again: a cancellation while redis-py connects may come out as its error
            await asyncio.wait([task], timeout=_CANCEL_S)
