"""Reads the layers from PostgreSQL in one snapshot: what is compared stood there at one moment.
Rows of events come through a server-side cursor, in binary. It compares nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, LiteralString
from uuid import UUID

import psycopg

from tenora_platform.invoices.currency import shown as in_currency
from tenora_platform.invoices.digest import DIGESTS
from tenora_platform.reconciliation.accounts import Account, Entry, Since, Tax
from tenora_platform.reconciliation.bills import FINAL, PAID, VOID, BillRow, Taken
from tenora_platform.reconciliation.books import Counted, Place, Tally
from tenora_platform.reconciliation.bounds import Bounds
from tenora_platform.reconciliation.events import Volume
from tenora_platform.reconciliation.letters import Letter
from tenora_platform.reconciliation.lists import CREATED, WITHDRAWN, ListRow, Price
from tenora_platform.reconciliation.series import Held, Series
from tenora_platform.reconciliation.sums import METERS, PRICED, SumRow
from tenora_platform.reconciliation.tariff import Tariff, picos, tariffs
from tenora_platform.usage.engine_totals import COPIES
from tenora_platform.usage.seal import EVENT_COLUMNS, OCCUPANCY_COLUMNS, Seals

_AT_ONCE = 5000
Link = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Lists:
    """Who and what events refer to by number."""

    series: dict[int, Series]
    wrong_series: list[tuple[str, int]]  # tenant and id of those that are not what their key says
    tariffs: dict[int, Tariff]
    held: list[Held]


class Snapshot:
    """One read-only transaction. `link` must have autocommit off."""

    def __init__(self, link: Link) -> None:
        self._link = link
        link.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        link.read_only = True
        link.execute("SET LOCAL timezone = 'UTC'")
        link.execute("LOCK TABLE usage_events IN ACCESS SHARE MODE")  # no month leaves meanwhile
        self.at: datetime = self.one("SELECT now()")

    def one(self, query: LiteralString, values: Sequence[Any] = ()) -> Any:
        row = self._link.execute(query, values).fetchone()
        return None if row is None else row[0]

    def all(self, query: LiteralString, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._link.execute(query, values).fetchall()

    def stream(self, query: LiteralString, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Rows as the server finds them, some thousands at a time."""
        with self._link.cursor("rows", binary=True) as cursor:
            cursor.itersize = _AT_ONCE
            cursor.execute(query, values)
            yield from cursor

    def tenants(self) -> dict[str, int]:
        """Their numbers by id."""
        return dict(self.all("SELECT id, no FROM tenants"))

    def lists(self, seals: Seals, numbers: Mapping[str, int], parts: Sequence[Bounds]) -> Lists:
        """With the series that these parts are of; of the whole all there are."""
        series: dict[int, Series] = {}
        wrong: list[tuple[str, int]] = []
        columns: LiteralString = ", ".join(SERIES_COLUMNS)
        source: LiteralString = f"SELECT id, key, {columns} FROM usage_series"
        of: list[Any] = []
        if not any(part.everything for part in parts):
            source, of = f"{source} WHERE id = ANY(%s)", [self._series_of(parts)]
        for series_id, key, *values in self.stream(source, of):
            row = dict(zip(SERIES_COLUMNS, values, strict=True))
            if seals.series(values) != bytes(key):
                wrong.append((row["tenant_id"], series_id))
            series[series_id] = Series(
                id=series_id,
                tenant_id=row["tenant_id"],
                tenant_no=numbers.get(row["tenant_id"], 0),  # 0 is nobody's
                kind=row["kind"],
                service_class=row["class"],
                model=row["model"],
                scope=(row["adapter_id"], row["tenant_id"], row["plan"], row["model"]),
            )
        held, known = self._price_lists()
        for each in series.values():
            each.hold(held)
        return Lists(series, wrong, known, held)

    def _series_of(self, parts: Sequence[Bounds]) -> list[int]:
        found: set[int] = set()
        for part in parts:
            for table, tenant, time in _OF_SERIES:
                source, values = part.of(table, tenant, time)
                found |= {row[0] for row in self.all(f"SELECT DISTINCT series_id{source}", values)}
        return sorted(found)

    def _price_lists(self) -> tuple[list[Held], dict[int, Tariff]]:
        rows = self.all(
            "SELECT no, id, currency, adapter_id, tenant_id, plan, model, effective_from,"
            " effective_to, withdrawn_at FROM price_versions"
        )
        held = [
            Held(row[0], (row[3], row[4], row[5], row[6]), row[7], row[8])
            for row in rows
            if row[9] is None
        ]
        prices = self.all(
            "SELECT v.no, p.meter, p.class, p.from_quantity, p.per_million"
            " FROM prices p JOIN price_versions v ON v.id = p.price_version_id"
        )
        return held, dict(tariffs([row[:3] for row in rows], prices))

    def price_rows(self) -> tuple[list[ListRow], dict[str, list[Price]]]:
        rows = self.all(
            "SELECT id, model, plan, tenant_id, adapter_id, currency, minimum, included,"
            " effective_from, effective_to, withdrawn_at IS NOT NULL FROM price_versions"
        )
        prices: dict[str, list[Price]] = {}
        for list_id, *price in self.all(
            "SELECT price_version_id, meter, class, from_quantity, per_million FROM prices"
        ):
            prices.setdefault(list_id, []).append(tuple(price))
        return [ListRow(row[0], row[1:5], *row[5:]) for row in rows], prices

    def price_entries(self) -> list[tuple[str, str, str]]:
        """Of the audit log, oldest first: action, target, details."""
        return self.all(
            "SELECT action, target, details FROM audit_logs WHERE action = ANY(%s)"
            " ORDER BY chain, seq",
            [[CREATED, WITHDRAWN]],
        )

    def account_rows(self, of: Account) -> Iterator[tuple[str, dict[str, Any]]]:
        """With their keys, as JSON."""
        for key, row in self.stream(f"SELECT {of.key}, to_jsonb(t)::text FROM {of.table} t", []):
            yield key, json.loads(row, parse_float=Decimal)

    def account_entries(self, of: Account) -> Iterator[Entry]:
        """Of the audit log, each chain's oldest first. Of tenants that were erased none, where
        their rows are gone, too."""
        gone: LiteralString = (
            " AND chain NOT IN (SELECT chain FROM audit_logs WHERE action = 'tenant.erase')"
        )
        query: LiteralString = (
            "SELECT chain, at, action, target, details FROM audit_logs WHERE action = ANY(%s)"
        )
        query += f"{gone if of.erased else ''} ORDER BY chain, seq"
        return (Entry(*row) for row in self.stream(query, [list(of.actions)]))

    def plan_histories(self) -> dict[str, list[Since]]:
        found: dict[str, list[Since]] = {}
        query = "SELECT tenant_id, plan, since FROM tenant_plans ORDER BY tenant_id, since"
        for tenant_id, plan, since in self.all(query):
            found.setdefault(tenant_id, []).append(Since(plan, since))
        return found

    def tax_histories(self) -> dict[str, list[Tax]]:
        found: dict[str, list[Tax]] = {}
        query = (
            "SELECT tenant_id, tax_name, tax_rate, since, noted_on FROM tenant_taxes ORDER BY no"
        )
        for tenant_id, *tax in self.all(query):
            found.setdefault(tenant_id, []).append(Tax(*tax))
        return found

    def events(self, bounds: Bounds) -> Iterator[Sequence[Any]]:
        """EVENT_COLUMNS and the seal."""
        source, values = bounds.of("usage_events", "tenant_no", "event_time")
        return self.stream(f"SELECT {_EVENT}{source}", values)

    def occupancy_events(self, bounds: Bounds) -> Iterator[Sequence[Any]]:
        """OCCUPANCY_COLUMNS and the seal."""
        source, values = bounds.of("occupancy_events", "tenant_no", "ends")
        return self.stream(f"SELECT {_OCCUPANCY}{source}", values)

    def hours(self, bounds: Bounds) -> Iterator[SumRow]:
        source, values = bounds.of("usage_hours", "tenant_id", "hour")
        micros: LiteralString = "(extract(epoch FROM t.hour) * 1000000)::bigint"
        return self.stream(f"SELECT tenant_id, {micros}, {_SUM}{source}", values)

    def days(self, bounds: Bounds) -> Iterator[SumRow]:
        source, values = bounds.of("usage_days", "tenant_id", "day")
        micros: LiteralString = "(t.day - date '1970-01-01')::bigint * 86400000000"
        return self.stream(f"SELECT tenant_id, {micros}, {_SUM}{source}", values)

    def months(self, bounds: Bounds) -> list[date]:
        """The first days of those within in which there are sums, in order; there is one at
        least."""
        if bounds.windows is not None:
            days = {day for each in bounds.windows for day in (each.first, each.last)}
            return sorted({day.replace(day=1) for day in days})
        source, values = bounds.of("usage_days", "tenant_id", "day")
        rows = self.all(
            f"SELECT DISTINCT date_trunc('month', t.day)::date{source} ORDER BY 1", values
        )
        return [row[0] for row in rows] or [self.at.date().replace(day=1)]

    def volumes(self) -> dict[Volume, int]:
        rows = self.all(
            "SELECT tenant_id, month, price_version_no, model, class, meter, quantity"
            " FROM usage_volumes"
        )
        return {Volume(*row[:6]): row[6] for row in rows}

    def unrated(self, bounds: Bounds) -> list[tuple[str, tuple[UUID, int], str | None, bool]]:
        """The marks of events that wait: whose, of which event (occupancy: sequence -1), whose that
        is (None: there is none) and whether it has no price."""
        rows = self.all(
            "SELECT u.tenant_id, coalesce(u.occupancy_id, u.request), coalesce(u.sequence, -1),"
            " t.id, coalesce(e.price_version_no, o.price_version_no) IS NULL FROM unrated_events u"
            " LEFT JOIN usage_events e ON e.request = u.request AND e.sequence = u.sequence"
            " LEFT JOIN occupancy_events o ON o.id = u.occupancy_id"
            " LEFT JOIN tenants t ON t.no = coalesce(e.tenant_no, o.tenant_no)"
            " WHERE %s::text IS NULL OR u.tenant_id = %s",
            [bounds.tenant_id, bounds.tenant_id],
        )
        return [(row[0], (row[1], row[2]), row[3], row[4]) for row in rows]

    def used(self, bounds: Bounds) -> dict[Place, int]:
        """Picos by tenant, day, currency and meter, as the days' sums have them."""
        source, values = bounds.of(_PRICED_DAYS, "tenant_id", "day")
        rows = self.all(
            f"SELECT t.tenant_id, t.day, t.currency, {_SUM_OF_COSTS}{source} GROUP BY 1, 2, 3",
            values,
        )
        return {
            (*row[:3], meter): picos(amount)
            for row in rows
            for meter, amount in zip(PRICED, row[3:], strict=True)
            if amount
        }

    def posted(self, bounds: Bounds) -> dict[Place, int]:
        """The same as the ledger has it."""
        source, values = bounds.of(_POSTED, "tenant_id", "day")
        rows = self.all(
            f"SELECT t.tenant_id, t.day, t.currency, t.meter, -sum(t.amount){source}"
            " GROUP BY 1, 2, 3, 4",
            values,
        )
        return {tuple(row[:4]): picos(row[4]) for row in rows if row[4]}

    def due(self) -> dict[tuple[str, date], datetime]:
        rows = self.all("SELECT tenant_id, day, since FROM ledger_due")
        return {(tenant_id, day): since for tenant_id, day, since in rows}

    def letters(self) -> list[Letter]:
        rows = self.all(
            "SELECT l.event_id, l.request, l.sequence, l.record, l.raw, NOT EXISTS"
            " (SELECT FROM usage_events e WHERE e.request = l.request AND e.sequence = l.sequence)"
            " AND NOT EXISTS (SELECT FROM occupancy_events o WHERE o.id = l.request"
            " AND l.sequence IS NULL)"
            " FROM usage_dead_letters l"
        )
        return [
            Letter(row[0], row[1], row[2], row[3], row[4] and bytes(row[4]), row[5]) for row in rows
        ]

    def tallies(self, bounds: Bounds) -> list[Tally]:
        source, values = bounds.of(_TALLIES, "tenant_id", "day")
        rows = self.all(
            "SELECT engine, tenant_id, day, sequences, prompt_tokens, cached_tokens, output_tokens,"
            f" cold_loads, whole_since, last_heard_at{source}",
            values,
        )
        return [Tally(row[0], row[1], row[2], row[3:8], row[8], row[9]) for row in rows]

    def engines_whole_since(self) -> date:
        """From when on every engine that has counted anything has counted all of a day."""
        since: date | None = self.one(
            "SELECT max(whole_since) FROM engine_outboxes o WHERE engine <> %s"
            " AND EXISTS (SELECT FROM engine_totals x WHERE x.engine = o.engine)",
            [COPIES],
        )
        return since or date.min

    def bills(self) -> list[BillRow]:
        """Those with a number."""
        rows = self.all(
            "SELECT i.id, i.tenant_id, i.kind, i.status, i.period, i.number, i.total::text,"
            " coalesce((SELECT sum(l.amount) FROM invoice_lines l WHERE l.invoice_id = i.id),"
            " 0)::numeric(38, 12)::text, i.reason, i.voided_at, i.taken_at,"
            " (SELECT sum(e.amount)::text"
            " FROM ledger_entries e JOIN ledger_accounts a ON a.id = e.account_id"
            " JOIN ledger_transactions t ON t.id = e.transaction_id"
            " WHERE t.id = i.ledger_transaction_id AND t.kind = i.kind AND t.reference = i.id"
            " AND a.name = 'receivable'), d.digest"
            f" FROM invoices i LEFT JOIN ({DIGESTS}) d USING (id) WHERE i.status <> 'draft'"
        )
        return [
            BillRow(*row[:9], *(at and at.isoformat() for at in row[9:11]), *row[11:])
            for row in rows
        ]

    def payments(self) -> dict[str, dict[str, Any]]:
        rows = self.all(
            "SELECT p.id, p.tenant_id, p.invoice_id, p.reference, p.paid_at, p.amount, i.currency,"
            " (SELECT sum(e.amount) FROM ledger_entries e JOIN ledger_accounts a"
            " ON a.id = e.account_id JOIN ledger_transactions t ON t.id = e.transaction_id"
            " WHERE t.tenant_id = p.tenant_id AND t.kind = 'payment' AND t.reference = p.id"
            " AND a.name = 'cash') FROM invoice_payments p LEFT JOIN invoices i"
            " ON i.id = p.invoice_id"
        )
        return {
            row[0]: {
                "tenant_id": row[1],
                "invoice_id": row[2],
                "reference": row[3],
                "paid_at": row[4].isoformat(),
                "amount": in_currency(row[5], row[6] or ""),
                "exact": row[5],
                "posted": row[7],
            }
            for row in rows
        }

    def bill_entries(self) -> list[tuple[str, str, str, str]]:
        """Of the audit log, oldest first: tenant, action, target, details."""
        return self.all(
            "SELECT tenant_id, action, target, details FROM audit_logs WHERE action = ANY(%s)"
            " ORDER BY chain, seq",
            [[*FINAL, VOID, PAID]],
        )

    def taken_too_much(self) -> list[Taken]:
        """Of which sums final invoices have had more than there is."""
        rows = self.all(
            f"SELECT u.tenant_id, u.day, u.series_id, u.price_version_no, {', '.join(_TOO_MUCH)}"
            " FROM invoice_usage u JOIN invoices i ON i.id = u.invoice_id AND i.status = 'final'"
            " LEFT JOIN usage_days d ON d.tenant_id = u.tenant_id AND d.day = u.day"
            " AND d.series_id = u.series_id AND d.price_version_no = u.price_version_no"
            f" GROUP BY 1, 2, 3, 4 HAVING greatest({', '.join(_TOO_MUCH)}) > 0"
        )
        return [
            (*row[:3], meter, row[3], int(quantity), f"{amount:f}")
            for row in rows
            for meter, quantity, amount in zip(PRICED, row[4:11], row[11:], strict=True)
            if quantity > 0 or amount > 0
        ]

    def stored(self, bounds: Bounds) -> dict[tuple[str, date], Counted]:
        """What the days' sums have of sequences, as the engine counts them."""
        source, values = bounds.of("usage_days", "tenant_id", "day")
        sums: LiteralString = ", ".join(f"sum({each})::bigint" for each in _AS_COUNTED)
        rows = self.all(f"SELECT t.tenant_id, t.day, {sums}{source} GROUP BY 1, 2", values)
        return {(row[0], row[1]): (row[2], row[3], row[4], row[5], row[6]) for row in rows}


