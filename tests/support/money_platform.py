"""The platform's side of a history of money: the same steps, done by its own services on a real
database with the clock that the history says, and what its books, pages and invoices say then."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from typing import Any
from uuid import UUID

from sqlalchemy import select, text

from money_histories import Who
from money_model import Grant
from money_prices_model import OCCUPANCY, Event, PriceList
from tenora_engine.events import UsageRecord
from tenora_platform.audit.service import AuditLog
from tenora_platform.billing.price_lists import Scope, Tier
from tenora_platform.billing.prices import Terms, add_price_version
from tenora_platform.billing.service import rate_waiting
from tenora_platform.budgets.grants import Grant as CreditGrant
from tenora_platform.budgets.grants import grant_credit
from tenora_platform.db import Database
from tenora_platform.errors import ApiError
from tenora_platform.ids import new_id
from tenora_platform.invoices import repository
from tenora_platform.invoices.details import LineQuery, details_of
from tenora_platform.invoices.lines import USED
from tenora_platform.invoices.parts import Part
from tenora_platform.invoices.period import first_day
from tenora_platform.invoices.runs import InvoiceRuns, Wanted
from tenora_platform.invoices.service import InvoiceService
from tenora_platform.invoices.tables import InvoiceRow
from tenora_platform.ledger.credits import apply_credits
from tenora_platform.ledger.poster import post_due
from tenora_platform.ledger.service import Ledger
from tenora_platform.ledger.verify import problems
from tenora_platform.usage.books import UsageBooks
from tenora_platform.usage.occupancy import Occupancy, OccupancyBooks, rate_waiting_occupancy
from tenora_platform.usage.series import Series
from tenora_platform.usage.service import TENANT_GROUPS, find_costs, make_query

BEGINNING = datetime.min.replace(tzinfo=UTC)
"""As the keeper of credit does it: a grant's use is posted with an invoice, or when it expires."""
_numbers = itertools.count(1)
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def decimal(amount: Fraction) -> Decimal:
    """Exact: prices and amounts of the histories have few decimals."""
    scaled = amount * 10**12
    assert scaled.denominator == 1, amount
    return Decimal(scaled.numerator).scaleb(-12)


