"""The layer of invoices: each beside what the audit log says was made final, its posting and the
usage that it took; and what all of them took beside the sums. It reads no rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from tenora_platform.reconciliation.differences import Differences, Kind

FINAL = ("invoice.finalise", "invoice.credit")
VOID = "invoice.void"
PAID = "invoice.pay"


@dataclass(frozen=True, slots=True)
class BillRow:
    """A row of invoices that has a number; `posted` is what the ledger has of its receivable, None
    without a posting of it, `lines` the sum of its lines."""

    id: str
    tenant_id: str
    kind: str
    status: str
    period: date
    number: str
    total: str
    lines: str
    reason: str | None
    voided_at: str | None
    taken_at: str | None
    posted: str | None
    digest: str

    @property
    def tell(self) -> tuple[str, date, str]:
        return self.tenant_id, self.period, f"{self.kind} {self.number} ({self.id})"


def compare_bills(
    rows: Iterable[BillRow],
    payments: Mapping[str, dict[str, Any]],
    entries: Iterable[tuple[str, str, str, str]],
    found: Differences,
) -> int:
    """`payments` by id; `entries` of the audit log: tenant, action, target, details. Returns how
    many invoices there are."""
    there = {row.id: row for row in rows}
    final: dict[str, dict[str, Any]] = {}
    void: dict[str, dict[str, Any]] = {}
    paid: dict[str, dict[str, Any]] = {}
    for tenant_id, action, target, details in entries:
        after = {"tenant_id": tenant_id, **(json.loads(details)["after"] or {})}
        if action in FINAL:
            final[target] = after
        elif action == VOID:
            void[target] = after
        else:
            paid[after["payment"]] = {"invoice_id": target, **after}
    for gone in final.keys() - there.keys():
        tenant_id = final[gone]["tenant_id"]
        found.add(Kind.INVOICE_CHANGED, tenant_id, None, gone, "the audit log's invoice", "none")
    for row in there.values():
        _compare_bill(row, final.get(row.id), void.get(row.id), found)
    _compare_payments(payments, paid, found)
    return len(there)


def _compare_bill(
    row: BillRow,
    final: dict[str, Any] | None,
    void: dict[str, Any] | None,
    found: Differences,
) -> None:
    if final is None:
        found.add(
            Kind.INVOICE_CHANGED, *row.tell, "none: the audit log has no such invoice", row.status
        )
        return
    digest = final.get("digest")
    if digest not in (None, row.digest):
        found.add(
            Kind.INVOICE_CHANGED, *row.tell, "the invoice as it was made final", "other values"
        )
    status = "final" if void is None else "void"
    told = final if void is None else void
    # Of an invoice the reason is why it is void, of a credit note why it was made.
    reason = told.get("reason") if row.kind == "credit_note" or void is not None else None
    if (row.status, row.reason) != (status, reason):
        found.add(
            Kind.INVOICE_CHANGED, *row.tell, f"{status}, {reason}", f"{row.status}, {row.reason}"
        )
    if void is not None and void.get("voided_at") not in (None, row.voided_at):
        found.add(Kind.INVOICE_CHANGED, *row.tell, void["voided_at"], row.voided_at)
    # Of an invoice from before this was written down, its row alone knows.
    if row.taken_at != final.get("taken_at", row.taken_at if row.kind == "invoice" else None):
        found.add(Kind.INVOICE_CHANGED, *row.tell, final.get("taken_at"), row.taken_at)
    if (row.voided_at is not None) != (void is not None):
        found.add(Kind.INVOICE_CHANGED, *row.tell, status, f"void since {row.voided_at}")
    if row.lines != row.total:
        found.add(Kind.INVOICE_WRONG, *row.tell, row.total, f"{row.lines} by its lines")
    wanted = row.total if row.kind == "invoice" else f"-{row.total}"
    if float(row.total) and row.posted != wanted:
        found.add(Kind.INVOICE_NOT_POSTED, *row.tell, wanted, row.posted)


def _compare_payments(
    payments: Mapping[str, dict[str, Any]], paid: Mapping[str, dict[str, Any]], found: Differences
) -> None:
    for payment in sorted(payments.keys() | paid.keys()):
        row, told = payments.get(payment), paid.get(payment)
        either = row or told
        assert either is not None  # it is a key of one of the two
        if row is None or told is None or not _is_told(row, told):
            expected = None if told is None else {name: told[name] for name in sorted(told)}
            found.add(
                Kind.INVOICE_CHANGED, either["tenant_id"], None, f"payment {payment}", expected, row
            )


def _is_told(row: dict[str, Any], told: dict[str, Any]) -> bool:
    """Whether a payment is what the audit log says, and was posted."""
    same = all(row[name] == told[name] for name in row if name in told)
    return same and bool(row["posted"] == row["exact"])


Taken = tuple[str, date, int, str, int, int, str]
"""Tenant, day, series, meter and price version of which invoices took other than the sums have: how
much more, and the amount."""


def compare_taken(taken: Iterable[Taken], found: Differences) -> None:
    for tenant_id, day, series, meter, version, quantity, amount in taken:
        subject = f"{tenant_id} {day} series {series} {meter} at price version {version}"
        more = f"{quantity} and {amount} more on invoices"
        found.add(Kind.INVOICE_WRONG, tenant_id, day, subject, "no more than was used", more)
