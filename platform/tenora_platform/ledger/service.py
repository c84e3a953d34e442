"""Posts to the ledger, in the database transaction of what it records: each thing once, chained to
the posting before it, with the balances it moves. It does not know what postings mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.ids import new_id
from tenora_platform.ledger import repository
from tenora_platform.ledger.accounts import nature_of
from tenora_platform.ledger.chain import GENESIS, Chain, Line
from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.locks import lock
from tenora_platform.secret import ServerSecret

_SMALLEST = Decimal(1).scaleb(-12)
_END = Decimal(10) ** 26  # the first amount that NUMERIC(38, 12) does not hold
_WIDE = Context(prec=80)


@dataclass(frozen=True, slots=True)
class Entry:
    """Debit above 0, credit below."""

    account: str
    amount: Decimal


class LedgerError(ValueError):
    """A posting that the ledger does not take; the message says why."""


class PostedOtherwiseError(LedgerError):
    """There is another posting of the same kind and reference."""


async def lock_money(session: AsyncSession, tenant_id: str) -> None:
    """Until the transaction ends: one moves this tenant's money. To be taken before any of its rows
    and before its audit chain, so that nobody waits in a circle."""
    await lock(session, f"money:{tenant_id}")


class Ledger:
    """Each tenant's books: a chain of transactions of its own. Sessions must be the operator's and
    read committed."""

    def __init__(self, secret: ServerSecret) -> None:
        self.chain = Chain(secret)

    async def post(
        self,
        session: AsyncSession,
        tenant_id: str,
        *,
        kind: str,
        reference: str,
        currency: str,
        day: date,
        entries: Iterable[Entry],
        note: str | None = None,
        created_at: datetime | None = None,
    ) -> LedgerTransactionRow:
        """What happened, once for `kind` and `reference`: the same again gives what is there.
        `day` (UTC) is what it belongs to. Entries of one account become one, and those of 0 are
        left out. Raises PostedOtherwiseError, and LedgerError for what does not add up to 0."""
        row = LedgerTransactionRow(
            tenant_id=tenant_id,
            kind=kind,
            reference=reference,
            currency=currency,
            day=day,
            reverses=None,
            note=note,
            created_at=created_at or datetime.now(UTC),
        )
        return await self._post(session, row, _settled(entries))

    async def reverse(
        self,
        session: AsyncSession,
        row: LedgerTransactionRow,
        *,
        day: date | None = None,
        note: str | None = None,
        created_at: datetime | None = None,
    ) -> LedgerTransactionRow:
        """Post the opposite of `row`, once. Of the same kind and, unless one is named, the same
        day, so that what a kind comes to in a day stays right. Raises LedgerError for a
        reversal."""
        if row.reverses is not None:
            raise LedgerError(
                f"{row.id} is a reversal and cannot be reversed; post again what it reversed"
            )
        await lock_money(session, row.tenant_id)
        found = await repository.reversal_of(session, row)
        if found is not None:
            return found
        lines = (await repository.lines_of(session, [row.id]))[row.id]
        opposite = LedgerTransactionRow(
            tenant_id=row.tenant_id,
            kind=row.kind,
            reference=f"{row.reference}:reversed",
            currency=row.currency,
            day=day or row.day,
            reverses=row.id,
            note=note,
            created_at=created_at or datetime.now(UTC),
        )
        entries = [Entry(line.account, -line.amount) for line in lines]
        return await self._post(session, opposite, _settled(entries))

    async def _post(
        self, session: AsyncSession, row: LedgerTransactionRow, entries: Sequence[Entry]
    ) -> LedgerTransactionRow:
        await lock_money(session, row.tenant_id)
        names = [each.account for each in entries]
        place = await repository.place_of(session, row, names)
        if place.found is not None:
            return await _same(session, place.found, row, entries)
        row.id = new_id("txn")
        row.seq = place.seq + 1
        row.prev_hash = place.hash or GENESIS
        row.hash = self.chain.hash_of(row, _lines(row.currency, entries))
        accounts = place.accounts
        if missing := [name for name in names if name not in accounts]:
            accounts |= await repository.add_accounts(session, row.tenant_id, row.currency, missing)
        amounts = [(accounts[each.account], each.amount) for each in entries]
        await repository.add_transaction(session, row, amounts)
        return row


def _lines(currency: str, entries: Sequence[Entry]) -> list[Line]:
    return [
        Line(number, each.account, currency, each.amount) for number, each in enumerate(entries, 1)
    ]


def _settled(entries: Iterable[Entry]) -> list[Entry]:
    """One for each account, none of 0, exact in twelve decimals. Raises LedgerError."""
    sums: dict[str, Decimal] = {}
    for each in entries:
        nature_of(each.account)
        if not _fits(each.amount):
            raise LedgerError(f"{each.amount} does not fit into 26 digits with twelve decimals")
        sums[each.account] = exact_sum((sums.get(each.account, Decimal(0)), each.amount))
    settled = [Entry(account, amount) for account, amount in sums.items() if amount]
    total = exact_sum(each.amount for each in settled)
    if not settled:
        raise LedgerError("a transaction needs at least two entries that are not 0")
    if total:
        raise LedgerError(f"the {len(settled)} entries add up to {total}, not 0: {settled}")
    return settled


def _fits(amount: Decimal) -> bool:
    return (
        amount.is_finite()
        and abs(amount) < _END
        and amount == amount.quantize(_SMALLEST, context=_WIDE)
    )


async def _same(
    session: AsyncSession, found_id: str, row: LedgerTransactionRow, entries: Sequence[Entry]
) -> LedgerTransactionRow:
    """The posting that is there, which must be this one."""
    found = await session.get_one(LedgerTransactionRow, found_id)
    lines = (await repository.lines_of(session, [found.id]))[found.id]
    there = {line.account: line.amount for line in lines}
    same = there == {each.account: each.amount for each in entries} and (
        found.currency,
        found.day,
        found.reverses,
    ) == (row.currency, row.day, row.reverses)
    if not same:
        raise PostedOtherwiseError(
            f"{row.kind} {row.reference!r} of {row.tenant_id} is already posted as {found.id}, "
            f"on {found.day} in {found.currency}: {there}"
        )
    return found