SERIES_COLUMNS: tuple[LiteralString, ...] = (
    "tenant_id",
    "kind",
    "model",
    "class",
    "asked_model",
    "alias",
    "adapter_id",
    "adapter_version_id",
    "adapter_digest",
    "api_key_id",
    "plan",
    "asked_class",
)
"""In the order in which a series' key takes them."""

_OF_SERIES: Sequence[tuple[LiteralString, LiteralString, LiteralString]] = (
    ("usage_events", "tenant_no", "event_time"),
    ("occupancy_events", "tenant_no", "ends"),
    ("usage_hours", "tenant_id", "hour"),
    ("usage_days", "tenant_id", "day"),
)
"""Table, its columns of the tenant and of the time."""

_EVENT: LiteralString = ", ".join((*EVENT_COLUMNS, "seal"))
_OCCUPANCY: LiteralString = ", ".join((*OCCUPANCY_COLUMNS, "seal"))
_COSTS: Sequence[LiteralString] = [f"{meter}_amount" for meter in PRICED]
_SUM: LiteralString = ", ".join(("series_id", "price_version_no", *METERS, *_COSTS))
_SUM_OF_COSTS: LiteralString = ", ".join(f"sum(t.{column})" for column in _COSTS)
_TOO_MUCH: Sequence[LiteralString] = [
    f"sum(u.{column}) - coalesce(max(d.{column}), 0)" for column in (*PRICED, *_COSTS)
]
_PRICED_DAYS: LiteralString = (
    "(SELECT d.*, v.currency FROM usage_days d JOIN price_versions v ON v.no = d.price_version_no)"
)
_POSTED: LiteralString = (
    "(SELECT x.tenant_id, x.day, x.currency, substr(a.name, 9) AS meter, e.amount"
    " FROM ledger_transactions x JOIN ledger_entries e ON e.transaction_id = x.id"
    " JOIN ledger_accounts a ON a.id = e.account_id"
    " WHERE x.kind = 'usage' AND a.name LIKE 'revenue:%%')"
)
_TALLIES: LiteralString = (
    "(SELECT x.*, coalesce(o.whole_since, x.day) AS whole_since,"
    " coalesce(o.last_heard_at, x.updated_at) AS last_heard_at"
    " FROM engine_totals x LEFT JOIN engine_outboxes o USING (engine))"
)
_AS_COUNTED: tuple[LiteralString, ...] = (
    "t.sequences",
    "t.uncached_prefill + t.cached_prefill",
    "t.cached_prefill",
    "t.output",
    "t.cold_load",
)
