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

from tenora_engine.sealing import Seal
from tenora_platform.budgets.accounts import money_of
from tenora_platform.budgets.seeding import Seeder, is_account
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
_SEALED = "budget-corrections"
_LONGEST_MS = 6 * 3600 * 1000  # a tenant is compared that often at least
_log = structlog.get_logger(__name__)


# ARGV: milliseconds, the most that a turn of ours ever lasts: a longer one is somebody else's.
_TURN = """
local left = redis.call('PTTL', KEYS[1])
if left == -1 or left > tonumber(ARGV[2]) then redis.call('DEL', KEYS[1]) end
return redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1])
"""


class TrueUp:
    """One runs in each worker; a lock in Redis keeps them apart."""

    def __init__(self, db: Database, store: BudgetStore, metrics: Metrics, seal: Seal) -> None:
        self._store = store
        self._seal = seal
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
            longest_ms = str(_LONGEST_MS)
            if await self._redis.eval(_TURN, 1, turn, str(int(EVERY_S * 1000)), longest_ms):
                began_s = time.monotonic()
                try:
                    await self.compare(tenant_id)
                except OWN_FAULT as error:  # its turn comes again, after the others'
                    _log.error("budget not compared", tenant=tenant_id, exc_info=error)
                took_s = time.monotonic() - began_s
                if took_s * _TIMES_SLOWER > EVERY_S:
                    rest_ms = min(int(took_s * _TIMES_SLOWER * 1000), _LONGEST_MS)
                    await self._redis.set(turn, "1", px=rest_ms)

    async def compare(self, tenant_id: str) -> list[Correction]:
        """One tenant's counters with the books; what was wrong and is right now."""
        accounts = [name for name in await self._store.accounts(tenant_id) if is_account(name)]
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
            content = shown.model_dump_json().encode()
            pipe.lpush(_SHOWN, self._seal.close(_SEALED, _SHOWN, content, _SHOWN_S))
            pipe.ltrim(_SHOWN, 0, _SHOWN_MAX - 1)
            pipe.expire(_SHOWN, _SHOWN_S)
            await pipe.execute()


async def last_corrections(redis: Redis, seal: Seal) -> list[BudgetCorrection]:
    """Of a day, the newest first; none while Redis is away."""
    try:
        found = await redis.lrange(_SHOWN, 0, _SHOWN_MAX - 1)
    except RedisError:
        return []
    opened = [seal.open(_SEALED, _SHOWN, each) for each in found]
    return [BudgetCorrection.model_validate_json(each) for each in opened if each is not None]
