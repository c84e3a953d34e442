"""Prepaid credit: which grant pays for which usage, what lapses, and credit as a budget. Works in
sessions; no Redis, and no ledger, which follows what is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.budgets import repository
from tenora_platform.budgets.tables import CreditGrantRow

_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Credit:
    """The cap of what is spent from `since` on: what was granted less what has lapsed of it, and
    what was used before the newest grant beyond all that held then, which no grant pays. It holds
    until `until`, when the next grant expires (None: none will)."""

    cap: Decimal
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Spell:
    """Some time in which no grant begins or ends, and what was used in it by currency."""

    start: datetime
    end: datetime
    used: Mapping[str, Decimal]


async def credit_of(session: AsyncSession, tenant_id: str, now: datetime) -> Credit:
    """What lapsed is told from usage, late usage counted, and not from what was written down of it.
    Without grants there is nothing to spend."""
    grants = await repository.grants(session, tenant_id)
    newest = max((each.created_at for each in grants), default=now)
    expired = expired_of(grants, now)
    last = max((newest, *(when for when, _ in expired)))
    spells = await spells_of(session, tenant_id, grants, newest, last)
    paid = paid_by(grants, spells)
    closed = {grant.id for _, grant in expired}
    left = exact_sum(paid[each.id] if each.id in closed else each.amount for each in grants)
    ends = [each.expires_at for each in grants if each.expires_at and each.id not in closed]
    return Credit(
        cap=exact_sum((left, _beyond(grants, [each for each in spells if each.end <= newest]))),
        since=min((grant.created_at for grant in grants), default=now),
        until=min(ends, default=None),
    )


def _beyond(grants: Sequence[CreditGrantRow], spells: Sequence[Spell]) -> Decimal:
    """What no grant has paid of the usage before the newest: requests that took more than was left,
    or usage while no grant held or the tenant was not prepaid. It is on invoices, and a new grant
    does not pay it again."""
    used = exact_sum(amount for spell in spells for amount in spell.used.values())
    return exact_sum((used, *(-paid for paid in paid_by(grants, spells).values())))


def paid_by(grants: Iterable[CreditGrantRow], spells: Iterable[Spell]) -> dict[str, Decimal]:
    """What each grant, by id, has paid: usage from its creation until before its expiry, in its own
    currency. Of grants that hold at a time the one that expires first pays, then the older.

    It depends on what was used and when, and not on when that became known. Further usage and
    further grants never make it less."""
    in_order = sorted(
        grants, key=lambda each: (each.expires_at or _NEVER, each.created_at, each.id)
    )
    paid = {grant.id: Decimal(0) for grant in in_order}
    for spell in spells:
        left = dict(spell.used)
        for grant in in_order:
            holds = grant.created_at <= spell.start and spell.end <= (grant.expires_at or _NEVER)
            open_ = left.get(grant.currency, Decimal(0))
            if holds and open_ > 0:
                pays = min(open_, exact_sum((grant.amount, -paid[grant.id])))
                paid[grant.id] = exact_sum((paid[grant.id], pays))
                left[grant.currency] = exact_sum((open_, -pays))
    return paid


async def spells_of(
    session: AsyncSession, tenant_id: str, grants: Sequence[CreditGrantRow], *untils: datetime
) -> list[Spell]:
    """All the time from the first grant until the last of `untils`, with a bound at each."""
    if not grants:
        return []
    times = {each.created_at for each in grants} | set(untils)
    times |= {each.expires_at for each in grants if each.expires_at is not None}
    first, last = min(each.created_at for each in grants), max(untils)
    bounds = sorted(each for each in times if first <= each <= last)
    return [
        Spell(start, end, await repository.amounts_spent(session, tenant_id, start, end))
        for start, end in pairwise(bounds)
    ]


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
