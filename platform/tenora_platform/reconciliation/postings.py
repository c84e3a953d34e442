"""The ledger beside what it was posted for where no other layer has it, credit and void invoices:
the end of a chain that somebody cut off, balances mended, is missed by nothing in the ledger. And
balances and numbers of invoices that belong to nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import LiteralString, NamedTuple

from tenora_platform.reconciliation.differences import Differences, Kind
from tenora_platform.reconciliation.reading import Snapshot


class GrantPosted(NamedTuple):
    """A row of credit_grants, None where only the ledger knows it, beside its postings: what was
    granted, what of it paid for usage or lapsed, and what lapsed. `closed`: this is known."""

    id: str
    tenant_id: str
    day: date | None
    amount: Decimal | None
    closed: bool | None
    granted: Decimal
    settled: Decimal
    lapsed: Decimal


_GRANTS: LiteralString = """
WITH posted AS (
  SELECT t.tenant_id, split_part(t.reference, ':', 1) AS grant_id, t.currency, a.name,
         sum(-e.amount) FILTER (WHERE t.kind = 'grant') AS granted,
         sum(e.amount) FILTER (WHERE t.kind <> 'grant') AS settled,
         sum(e.amount) FILTER (WHERE t.kind = 'lapse') AS lapsed
    FROM ledger_transactions t JOIN ledger_entries e ON e.transaction_id = t.id
    JOIN ledger_accounts a ON a.id = e.account_id
   WHERE t.kind IN ('grant', 'credit', 'lapse') AND a.name IN ('credit:granted', 'credit:bought')
   GROUP BY 1, 2, 3, 4
)
SELECT coalesce(g.id, p.grant_id), coalesce(g.tenant_id, p.tenant_id), g.created_at::date, g.amount,
       g.lapsed IS NOT NULL, coalesce(p.granted, 0), coalesce(p.settled, 0), coalesce(p.lapsed, 0)
  FROM credit_grants g FULL JOIN posted p ON p.grant_id = g.id AND p.tenant_id = g.tenant_id
   AND p.currency = g.currency AND p.name = 'credit:' || g.kind
"""

_SHOWN: LiteralString = """
WITH used AS (
  SELECT t.tenant_id, t.currency, sum(e.amount) AS amount
    FROM ledger_transactions t JOIN ledger_entries e ON e.transaction_id = t.id
    JOIN ledger_accounts a ON a.id = e.account_id
   WHERE t.kind = 'credit' AND a.name IN ('credit:granted', 'credit:bought') GROUP BY 1, 2
)
SELECT i.tenant_id, i.currency, sum(-l.exact), coalesce(max(u.amount), 0)
  FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id
  LEFT JOIN used u ON u.tenant_id = i.tenant_id AND u.currency = i.currency
 WHERE i.status = 'final' AND i.kind = 'invoice' AND l.kind = 'credit'
 GROUP BY 1, 2 HAVING sum(-l.exact) > coalesce(max(u.amount), 0)
"""
"""Invoices show no more than what grants have paid by then, which is in the ledger with them."""

_REVERSED: LiteralString = """
SELECT i.tenant_id, i.period, i.kind || ' ' || i.number || ' (' || i.id || ')', i.status
  FROM invoices i
 WHERE i.ledger_transaction_id IS NOT NULL AND (i.status = 'void') <> EXISTS
       (SELECT FROM ledger_transactions t WHERE t.reverses = i.ledger_transaction_id)
"""


_AUDITED: LiteralString = """
SELECT l.tenant_id, l.target, l.details, g.amount, g.kind, g.currency, g.expires_at
  FROM audit_logs l LEFT JOIN credit_grants g ON g.id = l.target AND g.tenant_id = l.tenant_id
 WHERE l.action = 'credit.grant'
"""

_STRAY_BALANCES: LiteralString = """
SELECT b.tenant_id, b.account_id FROM ledger_balances b
  LEFT JOIN ledger_accounts a ON a.id = b.account_id WHERE a.id IS NULL
"""

_NUMBERS: LiteralString = """
SELECT coalesce(s.name, n.series), coalesce(n.last, -1),
       (SELECT count(*) FROM invoices i WHERE i.kind = n.series AND i.number IS NOT NULL)
  FROM (VALUES ('invoice'), ('credit_note')) AS s (name)
  FULL JOIN invoice_numbers n ON n.series = s.name
"""
"""Series, the last number given, how many invoices have one."""


def compare_postings(snapshot: Snapshot, found: Differences) -> None:
    compare_grants((GrantPosted(*row) for row in snapshot.all(_GRANTS)), found)
    for tenant_id, grant_id, details, *values in snapshot.all(_AUDITED):
        told = json.loads(details)["after"] or {}
        there = dict(zip(("amount", "kind", "currency", "expires_at"), values, strict=True))
        if any(_plain(name, told[name]) != there[name] for name in there if name in told):
            found.add(Kind.LEDGER_WRONG, tenant_id, None, f"credit {grant_id}", told, there)
    for tenant_id, currency, shown, used in snapshot.all(_SHOWN):
        subject = f"credit that paid for usage of {tenant_id} in {currency}"
        found.add(Kind.LEDGER_WRONG, tenant_id, None, subject, f"{shown} by invoices", used)
    for tenant_id, period, subject, status in snapshot.all(_REVERSED):
        expected = "its posting reversed" if status == "void" else "its posting in force"
        found.add(Kind.INVOICE_NOT_POSTED, tenant_id, period, subject, expected, status)
    for tenant_id, account in snapshot.all(_STRAY_BALANCES):
        name = f"the balance of account {account}"
        found.add(Kind.BALANCE_WRONG, tenant_id, None, name, "an account", "none")
    for series, last, count in snapshot.all(_NUMBERS):
        if last != count:
            name = f"numbers of the series {series}"
            found.add(Kind.INVOICE_WRONG, None, None, name, f"{count} given", last)


def _plain(name: str, told: str | None) -> object:
    """What the audit log has as text."""
    if name == "amount" and told is not None:
        return Decimal(told)
    if name == "expires_at" and told is not None:
        return datetime.fromisoformat(told)
    return told


def compare_grants(grants: Iterable[GrantPosted], found: Differences) -> None:
    """Each is posted as what it is, and if it is closed, all of it has paid or lapsed."""
    for each in grants:
        tell = each.tenant_id, each.day, f"credit {each.id}"
        if each.amount != each.granted:
            found.add(Kind.LEDGER_WRONG, *tell, each.amount, each.granted)
        elif each.closed and each.settled != each.amount:
            found.add(Kind.LEDGER_WRONG, *tell, f"{each.amount} used or lapsed", each.settled)
        elif not each.closed and each.lapsed:
            found.add(Kind.LEDGER_WRONG, *tell, "nothing lapsed", each.lapsed)
