"""The layer of accounts: tenants, plans, keys and credit, on which prices, limits and rights hang,
each row beside the audit log's entries about it. Who reads the rows is not known here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, LiteralString, NamedTuple

from tenora_platform.reconciliation.differences import Differences, Kind

Facts = dict[str, Any]


class Entry(NamedTuple):
    """Of the audit log; `chain` is whose it is."""

    chain: str
    at: datetime
    action: str
    target: str
    details: str

    def after(self) -> Facts:
        return json.loads(self.details, parse_float=Decimal)["after"] or {}


@dataclass(frozen=True, slots=True)
class Account:
    """A table whose rows the audit log tells of by these actions, about these columns. `facts` says
    which row an entry is about, and what follows from it beside what it says."""

    table: LiteralString
    actions: tuple[str, ...]
    columns: tuple[str, ...]
    facts: Callable[[Entry], tuple[str, Facts]] = lambda entry: (entry.target, {})
    key: LiteralString = "id"
    made_by_migrations: bool = False  # the first rows, of which the log has nothing
    erased: bool = False  # with their tenant


def _of_tenant(entry: Entry) -> tuple[str, Facts]:
    more: dict[str, Facts] = {
        "tenant.delete": {"status": "suspended"},
        "tenant.erase": {"name": None},  # a pseudonym follows from the id
        "credit.grant": {"prepaid": True},
    }
    return entry.chain, more.get(entry.action, {})


def _of_credit(entry: Entry) -> tuple[str, Facts]:
    return entry.target, {"tenant_id": entry.chain}


ONE_CHANGE = timedelta(minutes=15)
"""What lies between a row's time and its entry's at most: they are of one transaction, and of two
clocks."""


class Since(NamedTuple):
    """A plan of a tenant's, and since when."""

    plan: str
    at: datetime


_CAPS = (
    "requests_per_min",
    "tokens_per_min",
    "parallel_requests",
    "budget",
    "budget_day",
    "budget_soft",
    "budget_action",
)
TENANTS = Account(
    "tenants",
    (
        *("tenant.create", "tenant.update", "tenant.delete", "tenant.restore", "tenant.erase"),
        "credit.grant",
    ),
    ("name", "plan", "status", "trust_group", "internal", "prepaid"),
    _of_tenant,
)
ACCOUNTS = (
    TENANTS,
    Account(
        "plans",
        ("plan.put",),
        (
            *("sla_class", "tiers", "ttft_ms", "tpot_ms", "late", "weight", "memory_share"),
            *("adapters", "adapter_bytes", "stored_responses"),
            *_CAPS,
        ),
        key="name",
        made_by_migrations=True,
    ),
    Account(
        "api_keys",
        ("api_key.create", "api_key.update", "api_key.rotate", "api_key.revoke"),
        ("tenant_id", "name", "scopes", "models", "expires_at", "revoked_at", *_CAPS),
        erased=True,
    ),
    Account(
        "admin_keys",
        ("admin_key.create", "admin_key.update", "admin_key.rotate", "admin_key.revoke"),
        ("name", "role", "expires_at", "revoked_at"),
    ),
    Account(
        "credit_grants",
        ("credit.grant",),
        ("amount", "currency", "kind", "expires_at", "note"),
        _of_credit,
    ),
)


def compare_accounts(
    of: Account, rows: Iterable[tuple[str, Facts]], entries: Iterable[Entry], found: Differences
) -> None:
    """`rows` with their keys, as JSON says them; `entries` of each chain oldest first. A column
    that no entry tells of is not compared."""
    told: dict[str, Facts] = {}
    for entry in entries:
        target, more = of.facts(entry)
        after = entry.after()
        facts = told.setdefault(target, {})
        facts |= {name: after[name] for name in of.columns if name in after} | more
    for key, row in rows:
        wanted = told.pop(key, None)
        if wanted is None and not of.made_by_migrations:
            name = f"{of.table} {key}"
            found.add(Kind.ACCOUNT_CHANGED, None, None, name, "none", "a row")
        for column, value in (wanted or {}).items():
            if column == "name" and value is None:
                continue
            if not _same(value, row.get(column)):
                where = f"{column} of {of.table} {key}"
                found.add(Kind.ACCOUNT_CHANGED, None, None, where, value, row.get(column))
    for key in sorted(told):
        found.add(Kind.ACCOUNT_CHANGED, None, None, f"{of.table} {key}", "a row", "none")


