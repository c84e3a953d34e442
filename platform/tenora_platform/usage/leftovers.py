"""What is kept and not billed: events that wait for a price, and records that were set aside. Tries
both again from time to time, and makes their number known."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.events import Metered, UsageRecord
from tenora_platform.billing import waiting
from tenora_platform.billing.service import rate_waiting
from tenora_platform.db import Database, plain_reason
from tenora_platform.usage import repository
from tenora_platform.usage.ids import event_text, request_text, x_request_id_of
from tenora_platform.usage.occupancy import rate_waiting_occupancy
from tenora_platform.usage.records import occupancy_record_of, record_of
from tenora_platform.usage.schemas import DeadLetter, Reconciliation, UnratedEvent
from tenora_platform.usage.sink import UsageSink
from tenora_platform.usage.tables import DeadLetterRow

EVERY_S = 30.0
LETTERS_AT_ONCE = 200
SHOWN_MAX = 20
_BEFORE_RAW = "the database refused it"  # the only reason of old letters that time may mend
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Unbilled:
    """How much there is in the whole database, as last counted."""

    counted: tuple[int, int] | None = None  # usage events without a price, dead letters

    @property
    def unrated_events(self) -> int:
        return self.counted[0] if self.counted else 0


def unbilled_warnings(unrated_events: int, dead_letters: int) -> list[str]:
    """For `/readyz`: requests are served, and somebody has to look."""
    found = []
    if unrated_events:
        found.append(f"{unrated_events} usage events have no price and are not billed.")
    if dead_letters:
        found.append(
            f"{dead_letters} usage records could not be stored as events. They are kept whole in "
            f"the database, and tried again every {EVERY_S:.0f} s."
        )
    return [f"{each} See GET /admin/v1/reconciliation." for each in found]


class Leftovers:
    """One runs in each platform process; they do not get into each other's way."""

    def __init__(self, db: Database, sink: UsageSink, unbilled: Unbilled) -> None:
        self._db = db
        self._sink = sink
        self._unbilled = unbilled
        self._after = ""  # the letter that was tried last

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                await self.run_once()
            except (SQLAlchemyError, OSError) as error:
                _log.warning(
                    "unbilled usage could not be counted",
                    reason=plain_reason(error),
                    retry_s=EVERY_S,
                )
            await asyncio.sleep(EVERY_S)

    async def run_once(self) -> None:
        await rate_waiting(self._db)
        await rate_waiting_occupancy(self._db)
        await self._retry_letters()
        async with self._db.admin_session() as session:
            self._tell(
                await waiting.count_unrated(session), await repository.count_open_letters(session)
            )

    def _tell(self, unrated: int, letters: int) -> None:
        before = self._unbilled.counted or (0, 0)
        self._unbilled.counted = (unrated, letters)
        if (unrated, letters) != before:
            log = _log.error if unrated or letters else _log.info
            log("usage not billed", unrated_events=unrated, dead_letters=letters)

    async def _retry_letters(self) -> None:
        """The next few; after the last ones it begins anew."""
        async with self._db.admin_session() as session:
            letters = await repository.open_letters(session, self._after, LETTERS_AT_ONCE)
        for letter in letters:
            record = _record(letter)
            if record is not None and await self._sink.retry(record):
                _log.info("usage record recovered from the dead letters", event_id=letter.event_id)
        self._after = letters[-1].event_id if len(letters) == LETTERS_AT_ONCE else ""


def _record(letter: DeadLetterRow) -> Metered | None:
    try:
        if letter.raw is not None:
            is_request = letter.sequence is not None or letter.request is None
            return (record_of if is_request else occupancy_record_of)(letter.raw)
        if letter.reason.startswith(_BEFORE_RAW):
            return msgspec.convert(letter.record, UsageRecord)
    except msgspec.MsgspecError:
        pass  # of another version
    return None


async def reconciliation(session: AsyncSession) -> Reconciliation:
    """How much is not billed, and the newest of it with the reasons."""
    unrated, letters = (
        await waiting.count_unrated(session),
        await repository.count_open_letters(session),
    )
    return Reconciliation(
        settled=not unrated and not letters,
        unrated_events=unrated,
        dead_letters=letters,
        newest_unrated_events=[
            UnratedEvent(
                event_id=event_text(each.series.kind, each.row.request, each.row.sequence),
                tenant_id=each.mark.tenant_id,
                request_id=request_text(each.series.kind, each.row.request),
                x_request_id=x_request_id_of(each.row.request, each.row.x_request_id),
                reason=each.mark.reason,
                since=each.mark.since,
            )
            for each in await waiting.last_unrated(session, SHOWN_MAX)
        ],
        newest_dead_letters=[
            DeadLetter(
                event_id=row.event_id,
                reason=row.reason,
                received_at=row.received_at,
                record=row.record,
            )
            for row in await repository.last_letters(session, SHOWN_MAX)
        ],
    )