@dataclass
class MoneyPlatform:
    """`names`: what the histories call each price version, by its number."""

    db: Database
    ledger: Ledger
    audit: AuditLog
    names: dict[int, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.books = UsageBooks(self.db)
        self.occupancy = OccupancyBooks(self.db)

    async def rows(self, statement: str, **values: Any) -> list[Any]:
        async with self.db.admin_session() as session:
            return list((await session.execute(text(statement), values)).all())

    async def new_tenant(self, tax_rate: Fraction) -> Who:
        """With a plan and two adapters that are nobody else's."""
        number = next(_numbers)
        who = Who(
            tenant=new_id("tenant"),
            model=f"model-{number}",
            plan=f"plan-{number}",
            other_plan=f"other-{number}",
            adapters={None: None, "a": new_id("adapter"), "b": new_id("adapter")},
        )
        plans = {"plan": who.plan, "other": who.other_plan}
        values = {"tenant": who.tenant, **plans, **_adapter_values(who)}
        async with self.db.admin_session() as session:
            for statement in _NEW_TENANT:
                await session.execute(text(statement), values)
            if tax_rate:
                await session.execute(
                    text(
                        "INSERT INTO billing_profiles (tenant_id, tax_name, tax_rate) "
                        "VALUES (:tenant, 'VAT', :rate)"
                    ),
                    {"tenant": who.tenant, "rate": decimal(tax_rate * 100)},
                )
        return who

    # Steps

    async def store(self, events: list[Event]) -> None:
        records = [_record(each) for each in events if not _is_occupancy(each)]
        booked = await self.books.store(records)
        assert not booked.bad
        for each in events:  # one by one: in a batch they are rated in an order of their own
            if _is_occupancy(each):
                await self.occupancy.store([_occupancy(each)])

    async def announce(self, prices: PriceList) -> datetime | bool:
        """Whether it was taken; where it was refused, from when on it would be."""
        scope = Scope(prices.adapter, prices.tenant, prices.plan, prices.model)
        tiers: dict[Any, tuple[Tier, ...]] = {
            key: tuple(Tier(begin, decimal(price)) for begin, price in each)
            for key, each in prices.prices.items()
        }
        terms = Terms(prices.currency, tiers, decimal(prices.minimum), decimal(prices.included))
        try:
            async with self.db.admin_session() as session:
                made = await add_price_version(session, scope, terms, prices.begins)
        except ApiError as error:
            if error.code != "price_in_rated_period":
                return False
            return datetime.fromisoformat(error.details["earliest_effective_from"])
        self.names[made.no] = prices.name
        await rate_waiting(self.db)
        await rate_waiting_occupancy(self.db)
        return True

    async def move(self, who: Who, plan: str, now: datetime) -> None:
        """To another plan, at the history's time: the trigger's rows are of the clock's."""
        values = {"tenant": who.tenant, "since": now, "plan": plan}
        statement = (
            "INSERT INTO tenant_plans (tenant_id, since, plan) VALUES (:tenant, :since, :plan)"
        )
        async with self.db.admin_session() as session:
            await session.execute(text(statement), values)

    async def grant(self, who: Who, grant: Grant, currency: str) -> None:
        given = CreditGrant(
            amount=decimal(grant.amount),
            kind=grant.kind,  # type: ignore[arg-type]
            currency=currency,
            expires_at=grant.expires,
            note=grant.name,
        )
        async with self.db.admin_session() as session:
            await grant_credit(session, self.ledger, who.tenant, given, now=grant.created)

    async def work(self, who: Who, now: datetime) -> None:
        async with self.db.admin_session() as session:
            await post_due(session, self.ledger, who.tenant, now)
            await apply_credits(session, self.ledger, who.tenant, BEGINNING, now)

    async def run(self, who: Who | None, month: str, now: datetime) -> None:
        """None: for all tenants."""
        runs = InvoiceRuns(self.db, self.ledger, self.audit, "test", now=lambda: now)
        report = await runs.run(Wanted(first_day(month), who.tenant if who else None))
        assert not report.failed, report.failed

    async def act(self, name: str, *values: Any) -> bool:
        """void, pay, credit: whether it was allowed."""
        try:
            async with self.db.admin_session() as session:
                service = InvoiceService(session, self.ledger, self.audit, "test")
                await getattr(service, name)(*values)
        except ApiError:
            return False
        return True

    # What it says

    async def invoices(self, who: Who) -> list[dict[str, Any]]:
        """In the order in which they were made, with their lines as the model writes them."""
        lines = defaultdict(list)
        for of, *rest in await self.rows(_LINES, tenant=who.tenant):
            kind, exact, amount, quantity, month, meter, class_, version = rest
            key = (month, meter, class_, None if version is None else self.names[version])
            said = (kind, Fraction(exact), Fraction(amount), int(quantity or 0), *key)
            lines[of].append(said)
        found = []
        for of, period, currency, status, total in await self.rows(_INVOICES, tenant=who.tenant):
            found.append(
                {
                    "id": of,
                    "month": period,
                    "currency": currency,
                    "status": status,
                    "total": Fraction(total),
                    "lines": lines[of],
                }
            )
        return found

    async def behind(self, who: Who) -> list[tuple[Any, ...]]:
        """(line's quantity and exact amount, those of the requests behind it) of every line of
        usage of every invoice, void ones too."""
        query = LineQuery("request", 1000, None, Part())
        found = []
        async with self.db.admin_session() as session:
            of = select(InvoiceRow).where(InvoiceRow.tenant_id == who.tenant)
            for row in await session.scalars(of.where(InvoiceRow.kind == "invoice")):
                for line in (await repository.lines_of(session, [row.id]))[row.id]:
                    if line.kind in USED:
                        each = (await details_of(session, row, line.no, query)).data
                        amount = sum(Fraction(detail.amount) for detail in each)
                        there = (sum(detail.quantity for detail in each), amount)
                        found.append(((int(line.quantity or 0), Fraction(line.exact)), there))
        return found

    async def balances(self, who: Who) -> dict[tuple[str, str], Fraction]:
        found = await self.rows(_BALANCES, tenant=who.tenant)
        return {(name, currency): Fraction(balance) for name, currency, balance in found}

    async def numbers(self) -> list[str]:
        """Of all invoices there are, in order."""
        query = "SELECT number FROM invoices WHERE kind = 'invoice' AND number <> '' ORDER BY 1"
        return [row.number for row in await self.rows(query)]

    async def problems(self, who: Who) -> list[str]:
        async with self.db.admin_session() as session:
            return [each async for each in problems(session, self.ledger.chain, who.tenant)]

    async def costs(
        self, who: Who, start: datetime, end: datetime
    ) -> dict[tuple[Any, ...], Fraction]:
        """By (day, adapter, key, currency, meter) as `GET /v1/costs` says it."""
        query = make_query(
            start=start,
            end=end,
            bucket="1d",
            group_by="adapter,api_key",
            limit=744,
            page=None,
            groups=TENANT_GROUPS,
            tenant_id=who.tenant,
        )
        found: dict[tuple[Any, ...], Fraction] = {}
        async with self.db.tenant_session(who.tenant) as session:
            page = (await find_costs(session, query)).page()
        for bucket in page.data:
            for result in bucket.results:
                for meter in result.meters:
                    of = (result.adapter, result.api_key_id, result.currency, meter.meter)
                    found[bucket.start.date(), *of] = Fraction(meter.amount)
        return {key: amount for key, amount in found.items() if amount}

    async def lapsed(self, who: Who) -> dict[str, Fraction | None]:
        """Of each grant, by its note."""
        found = await self.rows(
            "SELECT note, lapsed FROM credit_grants WHERE tenant_id = :tenant", tenant=who.tenant
        )
        return {note: None if lapsed is None else Fraction(lapsed) for note, lapsed in found}


_NEW_TENANT = (
    "INSERT INTO plans (name, sla_class, tiers, weight) VALUES "
    "(:plan, 'default', '{default}', 1), (:other, 'default', '{default}', 1)",
    "INSERT INTO tenants (id, name, plan, created_at) VALUES (:tenant, :plan, :plan, '2030-01-01')",
    "INSERT INTO adapters (id, tenant_id, name) VALUES (:a, :tenant, 'a'), (:b, :tenant, 'b')",
    "INSERT INTO adapter_versions (id, tenant_id, adapter_id, number, state, bytes, "
    "weights_sha256, digest, rank) VALUES (:av, :tenant, :a, 1, 'active', 1, '', :a, 8), "
    "(:bv, :tenant, :b, 1, 'active', 1, '', :b, 8)",
)
_INVOICES = """
    SELECT id, to_char(period, 'YYYY-MM'), currency, status, total FROM invoices
     WHERE tenant_id = :tenant AND kind = 'invoice' ORDER BY number
"""
_LINES = """
    SELECT l.invoice_id, l.kind, l.exact, l.amount, l.quantity, to_char(l.month, 'YYYY-MM'),
           l.meter, l.class, l.price_version_no
      FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id
     WHERE i.tenant_id = :tenant AND i.kind = 'invoice' ORDER BY l.invoice_id, l.no
"""
_BALANCES = """
    SELECT a.name, a.currency, b.balance
      FROM ledger_balances b JOIN ledger_accounts a ON a.id = b.account_id
     WHERE b.tenant_id = :tenant AND b.balance <> 0
"""


def _adapter_values(who: Who) -> dict[str, Any]:
    ids = {name: who.adapters[name] for name in ("a", "b")}
    return {**ids, **{f"{name}v": version_of(each) for name, each in ids.items()}}


def version_of(adapter: str | None) -> str:
    return "" if adapter is None else f"version_of_{adapter}"


def _is_occupancy(event: Event) -> bool:
    return set(event.quantities) <= set(OCCUPANCY)


def _bits(at: datetime, name: str) -> int:
    """Of a ULID of this time, the same for the same name."""
    return (int(at.timestamp() * 1000) << 80) | int.from_bytes(sha256(name.encode()).digest()[:10])


def _ulid(at: datetime, name: str) -> str:
    bits = _bits(at, name)
    return "".join(_ALPHABET[(bits >> shift) & 31] for shift in range(125, -1, -5))


def _occupancy(event: Event) -> Occupancy:
    ((meter, quantity),) = event.quantities.items()
    series = Series(
        tenant_id=event.tenant,
        kind="stored" if meter == "stored" else "residency",
        model=event.model,
        class_=event.class_,
        adapter_id=event.adapter,
        adapter_version_id=version_of(event.adapter),
        adapter_digest=event.adapter,
        plan=event.plan,
    )
    return Occupancy(
        id=UUID(int=_bits(event.at, event.tenant + event.id)),
        series=series,
        meter=meter,  # type: ignore[arg-type]
        quantity=quantity,
        begins=event.at,
        ends=event.at,
    )


def _record(event: Event) -> UsageRecord:
    finished_s = event.at.timestamp()
    request_id = f"chatcmpl_{_ulid(event.at, event.tenant + event.id)}"
    used = event.quantities
    context = {
        "tenant_id": event.tenant,
        "model": event.model,
        "plan": event.plan or "",
        "adapter_id": event.adapter or "",
        "adapter_version_id": version_of(event.adapter),
        "api_key_id": event.key or "",
    }
    return UsageRecord(
        event_id=f"{request_id}:0",
        request_id=request_id,
        index=0,
        tenant=event.tenant,
        adapter_digest=event.adapter,
        context=context,
        prompt_tokens=used["uncached_prefill"] + used["cached_prefill"],
        cached_tokens=used["cached_prefill"],
        output_tokens=used["output"],
        cold_load=bool(used["cold_load"]),
        arrival_s=(event.at - timedelta(seconds=1)).timestamp(),
        first_token_s=None,
        finished_s=finished_s,
        queue_ms=0.0,
        adapter_load_ms=0.0,
        residency=None,
        tier=event.class_,
        finish_reason="stop",
    )
