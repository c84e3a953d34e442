"""What a client is told when a budget does not let its request pass."""

from __future__ import annotations

from functools import partial

from tenora_platform.budgets.accounts import BudgetName, money_of
from tenora_platform.budgets.store import Level
from tenora_platform.errors import QuotaExceededError

_WORDS: dict[BudgetName, str] = {
    "key_day": "This API key's daily budget",
    "key_month": "This API key's monthly budget",
    "account_month": "Your account's monthly budget",
    "plan_day": "Your plan's daily budget",
    "plan_month": "Your plan's monthly budget",
    "credit": "Your prepaid credit",
}


def refusal(level: Level, wanted: int = 0) -> QuotaExceededError:
    """`wanted`: nanos that this request would have held."""
    spent, cap, held = level.spent or 0, level.cap or 0, level.held
    currency = level.budget.currency
    amount = partial(_text, currency=currency)
    words = f"{_WORDS[level.budget.name]} ({amount(cap)}) "
    if spent >= cap:
        words += "is used up"
    else:
        words += (
            f"does not cover this request: {amount(spent)} is spent, requests in flight reserve "
            f"{amount(held)}, and this request may cost {amount(wanted)}"
        )
    if level.budget.resets_at is None:
        words += "; ask the operator of this server for more."
    else:
        words += f"; it resets at {level.budget.resets_at:%Y-%m-%dT%H:%M:%SZ}."
    details: dict[str, str] = {"budget": level.budget.name}
    if level.budget.key_id is not None:
        details["api_key_id"] = level.budget.key_id  # perhaps one that the asking key comes from
    if currency is not None:
        details["currency"] = currency
    if level.budget.resets_at is not None:
        details["resets_at"] = f"{level.budget.resets_at:%Y-%m-%dT%H:%M:%SZ}"
    return QuotaExceededError(words, details=details)


def _text(nanos: int, currency: str | None) -> str:
    amount = f"{money_of(nanos).normalize():f}"
    return amount if currency is None else f"{amount} {currency}"
