"""The price lists in force, kept in the process for seconds: what a request is priced by before it
runs and when it ends. The usage sink reads its own, in its transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.billing import repository
from tenora_platform.billing.rating import PriceList
from tenora_platform.db import Database
from tenora_platform.single_flight import SingleFlight

KEPT_S = 5.0
_AROUND = timedelta(hours=1)  # events that ended before, and lists that begin meanwhile
_log = structlog.get_logger(__name__)


class PriceBook:
    """While the database is away, the lists that were last read hold."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lists: Sequence[PriceList] | None = None
        self._read_at = -KEPT_S
        self._flights: SingleFlight[Sequence[PriceList]] = SingleFlight()

    async def lists(self) -> Sequence[PriceList]:
        """Those of about now. Raises SQLAlchemyError if the database has never answered."""
        if self._lists is not None and time.monotonic() - self._read_at < KEPT_S:
            return self._lists
        return await self._flights.run("lists", self._read)

    async def _read(self) -> Sequence[PriceList]:
        now = datetime.now(UTC)
        try:
            async with self._db.admin_session() as session:
                self._lists = await repository.price_lists(session, now - _AROUND, now + _AROUND)
        except (SQLAlchemyError, OSError) as error:
            if self._lists is None:
                raise
            _log.warning("prices not read", reason=str(error))
        self._read_at = time.monotonic()
        return self._lists