def compare_plans(
    histories: Mapping[str, list[Since]], entries: Iterable[Entry], found: Differences
) -> None:
    """The plans that each tenant has had and since when, in order: tenant_plans beside the audit
    log."""
    told: dict[str, list[Since]] = {}
    for entry in entries:
        plan = entry.after().get("plan")
        plans = told.setdefault(entry.chain, [])
        if plan is not None and (not plans or plans[-1].plan != plan):
            plans.append(Since(plan, entry.at))
    for tenant_id in sorted(told.keys() | histories.keys()):
        wanted, stands = told.get(tenant_id, []), histories.get(tenant_id, [])
        agree = len(wanted) == len(stands) and all(
            one.plan == other.plan and abs(one.at - other.at) <= ONE_CHANGE
            for one, other in zip(wanted, stands, strict=True)
        )
        if not agree:
            name = f"tenant_plans of {tenant_id}"
            shown = [" ".join(f"{each.plan} {each.at}" for each in of) for of in (wanted, stands)]
            found.add(Kind.ACCOUNT_CHANGED, tenant_id, None, name, *shown)


class Tax(NamedTuple):
    """A tenant's tax from the day `since` on, and the day on which it was recorded."""

    name: str
    rate: Decimal | None
    since: date
    noted_on: date


TAXES = Account("tenant_taxes", ("billing_profile.put",), ())


def compare_taxes(
    histories: Mapping[str, list[Tax]], entries: Iterable[Entry], found: Differences
) -> None:
    """Compare the taxes that each tenant has had, in the order in which they were recorded, with
    the audit log. A tenant of whom the log has an entry without `tax_since`, from before there was
    a history, is left out."""
    told: dict[str, list[Tax]] = {}
    before: dict[str, tuple[Any, ...]] = {}
    old: set[str] = set()
    for entry in entries:
        after = entry.after()
        if "tax_since" not in after:
            old.add(entry.chain)
            continue
        rate, since = after["tax_rate"], date.fromisoformat(after["tax_since"])
        tax = (after["tax_name"], None if rate is None else Decimal(str(rate)), since)
        taxes = told.setdefault(entry.chain, [])
        is_new = tax[1] is not None if entry.chain not in before else tax != before[entry.chain]
        if is_new:
            taxes.append(Tax(*tax, noted_on=entry.at.date()))
        before[entry.chain] = tax
    for tenant_id in sorted((told.keys() | histories.keys()) - old):
        wanted, stands = told.get(tenant_id, []), histories.get(tenant_id, [])
        agree = len(wanted) == len(stands) and all(
            one[:3] == other[:3] and abs(one.noted_on - other.noted_on) <= timedelta(days=1)
            for one, other in zip(wanted, stands, strict=True)
        )
        if not agree:
            shown = [
                " ".join(f"{each.name} {each.rate} {each.since}" for each in of)
                for of in (wanted, stands)
            ]
            found.add(Kind.ACCOUNT_CHANGED, tenant_id, None, f"taxes of {tenant_id}", *shown)


def _same(told: Any, stands: Any) -> bool:
    """Whether a value is the one that was told; times and decimals have several texts."""
    if told == stands:
        return True
    if isinstance(told, str) and isinstance(stands, str):
        try:
            return datetime.fromisoformat(told) == datetime.fromisoformat(stands)
        except (ValueError, TypeError):
            return False
    if isinstance(stands, int | float | Decimal) and isinstance(told, str | int | float | Decimal):
        try:
            return Decimal(str(told)) == Decimal(str(stands))
        except InvalidOperation:
            return False
    return False
