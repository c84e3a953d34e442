"""The price lists in force and how far tenants are in their tiers, kept in the process for seconds:
what a request is priced by before it runs and when it ends. The usage sink reads its own, in its
transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.billing import quantities, repository
from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.rating import Volume
from tenora_platform.db import Database
from tenora_platform.single_flight import SingleFlight

KEPT_S = 5.0
VOLUMES_MAX = 10_000  # tenants whose volumes are kept
_AROUND = timedelta(hours=1)  # events that ended before, and lists that begin meanwhile
_log = structlog.get_logger(__name__)


class PriceBook:
    """While the database is away, what was last read holds."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lists: Prices | None = None
        self._read_at = -KEPT_S
        self._flights: SingleFlight[Prices] = SingleFlight()
        self._used: dict[
            str, tuple[float, Mapping[Volume, int]]
        ] = {}  # by tenant; when it was read
        self._used_flights: SingleFlight[Mapping[Volume, int]] = SingleFlight()

    async def lists(self) -> Prices:
        """Those of about now. Raises SQLAlchemyError if the database has never answered."""
        if self._lists is not None and time.monotonic() - self._read_at < KEPT_S:
            return self._lists
        return await self._flights.run("lists", self._read)

    async def _read(self) -> Prices:
        now = datetime.now(UTC)
        try:
            async with self._db.admin_session() as session:
                lists = await repository.price_lists(session, now - _AROUND, now + _AROUND)
                self._lists = Prices(lists)
        except (SQLAlchemyError, OSError) as error:
            if self._lists is None:
                raise
            _log.warning("price lists could not be read", reason=str(error))
        self._read_at = time.monotonic()
        return self._lists

    async def used(self, tenant_id: str) -> Mapping[Volume, int]:
        """How far the tenant was lately in the tiers of this month's lists. It is further by now,
        never back. Costs nothing where no list has tiers; empty where that cannot be read, which
        leaves every tier open."""
        if not (await self.lists()).tiered:
            return {}
        read_at, used = self._used.get(tenant_id, (-KEPT_S, {}))
        if time.monotonic() - read_at < KEPT_S:
            return used
        return await self._used_flights.run(tenant_id, lambda: self._read_used(tenant_id))

    async def _read_used(self, tenant_id: str) -> Mapping[Volume, int]:
        month = (datetime.now(UTC) - _AROUND).date().replace(day=1)
        _, used = self._used.pop(tenant_id, (0.0, {}))
        try:
            async with self._db.tenant_session(tenant_id) as session:
                used = await quantities.volumes_of(session, tenant_id, month)
        except (SQLAlchemyError, OSError) as error:
            _log.warning(
                "volumes of price tiers could not be read", tenant=tenant_id, reason=str(error)
            )
        while len(self._used) >= VOLUMES_MAX:
            del self._used[next(iter(self._used))]  # the one read longest ago
        self._used[tenant_id] = time.monotonic(), used
        return used
