"""Credit in the ledger: what was granted, what grants paid and what lapsed, each posted as what it
is beyond what was posted before. Which grant pays for what is `budgets.credit`'s to say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.billing.tenant_terms import tenant_terms
from tenora_platform.budgets import repository
from tenora_platform.budgets.credit import Spell, close, expired_of, paid_by, spells_of
from tenora_platform.budgets.tables import CreditGrantRow
from tenora_platform.ledger.accounts import CASH, LAPSED, PROMOTION, UNBILLED, credit
from tenora_platform.ledger.service import Entry, Ledger, lock_money
from tenora_platform.ledger.tables import (
    LedgerAccountRow,
    LedgerEntryRow,
    LedgerTransactionRow,
)

GRANT, USE, LAPSE = "grant", "credit", "lapse"
"""Kinds of postings; a reference is the grant's id, for the latter two with a number."""

_OWED = (credit("granted"), credit("bought"))
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Share:
    """What a grant has paid of all usage before some time."""

    grant_id: str
    kind: str  # "granted" or "bought"
    currency: str
    paid: Decimal


@dataclass(frozen=True, slots=True)
class _Posted:
    """What the ledger has of one kind for one grant."""

    amount: Decimal = Decimal(0)
    number: int = 0  # of transactions


async def credit_shares(session: AsyncSession, tenant_id: str, until: datetime) -> list[Share]:
    """What each grant has paid of the usage before `until`, by now; posts nothing. Credit pays for
    usage beyond what the plan includes, as it was rated: for no minimum and no tax."""
    grants = await repository.grants(session, tenant_id)
    terms = await tenant_terms(session, tenant_id)
    return _shares(grants, await spells_of(session, tenant_id, grants, terms, until))


async def apply_credits(
    session: AsyncSession, ledger: Ledger, tenant_id: str, until: datetime, now: datetime
) -> list[Share]:
    """The same, and it is in the ledger when this commits: Dr credit, Cr unbilled, exactly once,
    whoever applies it how often. What an invoice shows of a grant is its `paid` less what invoices
    before had of it. A grant that expired before `now` is settled whole: what it did not pay
    lapses."""
    await lock_money(session, tenant_id)
    grants = await repository.grants(session, tenant_id, lock=True)
    last = max((until, *(when for when, _ in expired_of(grants, now))))
    terms = await tenant_terms(session, tenant_id)
    spells = await spells_of(session, tenant_id, grants, terms, until, last)
    close(grants, spells, now)
    shares = _shares(grants, [each for each in spells if each.end <= until])
    posted = await _posted(session, tenant_id)
    for grant, share in zip(grants, shares, strict=True):
        await post_grant(session, ledger, grant)
        for kind, other, amount, end in _targets(grant, share.paid, posted, min(until, now)):
            known = posted.get((grant.id, kind), _Posted())
            more = exact_sum((amount, -known.amount))
            if more:
                await ledger.post(
                    session,
                    tenant_id,
                    kind=kind,
                    reference=f"{grant.id}:{known.number + 1}",
                    currency=grant.currency,
                    day=(end - _MOMENT).astimezone(UTC).date(),
                    entries=[Entry(credit(grant.kind), more), Entry(other, -more)],
                    created_at=now,
                )
    return shares


async def post_grant(session: AsyncSession, ledger: Ledger, grant: CreditGrantRow) -> None:
    """That there is this credit, once: given away, or paid for."""
    source = CASH if grant.kind == "bought" else PROMOTION
    await ledger.post(
        session,
        grant.tenant_id,
        kind=GRANT,
        reference=grant.id,
        currency=grant.currency,
        day=grant.created_at.astimezone(UTC).date(),
        entries=[Entry(source, grant.amount), Entry(credit(grant.kind), -grant.amount)],
        created_at=grant.created_at,
    )


async def tenants_due(session: AsyncSession, now: datetime) -> list[str]:
    """Those with a grant that is not in the ledger, or has expired and is not used up in it."""
    owed = (
        select(
            func.split_part(LedgerTransactionRow.reference, ":", 1).label("grant_id"),
            (-func.sum(LedgerEntryRow.amount)).label("rest"),
        )
        .join(LedgerEntryRow, LedgerEntryRow.transaction_id == LedgerTransactionRow.id)
        .join(LedgerAccountRow, LedgerAccountRow.id == LedgerEntryRow.account_id)
        .where(LedgerTransactionRow.kind.in_((GRANT, USE, LAPSE)), LedgerAccountRow.name.in_(_OWED))
        .group_by("grant_id")
        .subquery()
    )
    query = (
        select(CreditGrantRow.tenant_id)
        .outerjoin(owed, owed.c.grant_id == CreditGrantRow.id)
        .where(owed.c.rest.is_(None) | ((CreditGrantRow.expires_at <= now) & (owed.c.rest != 0)))
        .distinct()
    )
    return list(await session.scalars(query))


def _shares(grants: Sequence[CreditGrantRow], spells: Sequence[Spell]) -> list[Share]:
    paid = paid_by(grants, spells)
    return [Share(each.id, each.kind, each.currency, paid[each.id]) for each in grants]


_Known = dict[tuple[str, str], _Posted]
"""By grant and kind."""


async def _posted(session: AsyncSession, tenant_id: str) -> _Known:
    grant_id = func.split_part(LedgerTransactionRow.reference, ":", 1)
    query = (
        select(grant_id, LedgerTransactionRow.kind, func.sum(LedgerEntryRow.amount), func.count())
        .join(LedgerEntryRow, LedgerEntryRow.transaction_id == LedgerTransactionRow.id)
        .join(LedgerAccountRow, LedgerAccountRow.id == LedgerEntryRow.account_id)
        .where(
            LedgerTransactionRow.tenant_id == tenant_id,
            LedgerTransactionRow.kind.in_((USE, LAPSE)),
            LedgerAccountRow.name.in_(_OWED),
        )
        .group_by(grant_id, LedgerTransactionRow.kind)
    )
    found = await session.execute(query)
    return {(of, kind): _Posted(amount, number) for of, kind, amount, number in found}


def _targets(
    grant: CreditGrantRow, paid: Decimal, posted: _Known, until: datetime
) -> Iterator[tuple[str, str, Decimal, datetime]]:
    """(kind, the other account, what there should be of it, before when) of one grant. What it paid
    is never taken back."""
    had = posted.get((grant.id, USE), _Posted()).amount
    if grant.lapsed is None or grant.expires_at is None:
        yield USE, UNBILLED, max(paid, had), until
        return
    used = max(exact_sum((grant.amount, -grant.lapsed)), had)
    yield USE, UNBILLED, used, grant.expires_at
    other = LAPSED if grant.kind == "bought" else PROMOTION
    yield LAPSE, other, exact_sum((grant.amount, -used)), grant.expires_at
