"""The ledger over HTTP. Amounts are decimal strings with all twelve decimals, debit above 0."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Literal, Self

from pydantic import BaseModel

from tenora_platform.budgets.schemas import Note
from tenora_platform.ledger.accounts import Nature, nature_of
from tenora_platform.ledger.chain import Line
from tenora_platform.ledger.tables import (
    LedgerAccountRow,
    LedgerBalanceRow,
    LedgerTransactionRow,
)
from tenora_platform.schemas import Body, IdItem, ListPage
from tenora_platform.usage.service import money


class LedgerEntry(BaseModel):
    account: str
    amount: str


class LedgerTransaction(IdItem):
    """`seq` numbers a tenant's transactions without gaps; `day` (UTC) is the day it belongs to,
    `created_at` the time it was posted. Its entries add up to 0. `hash` covers all fields and
    `prev_hash`."""

    object: Literal["ledger_transaction"] = "ledger_transaction"
    tenant_id: str
    seq: int
    kind: str
    reference: str
    currency: str
    day: date
    reverses: str | None
    note: str | None
    created_at: datetime
    entries: list[LedgerEntry]
    prev_hash: str
    hash: str

    @classmethod
    def of(cls, row: LedgerTransactionRow, lines: Sequence[Line]) -> Self:
        columns = {each.key: getattr(row, each.key) for each in row.__table__.columns}
        entries = [LedgerEntry(account=each.account, amount=money(each.amount)) for each in lines]
        return cls.model_validate(columns | {"entries": entries})


class ReversalBody(Body):
    reason: Note


class LedgerPage(ListPage[LedgerTransaction]):
    pass


class LedgerBalance(BaseModel):
    """The balance over an account's `entries` entries. Debits are positive: assets and expenses
    increase upwards, liabilities and income downwards."""

    object: Literal["ledger_balance"] = "ledger_balance"
    account: str
    nature: Nature
    currency: str
    balance: str
    entries: int

    @classmethod
    def of(cls, account: LedgerAccountRow, balance: LedgerBalanceRow) -> Self:
        return cls(
            account=account.name,
            nature=nature_of(account.name),
            currency=account.currency,
            balance=money(balance.balance),
            entries=balance.entries,
        )


class TenantAccount(IdItem):
    """One tenant's balance of the requested account."""

    object: Literal["ledger_account"] = "ledger_account"
    tenant_id: str
    tenant_name: str
    account: str
    nature: Nature
    currency: str
    balance: str
    entries: int

    @classmethod
    def of(cls, account: LedgerAccountRow, balance: LedgerBalanceRow, tenant_name: str) -> Self:
        return cls(
            id=str(account.id),
            tenant_id=account.tenant_id,
            tenant_name=tenant_name,
            account=account.name,
            nature=nature_of(account.name),
            currency=account.currency,
            balance=money(balance.balance),
            entries=balance.entries,
        )


class TenantAccounts(ListPage[TenantAccount]):
    """`totals`: the sums over all tenants, by currency; debits are positive."""

    totals: dict[str, str]


class LedgerBalances(BaseModel):
    """Balances of a currency add up to 0. `days_due` lists days whose usage is not fully posted
    yet."""

    object: Literal["list"] = "list"
    data: list[LedgerBalance]
    days_due: list[date]
