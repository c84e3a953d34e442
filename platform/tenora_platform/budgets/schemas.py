"""Budgets and credit over HTTP. Amounts are decimal strings in the currency of the price list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints, field_validator

from tenora_platform.budgets.accounts import BudgetName, money_of
from tenora_platform.budgets.store import Level
from tenora_platform.budgets.tables import GrantKind
from tenora_platform.plain_text import ONE_LINE
from tenora_platform.schemas import Body, IdItem, Item, ListPage
from tenora_platform.times import BodyTime

Amount = Annotated[Decimal, Field(gt=0, max_digits=38, decimal_places=9)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
Note = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=ONE_LINE),
]


class BudgetView(BaseModel):
    """`held` is what requests in flight may still cost. `state` is `soft` above the soft limit,
    `hard` if nothing is left. A cap holds in each currency by itself: `spent` and `held` are the
    amounts in `currency`, which is null while no price list is in force; a currency other than the
    first of the tenant's is listed once something was spent in it. `binds` is false where nothing
    is priced in `currency` any more: the budget then refuses no request. `api_key_id`: the key
    whose budget it is, which may be one that the asking key comes from."""

    name: BudgetName
    api_key_id: str | None
    currency: str | None
    cap: str
    spent: str
    held: str
    state: Literal["ok", "soft", "hard"]
    binds: bool
    resets_at: datetime | None

    @classmethod
    def of(cls, level: Level, charged: Sequence[str | None]) -> BudgetView:
        return cls(
            name=level.budget.name,
            api_key_id=level.budget.key_id,
            currency=level.budget.currency,
            cap=f"{money_of(level.cap or 0):f}",
            spent=f"{money_of(level.spent or 0):f}",
            held=f"{money_of(level.held):f}",
            state="hard" if level.reached else "soft" if level.soft else "ok",
            binds=None in charged or level.budget.currency in charged,
            resets_at=level.budget.resets_at,
        )


class CreditView(BaseModel):
    """`granted` excludes expired credit; `balance` is what is left of it, below 0 if a request cost
    more than expected."""

    currency: str | None
    granted: str
    spent: str
    held: str
    balance: str

    @classmethod
    def of(cls, level: Level) -> CreditView:
        cap, spent = level.cap or 0, level.spent or 0
        return cls(
            currency=level.budget.currency,
            granted=f"{money_of(cap):f}",
            spent=f"{money_of(spent):f}",
            held=f"{money_of(level.held):f}",
            balance=f"{money_of(cap - spent):f}",
        )


def budget_views(
    levels: Sequence[Level], charged: Sequence[str | None]
) -> tuple[list[BudgetView], list[CreditView]]:
    """The budgets, and the credit that is among them, by currency; the tenant is `charged` in
    these."""
    return (
        [BudgetView.of(level, charged) for level in levels if level.budget.cap is not None],
        [CreditView.of(level) for level in levels if level.budget.cap is None],
    )


class CreditCreate(Body):
    """Money that the tenant may spend, until `expires_at` if set: `granted` by the operator, or
    `bought`. `currency` defaults to the first in which the tenant is charged; the credit pays for
    usage in that currency."""

    amount: Amount
    kind: GrantKind = "granted"
    currency: Currency | None = None
    expires_at: BodyTime | None = None
    note: Note | None = None


class CreditGrant(IdItem):
    """`lapsed` is what was left of it when it expired; null until then."""

    object: Literal["credit_grant"] = "credit_grant"
    tenant_id: str
    amount: Decimal
    kind: GrantKind
    currency: str
    expires_at: datetime | None
    lapsed: Decimal | None
    note: str | None
    created_at: datetime


class CreditPage(ListPage[CreditGrant]):
    pass


class TenantCredit(CreditGrant):
    tenant_name: str


class TenantCreditPage(ListPage[TenantCredit]):
    pass


class OwnGrant(IdItem):
    """Credit as its tenant sees it. `lapsed` is what was left of it when it expired; null until
    then."""

    object: Literal["credit_grant"] = "credit_grant"
    amount: Decimal
    kind: GrantKind
    currency: str
    expires_at: datetime | None
    lapsed: Decimal | None
    created_at: datetime


class OwnGrantPage(ListPage[OwnGrant]):
    pass


Percent = Annotated[int, Field(ge=1, le=200)]


class AccountBudgetBody(Body):
    """Monthly (UTC) budget of the whole account. At each of `thresholds`, percent of
    `amount`, an event `budget.alert` tells it. `hard`: beyond `amount`, requests are refused.
    `currency` defaults to the first in which the account is charged."""

    amount: Amount
    currency: Currency | None = None
    hard: bool = False
    thresholds: Annotated[list[Percent], Field(max_length=10)] = Field(default=[50, 80, 100])

    @field_validator("thresholds")
    @classmethod
    def _once_each(cls, thresholds: list[int]) -> list[int]:
        if len(set(thresholds)) != len(thresholds):
            raise ValueError("lists a threshold twice")
        return thresholds


class ThresholdAlert(BaseModel):
    threshold: int
    reached_at: datetime


class AccountBudget(Item):
    """`amount` is null where no account budget is set; `currency` is then the one a new budget
    would have. `spent` is this month's usage in that currency, as in GET /v1/costs. `alerts`: the
    thresholds reached this month. `currencies`: those of the prices in force. `binds`: requests may
    be refused by it; false where it is not `hard`, and where nothing is priced in its currency any
    more. What is priced in another currency is never refused by it."""

    object: Literal["account_budget"] = "account_budget"
    tenant_id: str
    amount: str | None = None
    currency: str
    hard: bool = False
    binds: bool = False
    thresholds: list[int] = Field(default=[])
    spent: str | None = None
    alerts: list[ThresholdAlert] = Field(default=[])
    currencies: list[str]
    period: str
    resets_at: datetime
    updated_at: datetime | None = None
