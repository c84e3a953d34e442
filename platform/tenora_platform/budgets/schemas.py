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
    amounts in `currency`, which is null while no price list is in force; a currency other than that
    of most prices is listed once something was spent in it. `api_key_id`: the
    key whose budget it is, which may be one that the asking key comes from."""

    name: BudgetName
    api_key_id: str | None
    currency: str | None
    cap: str
    spent: str
    held: str
    state: Literal["ok", "soft", "hard"]
    resets_at: datetime | None

    @classmethod
    def of(cls, level: Level) -> BudgetView:
        return cls(
            name=level.budget.name,
            api_key_id=level.budget.key_id,
            currency=level.budget.currency,
            cap=f"{money_of(level.cap or 0):f}",
            spent=f"{money_of(level.spent or 0):f}",
            held=f"{money_of(level.held):f}",
            state="hard" if level.reached else "soft" if level.soft else "ok",
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


def budget_views(levels: Sequence[Level]) -> tuple[list[BudgetView], CreditView | None]:
    """The budgets, and the credit that is one of them."""
    credit = next((level for level in levels if level.budget.cap is None), None)
    budgets = [BudgetView.of(level) for level in levels if level is not credit]
    return budgets, None if credit is None else CreditView.of(credit)


class CreditCreate(Body):
    """Money that the tenant may spend, until `expires_at` if set: `granted` by the operator, or
    `bought`. `currency` defaults to that of the tenant's price list; the credit pays for usage in
    that currency."""

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
    `currency` defaults to that of the prices in force."""

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
    thresholds reached this month. `currencies`: those of the prices in force."""

    object: Literal["account_budget"] = "account_budget"
    tenant_id: str
    amount: str | None = None
    currency: str
    hard: bool = False
    thresholds: list[int] = Field(default=[])
    spent: str | None = None
    alerts: list[ThresholdAlert] = Field(default=[])
    currencies: list[str]
    period: str
    resets_at: datetime
    updated_at: datetime | None = None
