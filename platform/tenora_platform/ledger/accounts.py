"""The names of accounts in a tenant's books and what kind each is. It knows no rows."""

from __future__ import annotations

import re
from typing import Literal

Nature = Literal["asset", "liability", "income", "expense"]

UNBILLED = "unbilled"  # used, and on no invoice yet
RECEIVABLE = "receivable"
CASH = "cash"
TAX = "tax"
ROUNDING = "rounding"  # what lines of invoices are off from the exact amounts
PROMOTION = "promotion"  # credit that was given
LAPSED = "credit:lapsed"  # bought credit that nobody used in time

_NATURES: dict[str, Nature] = {
    UNBILLED: "asset",
    RECEIVABLE: "asset",
    CASH: "asset",
    "credit:granted": "liability",
    "credit:bought": "liability",
    TAX: "liability",
    LAPSED: "income",
    PROMOTION: "expense",
    ROUNDING: "expense",
}
_REVENUE = re.compile(r"revenue:[a-z][a-z0-9_]*")


def revenue(of: str) -> str:
    """Of a meter; also of `minimum`, and of `included`, which is taken off."""
    return f"revenue:{of}"


def credit(kind: str) -> str:
    """What is owed of credit: `granted` or `bought`."""
    return f"credit:{kind}"


def nature_of(account: str) -> Nature:
    """Raises ValueError for a name that is no account's."""
    if _REVENUE.fullmatch(account):
        return "income"
    if account not in _NATURES:
        raise ValueError(f"{account!r} is not an account of the ledger")
    return _NATURES[account]
