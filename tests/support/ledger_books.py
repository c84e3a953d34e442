"""One tenant's books in a real database: its sums of usage as the sink writes them, and what its
ledger says, read by SQL of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from platform_fixtures import Servers
from tenora_platform.audit.service import AuditLog
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database
from tenora_platform.ids import new_id
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.service import Ledger

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
Key = tuple[str, str]
"""(currency, account)"""

_SUM = """
insert into usage_days as old
  (tenant_id, day, series_id, price_version_no, {meter}, {meter}_amount)
values (:tenant, :day, :series, :version, 1, :amount)
on conflict (tenant_id, day, series_id, price_version_no) do update
set {meter} = old.{meter} + 1, {meter}_amount = old.{meter}_amount + excluded.{meter}_amount
"""
_MARK = text(
    """
    insert into ledger_due (tenant_id, day) values (:tenant, :day)
    on conflict (tenant_id, day) do update set since = now()
    """
)


@pytest.fixture(scope="module")
async def db(servers: Servers, database_url: str) -> AsyncIterator[Database]:
    """The module's database without an application beside it."""
    made = Database(database_urls(database_url, servers.secret, DEFAULT))
    yield made
    await made.close()


@pytest.fixture(scope="module")
def ledger(servers: Servers) -> Ledger:
    return Ledger(servers.secret)


@dataclass(frozen=True)
class Books:
    db: Database
    ledger: Ledger
    tenant_id: str
    series: int
    versions: Mapping[str, int]  # of a price list by currency

    async def use(
        self, session: AsyncSession, day: date, currency: str, meter: str, amount: Decimal
    ) -> None:
        """As the sink: sums, then the mark, in one transaction."""
        values: dict[str, Any] = {"tenant": self.tenant_id, "day": day}
        version = self.versions[currency]
        more = {"series": self.series, "version": version, "amount": amount}
        await session.execute(text(_SUM.format(meter=meter)), values | more)
        await session.execute(_MARK, values)

    async def used(self, day: date, currency: str, meter: str, amount: Decimal) -> None:
        async with self.db.admin_session() as session:
            await self.use(session, day, currency, meter, amount)

    async def rows(self, statement: str, **values: Any) -> list[Any]:
        """As the operator's role; `:tenant` is this one."""
        async with self.db.admin_session() as session:
            found = await session.execute(text(statement), {"tenant": self.tenant_id, **values})
            return list(found.all())

    async def totals(self) -> dict[Key, Decimal]:
        """What the entries of each account add up to, those of 0 left out."""
        found = await self.rows(
            """
            select a.currency, a.name, sum(e.amount) from ledger_entries e
            join ledger_accounts a on a.id = e.account_id
            where e.tenant_id = :tenant group by 1, 2 having sum(e.amount) <> 0
            """
        )
        return {(currency, name): amount for currency, name, amount in found}

    async def balances(self) -> dict[Key, Decimal]:
        """The same by the projection."""
        found = await self.rows(
            """
            select a.currency, a.name, b.balance from ledger_balances b
            join ledger_accounts a on a.id = b.account_id
            where b.tenant_id = :tenant and b.balance <> 0
            """
        )
        return {(currency, name): amount for currency, name, amount in found}

    async def transactions(self) -> list[tuple[int, str, str]]:
        """(seq, kind, reference)"""
        found = await self.rows(
            "select seq, kind, reference from ledger_transactions where tenant_id = :tenant "
            "order by seq"
        )
        return [(seq, kind, reference) for seq, kind, reference in found]


async def new_books(
    db: Database,
    ledger: Ledger,
    currencies: tuple[str, ...] = ("USD",),
    *,
    model: str | None = None,
) -> Books:
    """A new tenant, a series of usage, and a price list in each currency: its own, or a model's."""
    tenant_id = new_id("tenant")
    versions = {}
    async with db.admin_session() as session:
        await session.execute(
            text(
                "insert into tenants (id, name, plan, created_at) "
                "values (:id, 'books', 'free', '2020-01-01')"
            ),
            {"id": tenant_id},
        )
        await AuditLog(db.secret).append(
            session, actor="test", action="tenant.create", target=tenant_id, tenant_id=tenant_id
        )
        for day, currency in enumerate(currencies, 1):
            made = await session.execute(
                text(
                    "insert into price_versions (id, tenant_id, model, currency, effective_from) "
                    "values (:id, :tenant, :model, :currency, :at) returning no"
                ),
                {
                    "id": new_id("price"),
                    "tenant": tenant_id if model is None else None,
                    "model": model,
                    "currency": currency,
                    "at": datetime(2020, 1, day, tzinfo=UTC),
                },
            )
            versions[currency] = made.scalar_one()
        series = await session.execute(
            text(
                "insert into usage_series (tenant_id, key, kind, model, class) "
                "values (:tenant, :key, 'chatcmpl', 'base', 'default') returning id"
            ),
            {"tenant": tenant_id, "key": tenant_id.encode()},
        )
    return Books(db, ledger, tenant_id, series.scalar_one(), versions)
