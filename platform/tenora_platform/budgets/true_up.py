"""Compares the counters of budgets in Redis with the books, and puts right what is wrong. One
worker does a tenant at a time; it asks no more of the database than it takes little of its time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.budgets.accounts import money_of
from tenora_platform.budgets.seeding import Seeder
from tenora_platform.budgets.store import BudgetStore, Correction
from tenora_platform.db import Database
from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import OWN_FAULT
from tenora_platform.usage.schemas import BudgetCorrection

EVERY_S = 60.0
_TIMES_SLOWER = 20  # a sum over a month that takes 10 s is made every 200 s
_SHOWN_MAX = 20
_SHOWN = "tenora:budgets:corrections"  # list, the newest first
_SHOWN_S = 86_400
_log = structlog.get_logger(__name__)


class TrueUp:
    """One runs in each worker; a lock in Redis keeps them apart."""

    def __init__(self, db: Database, store: BudgetStore, metrics: Metrics) -> None:
        self._store = store
        self._seeder = Seeder(db, store)
        self._redis = store.redis
        self._metrics = metrics

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            await asyncio.sleep(EVERY_S / 4)
            try:
                await self.run_once()
            except (RedisError, SQLAlchemyError, OSError) as error:
                _log.warning("budgets could not be compared with the books", reason=str(error))

    async def run_once(self) -> None:
        """Each tenant whose turn it is."""
        for tenant_id in await self._store.tenants():
            turn = f"tenora:budgets:{{{tenant_id}}}:compared"
            if await self._redis.set(turn, "1", nx=True, px=int(EVERY_S * 1000)):
                began_s = time.monotonic()
                try:
                    await self.compare(tenant_id)
                except OWN_FAULT as error:  # its turn comes again, after the others'
                    _log.error("budget not compared", tenant=tenant_id, exc_info=error)
                took_s = time.monotonic() - began_s
                if took_s * _TIMES_SLOWER > EVERY_S:
                    await self._redis.set(turn, "1", px=int(took_s * _TIMES_SLOWER * 1000))

    async def compare(self, tenant_id: str) -> list[Correction]:
        """One tenant's counters with the books; what was wrong and is right now."""
        accounts = await self._store.accounts(tenant_id)
        if not accounts:
            await self._store.drop(tenant_id)
            return []
        now = datetime.now(UTC)
        wrong = await self._seeder.seed(tenant_id, accounts, now, mend=True)
        for each in wrong:
            await self._tell(tenant_id, each)
        return wrong

    async def _tell(self, tenant_id: str, wrong: Correction) -> None:
        way = "raised" if wrong.after > wrong.before else "lowered"
        self._metrics.budget_corrections.labels(way).inc()
        shown = BudgetCorrection(
            tenant_id=tenant_id,
            account=wrong.account,
            counted=f"{money_of(wrong.before):f}",
            books=f"{money_of(wrong.after):f}",
            found_at=datetime.now(UTC),
        )
        _log.warning("budget counter corrected", **shown.model_dump(exclude={"found_at"}))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.lpush(_SHOWN, shown.model_dump_json())
            pipe.ltrim(_SHOWN, 0, _SHOWN_MAX - 1)
            pipe.expire(_SHOWN, _SHOWN_S)
            await pipe.execute()


async def last_corrections(redis: Redis) -> list[BudgetCorrection]:
    """Of a day, the newest first; none while Redis is away."""
    try:
        found = await redis.lrange(_SHOWN, 0, -1)
    except RedisError:
        return []
    return [BudgetCorrection.model_validate_json(each) for each in found]
