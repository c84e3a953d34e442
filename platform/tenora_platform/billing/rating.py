"""What an event costs: the price list in force when it ended, one line per meter. Pure and exact;
Decimal only. Knows no database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Literal, get_args

Meter = Literal["uncached_prefill", "cached_prefill", "output"]
METERS: tuple[Meter, ...] = get_args(Meter)

_EXACT = Context(prec=80, traps=[Inexact, InvalidOperation, Overflow])
"""The default context rounds at 28 digits; this one raises before it would round."""

_AMOUNT_END = Decimal(10) ** 26
"""The first amount that NUMERIC(38, 12) does not hold."""


@dataclass(frozen=True)
class PriceList:
    """Prices of a million tokens by meter, from `effective_from` until before `effective_to`.
    `model` and `plan` None mean any."""

    id: str
    model: str | None
    plan: str | None
    currency: str
    effective_from: datetime
    effective_to: datetime | None
    per_million: Mapping[str, Decimal]

    def applies(self, model: str, plan: str | None, at: datetime) -> bool:
        return (
            self.model in (None, model)
            and self.plan in (None, plan)
            and self.effective_from <= at
            and (self.effective_to is None or at < self.effective_to)
        )


@dataclass(frozen=True)
class Billable:
    """What of a usage event bears on its price."""

    event_id: str
    tenant_id: str
    model: str
    plan: str | None
    event_time: datetime
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    def quantities(self) -> dict[Meter, int]:
        return {
            "uncached_prefill": self.prompt_tokens - self.cached_tokens,
            "cached_prefill": self.cached_tokens,
            "output": self.output_tokens,
        }


@dataclass(frozen=True)
class RatedLine:
    """`amount` is exact: quantity * per_million / 10^6 has at most twelve decimals."""

    event_id: str
    tenant_id: str
    meter: Meter
    quantity: int
    per_million: Decimal
    price_version_id: str
    currency: str
    amount: Decimal


class UnratableError(Exception):
    """The event has no lines as things are; the message says why. It waits, it is not dropped."""


class MissingPriceError(UnratableError):
    """No price list covers the event; it stays unrated until one does."""


def exact_amount(quantity: int, per_million: Decimal) -> Decimal:
    """quantity * per_million / 10^6, unrounded."""
    return _EXACT.scaleb(_EXACT.multiply(Decimal(quantity), per_million), -6)


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = _EXACT.add(total, amount)
    return total


def choose(prices: Sequence[PriceList], event: Billable) -> PriceList:
    """The most specific list in force: a plan's own before a model's before the general one; of
    equals the newest. Raises MissingPriceError."""
    fitting = [
        price for price in prices if price.applies(event.model, event.plan, event.event_time)
    ]
    if not fitting:
        raise MissingPriceError(
            f"no price for model {event.model!r} on plan {event.plan!r} at "
            f"{event.event_time.isoformat()}"
        )
    return max(
        fitting,
        key=lambda price: (
            price.plan is not None,
            price.model is not None,
            price.effective_from,
        ),
    )


def rate(prices: Sequence[PriceList], event: Billable) -> list[RatedLine]:
    """The event's lines, none for a meter that did not move. Raises MissingPriceError if the list
    in force, or the price of one meter that moved, is missing, UnratableError for an amount that no
    book holds: all lines or none."""
    used = {meter: count for meter, count in event.quantities().items() if count}
    if not used:
        return []
    chosen = choose(prices, event)
    lines = []
    for meter, quantity in used.items():
        per_million = chosen.per_million.get(meter)
        if per_million is None:
            raise MissingPriceError(f"price list {chosen.id} has no price for {meter}")
        amount = exact_amount(quantity, per_million)
        if amount >= _AMOUNT_END:
            raise UnratableError(f"{quantity} tokens of {meter} at {per_million} a million: absurd")
        lines.append(
            RatedLine(
                event_id=event.event_id,
                tenant_id=event.tenant_id,
                meter=meter,
                quantity=quantity,
                per_million=per_million,
                price_version_id=chosen.id,
                currency=chosen.currency,
                amount=amount,
            )
        )
    return lines
