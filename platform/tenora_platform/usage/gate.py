"""Whether usage may be stored in this database. What is acknowledged in a wrong
database is billed nowhere once the right one is back, so it waits in the outbox."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from obstore.exceptions import BaseError
from sqlalchemy import select

from tenora_engine.events import Metered, OccupancyRecord
from tenora_platform.canary.tables import CanaryRow
from tenora_platform.db import Database, plain_reason
from tenora_platform.registry.store_identity import StoreIdentity
from tenora_platform.tenants.tables import TenantRow

_log = structlog.get_logger(__name__)


class UsageHeldError(Exception):
    """Usage must not be stored in this database now; /readyz and the log say why."""


class UsageGate:
    """One for each process that stores usage. `store` knows whether object store and database
    belong together."""

    def __init__(self, db: Database, store: StoreIdentity) -> None:
        self._db = db
        self._store = store

    async def pass_(self, records: Sequence[Metered] = ()) -> None:
        """Raises UsageHeldError where nothing may be taken, or these may not be stored: the object
        store is another database's, or they name tenants and there are none here."""
        try:
            agrees = await self._store.belongs()
        except BaseError as error:
            _log.warning("usage waits for the object store", reason=plain_reason(error))
            raise UsageHeldError from error
        if not agrees:
            raise UsageHeldError
        if not records:
            return
        is_strange = await self._are_strange(records)
        self._store.tell_strange_usage(is_strange)
        if is_strange:
            raise UsageHeldError

    def tell_unreadable(self, count: int) -> None:
        """How much of the engine's outbox cannot be read."""
        self._store.tell(unreadable_usage=count)

    async def _are_strange(self, records: Sequence[Metered]) -> bool:
        """Whether one of them names a tenant that does not exist, and none exists but our
        own (of canaries and probes), as in a database that was made anew."""
        named = {
            each.tenant if isinstance(each, OccupancyRecord) else each.context.get("tenant_id")
            for each in records
        }
        own = ~TenantRow.internal & TenantRow.id.not_in(select(CanaryRow.tenant))
        async with self._db.admin_session() as session:
            if await session.scalar(select(TenantRow.id).where(own).limit(1)) is not None:
                return False
            return not named <= set(await session.scalars(select(TenantRow.id)))
