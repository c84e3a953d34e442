"""Writes many entries of ledgers and audit logs at once: chained, sealed and with their balances
and ends as the services write them one by one. For `tenora bench books`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg

from tenora_platform.audit.heads import AuditSeals, End
from tenora_platform.audit.service import AuditLog
from tenora_platform.audit.tables import AuditRow
from tenora_platform.billing.rating import exact_sum
from tenora_platform.ids import new_id
from tenora_platform.ledger.accounts import UNBILLED, revenue
from tenora_platform.ledger.chain import GENESIS, Chain, Line
from tenora_platform.ledger.poster import USAGE
from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.secret import ServerSecret

Connection = psycopg.Connection[tuple[Any, ...]]
_POSTINGS = (
    "id",
    "tenant_id",
    "seq",
    "kind",
    "reference",
    "currency",
    "day",
    "reverses",
    "note",
    "created_at",
    "prev_hash",
    "hash",
)
_ENTRIES = ("transaction_id", "line", "tenant_id", "account_id", "amount")
_AUDIT = (
    *("id", "tenant_id", "chain", "seq", "at", "actor", "action", "target", "details"),
    *("request_id", "prev_hash", "hash"),
)
_ACCOUNTS = """
    INSERT INTO ledger_accounts (tenant_id, name, currency)
    SELECT tenant, name, %s FROM unnest(%s::text[]) tenant, unnest(%s::text[]) name
    RETURNING tenant_id, name, id
"""
_HEADS = """
    UPDATE audit_heads SET seq = new.seq, hash = new.hash, seal = new.seal
      FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[]) new (chain, seq, hash, seal)
     WHERE audit_heads.chain = new.chain
"""


def copy_rows(
    owner: Connection, table: str, columns: Sequence[str], rows: Iterator[Sequence[Any]]
) -> None:
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
    with owner.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for row in rows:
            copy.write_row(row)


class Charged(NamedTuple):
    """What the usage of a tenant's day costs, by meter."""

    tenant_id: str
    amounts: Mapping[str, Decimal]


class Ledgers:
    """Of many tenants that have none yet, day by day."""

    def __init__(
        self, owner: Connection, secret: ServerSecret, currency: str, meters: Sequence[str]
    ) -> None:
        self._owner = owner
        self._chain = Chain(secret)
        self._currency = currency
        self._names = [UNBILLED, *map(revenue, meters)]
        self._accounts: dict[tuple[str, str], int] = {}
        self._ends: dict[str, End] = {}
        self._balances: defaultdict[tuple[str, str], tuple[Decimal, int]] = defaultdict(
            lambda: (Decimal(0), 0)
        )

    def post(self, day: date, charged: Sequence[Charged]) -> None:
        """One transaction for each tenant."""
        self._open({each.tenant_id for each in charged} - self._ends.keys())
        now = datetime.now(UTC)
        rows, entries = [], []
        for each in charged:
            row, lines = self._transaction(day, now, each)
            rows.append(row)
            entries += [(row, line) for line in lines]
        copy_rows(self._owner, "ledger_transactions", _POSTINGS, (_of(r, _POSTINGS) for r in rows))
        copy_rows(
            self._owner,
            "ledger_entries",
            _ENTRIES,
            (
                (
                    *(row.id, line.line, row.tenant_id),
                    *(self._accounts[row.tenant_id, line.account], line.amount),
                )
                for row, line in entries
            ),
        )

    def close(self) -> None:
        """The balances. Accounts that nothing moved have one of 0."""
        copy_rows(
            self._owner,
            "ledger_balances",
            ("account_id", "tenant_id", "balance", "entries"),
            ((id_, place[0], *self._balances[place]) for place, id_ in self._accounts.items()),
        )

    def _open(self, tenants: set[str]) -> None:
        found = self._owner.execute(_ACCOUNTS, (self._currency, sorted(tenants), self._names))
        self._accounts |= {(tenant, name): id_ for tenant, name, id_ in found}
        self._ends |= dict.fromkeys(tenants, End(0, GENESIS))

    def _transaction(
        self, day: date, now: datetime, each: Charged
    ) -> tuple[LedgerTransactionRow, list[Line]]:
        end = self._ends[each.tenant_id]
        amounts = sorted((revenue(meter), -amount) for meter, amount in each.amounts.items())
        total = exact_sum(-amount for _, amount in amounts)
        lines = [
            Line(number, account, self._currency, amount)
            for number, (account, amount) in enumerate([(UNBILLED, total), *amounts], 1)
        ]
        row = LedgerTransactionRow(
            id=new_id("txn"),
            tenant_id=each.tenant_id,
            seq=end.seq + 1,
            kind=USAGE,
            reference=f"{day}:1",
            currency=self._currency,
            day=day,
            created_at=now,
            prev_hash=end.hash,
        )
        row.hash = self._chain.hash_of(row, lines)
        self._ends[each.tenant_id] = End(row.seq, row.hash)
        for line in lines:
            balance, entries = self._balances[each.tenant_id, line.account]
            moved = exact_sum((balance, line.amount))
            self._balances[each.tenant_id, line.account] = (moved, entries + 1)
        return row, lines


def lengthen_logs(owner: Connection, secret: ServerSecret, more: Mapping[str, int]) -> None:
    """So many entries more in each tenant's audit log, behind those that are there."""
    log, seals = AuditLog(secret), AuditSeals(secret)
    kept = owner.execute("SELECT chain, seq, hash FROM audit_heads WHERE chain <> 'operator'")
    ends = {chain: End(seq, hash_) for chain, seq, hash_ in kept}

    def rows() -> Iterator[Sequence[Any]]:
        for tenant_id, count in more.items():
            for _ in range(count):
                row = _entry(log, tenant_id, ends[tenant_id])
                ends[tenant_id] = End(row.seq, row.hash)
                yield _of(row, _AUDIT)

    copy_rows(owner, "audit_logs", _AUDIT, rows())
    moved = [(chain, *end, seals.of(chain, *end)) for chain, end in ends.items()]
    owner.execute(_HEADS, [list(column) for column in zip(*moved, strict=True)])


def _entry(log: AuditLog, tenant_id: str, end: End) -> AuditRow:
    version = new_id("version")
    details = {"after": {"state": "active"}, "before": {"state": "checking"}}
    row = AuditRow(
        id=new_id("audit"),
        tenant_id=tenant_id,
        chain=tenant_id,
        seq=end.seq + 1,
        at=datetime.now(UTC),
        actor="intake",
        action="adapter_version.activate",
        target=version,
        details=json.dumps(details, sort_keys=True, separators=(",", ":")),
        prev_hash=end.hash,
    )
    row.hash = log.hash_of(row)
    return row


def _of(row: object, columns: Sequence[str]) -> list[Any]:
    return [getattr(row, name) for name in columns]
