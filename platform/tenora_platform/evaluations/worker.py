"""EvaluationWorker: asks what evaluations want asked, a few requests at a time, and keeps every
answer as it comes. Tenants take turns, and the evaluations of each take that one's. What is
answered is never asked again; what a crash cut off is asked again at the platform's expense."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from redis.exceptions import RedisError
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from tenora_engine.errors import EngineError
from tenora_engine.printable import brief
from tenora_platform.auth import TenantContext
from tenora_platform.errors import (
    ApiError,
    ForbiddenError,
    QuotaExceededError,
    RateLimitedError,
    UnauthorizedError,
    UnavailableError,
    from_engine,
)
from tenora_platform.evaluations import repository
from tenora_platform.evaluations.asking import Answered, ItemAsker, model_of
from tenora_platform.evaluations.payers import platform, tenant_of
from tenora_platform.evaluations.repository import Ask
from tenora_platform.evaluations.schemas import OPEN, Item, Subject
from tenora_platform.evaluations.tables import EvaluationRow
from tenora_platform.events import repository as events
from tenora_platform.live.wakes import Wake
from tenora_platform.locks import try_lock
from tenora_platform.mending import mended
from tenora_platform.outages import is_own_fault, log_failure
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.state import AppState

POLL_S = 2.0
_QUIET_S = 15.0
"""While none is open."""
SWEEP_EVERY_S = 3600.0
RETRY_S = 5.0
AT_ONCE = 4  # requests of one evaluation
TENANTS_AT_ONCE = 3  # in one process: a tenant's slow requests hold up nobody else's
TURN_CONNECTIONS = 8  # of all that a process has: a turn holds one, and needs another to go on
TURN = 32  # requests of an evaluation before the next one's
TURN_S = 10.0  # after which none is begun before the next one's
LOOKED_AT = 32  # evaluations whose tenants may have a turn already
ATTEMPTS_MAX = 5  # turns of one evaluation in a row at which the server may fail
_log = structlog.get_logger(__name__)


class _StopError(Exception):
    """The evaluation ends here; the message says why."""


class EvaluationWorker:
    """One in each worker; locks keep an evaluation to one of them, and a tenant to one turn."""

    def __init__(self, state: AppState, wakes: Callable[[], Wake] = Wake) -> None:
        """`wakes`: an evaluation was created or changed."""
        self._state = state
        self._wakes = wakes
        self._none_open = False

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        at_once = self._state.settings.database_connections // TURN_CONNECTIONS
        others = range(1, min(TENANTS_AT_ONCE, at_once))
        await asyncio.gather(self._go_on(sweeps=True), *(self._go_on(sweeps=False) for _ in others))

    async def _go_on(self, *, sweeps: bool) -> None:
        sweep_s, wake = 0.0, self._wakes()
        while True:
            try:
                if sweeps and time.monotonic() >= sweep_s:
                    sweep_s = time.monotonic() + SWEEP_EVERY_S
                    await self.sweep()
                worked = self._state.engine.ready and await self.run_once()
            except Exception as error:
                log_failure(_log, "evaluations paused", error, retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            if not worked:
                await wake.wait(_QUIET_S if self._none_open else POLL_S, POLL_S)

    async def sweep(self, now: datetime | None = None) -> int:
        """Delete what ended too long ago; how many."""
        days = self._state.settings.evaluation_retention_days
        if days is None:
            return 0
        moment = (now or datetime.now(UTC)) - timedelta(days=days)
        deleted = 0
        while True:
            async with self._state.db.admin_session() as session:
                found = await repository.ended_before(session, moment, LOOKED_AT)
                free = [each for each in found if await try_lock(session, f"evaluation:{each}")]
                await repository.remove(session, free)
            deleted += len(free)
            if not free:
                return deleted

    async def run_once(self) -> bool:
        """A turn of the evaluation whose turn it is; whether there was one."""
        async with self._state.db.admin_session() as session:
            self._none_open = not await repository.any_open(session)
            if self._none_open:
                return False
            rows = await repository.waiting(session, datetime.now(UTC), LOOKED_AT)
        busy: set[str] = set()
        for row in rows:
            if row.tenant_id in busy:
                continue
            async with self._state.db.admin_session() as guard:
                if not await try_lock(guard, f"evaluating:{row.tenant_id}"):
                    busy.add(row.tenant_id)
                elif await try_lock(guard, f"evaluation:{row.id}"):
                    try:
                        await self._turn(row)
                    except Exception as error:
                        if not is_own_fault(error):
                            raise
                        await self._set_back(row, error)
                    return True
        return False

    async def _set_back(self, row: EvaluationRow, error: Exception) -> None:
        """It is tried again after a while, for which no other waits, and in the end given up."""
        attempts = row.attempts + 1
        log_failure(_log, "evaluation failed", error, evaluation=row.id, attempt=attempts)
        if attempts < ATTEMPTS_MAX:
            later = datetime.now(UTC) + timedelta(seconds=RETRY_S * 2**attempts)
            async with self._state.db.admin_session() as session:
                await repository.move(session, row.id, OPEN, not_before=later, attempts=attempts)
            return
        self._state.metrics.jobs_parked.labels("evaluation").inc()
        _log.error("evaluation given up", evaluation=row.id, tenant=row.tenant_id)
        await self._end(row, "failed", f"The server failed {attempts} times while it ran this.")

    async def _turn(self, row: EvaluationRow) -> None:
        now = datetime.now(UTC)
        async with self._state.db.admin_session() as session:
            if not await repository.move(session, row.id, OPEN, state="running", served_at=now):
                return  # cancelled meanwhile
            asks = await repository.unanswered(session, row, TURN)
        if not asks:
            await self._end(row, "completed")
            return
        try:
            await self._ask_all(row, asks)
        except _StopError as error:
            await self._end(row, "failed", str(error))
        except (RateLimitedError, UnavailableError) as error:
            wait = timedelta(milliseconds=getattr(error, "retry_after_ms", 1000 * RETRY_S))
            async with self._state.db.admin_session() as session:
                later = datetime.now(UTC) + wait
                await repository.move(session, row.id, OPEN, not_before=later)
            return
        if row.attempts:
            async with self._state.db.admin_session() as session:
                await repository.move(session, row.id, OPEN, attempts=0)

    async def _ask_all(self, row: EvaluationRow, asks: Sequence[Ask]) -> None:
        """As many as TURN_S allows, and at least the first few; none once the evaluation is
        cancelled. Raises the first of what stops them all, when all have ended."""
        subjects = {each["name"]: Subject(**each) for each in row.subjects}
        await self._require_servable(subjects.values())
        await asyncio.to_thread(lambda: self._state.engine.text)  # made on first use
        try:
            tenant = await tenant_of(self._state, row.tenant_id, row.key_id)
        except ApiError as error:
            raise _StopError(error.message) from error
        waiting = list(reversed(asks))
        failures: list[Exception] = []
        until_s = time.monotonic() + TURN_S

        async def ask_on() -> None:
            while waiting and not failures:
                ask = waiting.pop()
                try:
                    if await self._is_cancelled(row):
                        waiting.clear()
                        break
                    await self._ask(row, ask, subjects[ask.subject], tenant)
                except Exception as error:
                    failures.append(error)
                if time.monotonic() >= until_s:
                    waiting.clear()

        await asyncio.gather(*(ask_on() for _ in range(min(AT_ONCE, len(waiting)))))
        for failure in failures:
            raise failure

    async def _is_cancelled(self, row: EvaluationRow) -> bool:
        async with self._state.db.admin_session() as session:
            return not await repository.is_open(session, row.id)

    async def _require_servable(self, subjects: Iterable[Subject]) -> None:
        wanted = {each.version_id: each.number for each in subjects if each.version_id}
        query = select(AdapterVersionRow.id).where(
            AdapterVersionRow.id.in_(wanted), AdapterVersionRow.state.in_(SERVABLE)
        )
        async with self._state.db.admin_session() as session:
            found = set(await session.scalars(query))
        for version_id, number in wanted.items():
            if version_id not in found:
                raise _StopError(f"Version {number} has been deleted or revoked.")

    async def _ask(
        self, row: EvaluationRow, ask: Ask, subject: Subject, tenant: TenantContext
    ) -> None:
        """Raises _StopError, RateLimitedError and UnavailableError for what is not the item's."""
        known = ask.known
        is_owners = not ask.was_cut
        payer = tenant if is_owners else await platform(self._state)
        model = model_of(self._state, row.adapter, subject, is_owners=is_owners)
        asker = ItemAsker(self._state, payer, model)
        if subject.version_id is not None and "messages" in ask.item:
            asker.template = await self._state.templates.of_version(
                row.tenant_id, subject.version_id, self._state.engine.text
            )
        if known is not None and is_owners:
            asker.answered = Answered(
                place=known.place,
                total=known.total,
                request_ids=list(known.request_ids),
                prompt_tokens=known.prompt_tokens,
                output_tokens=known.output_tokens,
            )
        if is_owners:
            await self._keep(row, ask, asking=True)
        try:
            await asker.ask(row.scoring, Item(**ask.item), row.max_tokens)
        except (ApiError, EngineError) as error:
            await self._failed(row, ask, asker.answered, error, is_owners=is_owners)
        except (SQLAlchemyError, RedisError):
            raise  # a server is away, whatever the item
        except Exception:
            # An item that breaks us must not be asked for ever.
            _log.exception("evaluation item failed", evaluation=row.id, item=ask.no)
            failure = "The server failed while it ran this item."
            await self._answered(row, ask, asker.answered, failure, is_owners=is_owners)
        else:
            await self._answered(row, ask, asker.answered, None, is_owners=is_owners)

    async def _failed(
        self,
        row: EvaluationRow,
        ask: Ask,
        so_far: Answered,
        failure: ApiError | EngineError,
        *,
        is_owners: bool,
    ) -> None:
        """An item that cannot be asked is answered by its error. What holds for all leaves it for
        later: half a loglikelihood is kept; an answer that was cut off counts as by a crash."""
        error = failure if isinstance(failure, ApiError) else from_engine(failure)
        waits = isinstance(error, RateLimitedError | UnavailableError)
        ends = isinstance(error, QuotaExceededError | ForbiddenError | UnauthorizedError)
        if not (waits or ends):
            await self._answered(row, ask, so_far, error.message, is_owners=is_owners)
            return
        whole = row.scoring == "loglikelihood" or not so_far.prompt_tokens
        if is_owners and whole:
            await self._keep(row, ask, asking=False, **_meters(so_far))
        if ends:
            raise _StopError(error.message) from failure
        raise error

    async def _answered(
        self,
        row: EvaluationRow,
        ask: Ask,
        found: Answered,
        error: str | None,
        *,
        is_owners: bool,
    ) -> None:
        values: dict[str, Any] = {
            "answer": mended(found.answer),
            "score": found.score if error is None else None,
            "error": None if error is None else brief(error),
            "asking": False,
            "answered_at": datetime.now(UTC),
        }
        await self._keep(row, ask, **values, **(_meters(found) if is_owners else {}))

    async def _keep(self, row: EvaluationRow, ask: Ask, **values: Any) -> None:
        async with self._state.db.admin_session() as session:
            await repository.put_answer(session, row, ask, **values)

    async def _end(self, row: EvaluationRow, state: str, error: str | None = None) -> None:
        now, error = datetime.now(UTC), None if error is None else brief(error)
        async with self._state.db.admin_session() as session:
            moved = await repository.move(
                session, row.id, OPEN, state=state, error=error, ended_at=now
            )
            if moved:
                await events.add(
                    session,
                    tenant_id=row.tenant_id,
                    type=f"evaluation.{state}",
                    once=row.id,
                    data={"id": row.id, "adapter": row.adapter, "error": error},
                )
        _log.info("evaluation ended", evaluation=row.id, state=state, error=error)


def _meters(found: Answered) -> dict[str, Any]:
    return {
        "request_ids": found.request_ids,
        "prompt_tokens": found.prompt_tokens,
        "output_tokens": found.output_tokens,
        "place": found.place,
        "total": found.total,
    }
