"""Prepaid credit: which grant pays for which usage, what lapses, and credit as a budget. Works in
sessions; no Redis, and no ledger, which follows what is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.billing.tenant_terms import TenantTerms, tenant_terms
from tenora_platform.budgets import repository
from tenora_platform.budgets.tables import CreditGrantRow
from tenora_platform.invoices.period import end_of, midnight, month_of, months_from

_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Credit:
    """In one currency, the cap of what is spent from `since` on: what was granted less what has
    lapsed of it, what the plan includes, and what was used before the newest grant beyond all that
    held then, which no grant pays. It holds until `until`, when the next grant expires or a month
    begins that has its own included usage (None: never)."""

    cap: Decimal
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Spell:
    """Some time in which no grant begins or ends, and what was used in it by currency: all of it,
    and what of it is beyond what the month includes. That comes first; credit pays for the rest."""

    start: datetime
    end: datetime
    used: Mapping[str, Decimal]
    due: Mapping[str, Decimal]


async def credit_of(session: AsyncSession, tenant_id: str, now: datetime, currency: str) -> Credit:
    """What lapsed is told from usage, late usage counted, and not from what was written down of it.
    Without grants in this currency there is nothing to spend in it."""
    every = await repository.grants(session, tenant_id)
    grants = [each for each in every if each.currency == currency]
    if not grants:
        return Credit(cap=Decimal(0), since=now, until=None)
    since, newest = grants[0].created_at, grants[-1].created_at
    this_month = midnight(month_of(now))
    expired = expired_of(grants, now)
    last = max((newest, this_month, *(when for when, _ in expired)))
    terms = await tenant_terms(session, tenant_id)
    spells = [
        _only(each, currency)
        for each in await spells_of(session, tenant_id, grants, terms, newest, last)
    ]
    paid = paid_by(grants, spells)
    closed = {grant.id for _, grant in expired}
    left = exact_sum(paid[each.id] if each.id in closed else each.amount for each in grants)
    included = _included(terms, this_month.date(), currency)
    earlier = await _used_before(session, tenant_id, since, this_month, currency)
    free = exact_sum(
        (_freed(spells, since, this_month), max(exact_sum((included, -earlier)), Decimal(0)))
    )
    ends = [each.expires_at for each in grants if each.expires_at and each.id not in closed]
    next_month = end_of(month_of(now))
    if included or _included(terms, next_month, currency):
        ends.append(midnight(next_month))
    beyond = _beyond(grants, [each for each in spells if since <= each.start < newest])
    return Credit(
        cap=exact_sum((left, free, beyond)),
        since=since,
        until=min(ends, default=None),
    )


def _only(spell: Spell, currency: str) -> Spell:
    """What of it is in one currency."""
    used, due = (
        {currency: each[currency]} if currency in each else {} for each in (spell.used, spell.due)
    )
    return Spell(spell.start, spell.end, used, due)


def _included(terms: TenantTerms, month: date, currency: str) -> Decimal:
    return terms.included(month).get(currency, Decimal(0))


def _freed(spells: Iterable[Spell], since: datetime, this_month: datetime) -> Decimal:
    """What was included of the usage from `since` on, in past months; all of one currency."""
    before = [each for each in spells if since <= each.start and each.end <= this_month]
    used = exact_sum(amount for each in before for amount in each.used.values())
    due = exact_sum(amount for each in before for amount in each.due.values())
    return exact_sum((used, -due))


async def _used_before(
    session: AsyncSession, tenant_id: str, since: datetime, this_month: datetime, currency: str
) -> Decimal:
    """In the present month, before `since`."""
    if since <= this_month:
        return Decimal(0)
    used = await repository.amounts_spent(session, tenant_id, this_month, since)
    return used.get(currency, Decimal(0))


def _beyond(grants: Sequence[CreditGrantRow], spells: Sequence[Spell]) -> Decimal:
    """What no grant has paid of the usage before the newest: requests that took more than was left,
    or usage while no grant held or the tenant was not prepaid. It is on invoices, and a new grant
    does not pay it again."""
    due = exact_sum(amount for spell in spells for amount in spell.due.values())
    return exact_sum((due, *(-paid for paid in paid_by(grants, spells).values())))


def paid_by(grants: Iterable[CreditGrantRow], spells: Iterable[Spell]) -> dict[str, Decimal]:
    """What each grant, by id, has paid: usage from its creation until before its expiry, in its own
    currency, beyond what is included. Of grants that hold at a time the one that expires first
    pays, then the older.

    It depends on what was used and when, and not on when that became known. Further usage and
    further grants never make it less."""
    in_order = sorted(
        grants, key=lambda each: (each.expires_at or _NEVER, each.created_at, each.id)
    )
    paid = {grant.id: Decimal(0) for grant in in_order}
    for spell in spells:
        left = dict(spell.due)
        for grant in in_order:
            holds = grant.created_at <= spell.start and spell.end <= (grant.expires_at or _NEVER)
            open_ = left.get(grant.currency, Decimal(0))
            if holds and open_ > 0:
                pays = min(open_, exact_sum((grant.amount, -paid[grant.id])))
                paid[grant.id] = exact_sum((paid[grant.id], pays))
                left[grant.currency] = exact_sum((open_, -pays))
    return paid


async def spells_of(
    session: AsyncSession,
    tenant_id: str,
    grants: Sequence[CreditGrantRow],
    terms: TenantTerms,
    *untils: datetime,
) -> list[Spell]:
    """All the time from the first grant until the last of `untils`, with a bound at each; where its
    month includes usage, from the month's beginning."""
    if not grants:
        return []
    times = {each.created_at for each in grants} | set(untils)
    times |= {each.expires_at for each in grants if each.expires_at is not None}
    first, last = min(each.created_at for each in grants), max(untils)
    months = [each for each in months_from(month_of(first), last) if terms.included(each)]
    times |= {midnight(bound) for month in months for bound in (month, end_of(month))}
    first = min((first, *(midnight(month) for month in months)))
    bounds = sorted(each for each in times if first <= each <= last)
    spells: list[Spell] = []
    left: dict[str, Decimal] = {}
    for start, end in pairwise(bounds):
        if start == midnight(month_of(start)) or not spells:
            left = dict(terms.included(month_of(start)))
        used = await repository.amounts_spent(session, tenant_id, start, end)
        free = {of: min(amount, left.get(of, Decimal(0))) for of, amount in used.items()}
        left = {of: exact_sum((amount, -free.get(of, Decimal(0)))) for of, amount in left.items()}
        due = {of: exact_sum((amount, -free[of])) for of, amount in used.items()}
        spells.append(Spell(start, end, used, due))
    return spells


def expired_of(
    grants: Iterable[CreditGrantRow], now: datetime
) -> list[tuple[datetime, CreditGrantRow]]:
    """(when, which)"""
    return [
        (each.expires_at, each)
        for each in grants
        if each.expires_at is not None and each.expires_at <= now
    ]


def close(grants: Sequence[CreditGrantRow], spells: Sequence[Spell], now: datetime) -> None:
    """Write into each grant that has expired what lapsed of it: what it has not paid. Less than was
    written before, should usage of its time have come late. The spells reach to its expiry."""
    paid = paid_by(grants, spells)
    for _, grant in expired_of(grants, now):
        lapsed = exact_sum((grant.amount, -paid[grant.id]))
        grant.lapsed = lapsed if grant.lapsed is None else min(grant.lapsed, lapsed)
