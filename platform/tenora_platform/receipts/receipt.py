"""What a receipt says, out of the books: what was asked for and what ran, times, tokens, and each
line of its price computed anew. Pure; it knows no database and signs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tenora_platform.billing.price_lists import PriceList
from tenora_platform.billing.rating import (
    Rating,
    UnratableError,
    exact_amount,
    exact_sum,
    rate_again,
)
from tenora_platform.receipts.filters import REASONS, Status, ToldStatus
from tenora_platform.receipts.repository import Adapter, Event, Request
from tenora_platform.usage.ids import x_request_id_of
from tenora_platform.usage.records import stored_billable
from tenora_platform.usage.service import money

STATUSES: tuple[Status, ...] = ("completed", "aborted", "failed")  # the worst comes last


class BooksDisagreeError(Exception):
    """The stored price of an event is not what its price list makes of it."""


@dataclass(frozen=True)
class Facts:
    """What a receipt needs beside the events."""

    issuer: str  # the installation
    issued_at: datetime
    prices: Mapping[int, PriceList]  # by number
    adapters: Mapping[str, Adapter]  # by the version's id
    waiting: Mapping[int, str]  # why, by sequence


@dataclass(frozen=True)
class Charges:
    """What a request costs, as far as it has a price. `currency` None: nothing of it has one, or
    its parts have several, which then stand with the sequences alone."""

    amount: Decimal | None
    currency: str | None
    waits: bool


def told_status(request: Request) -> ToldStatus:
    """That of its worst sequence, once all have ended and are in the books."""
    return status_of(request) if len(request.events) >= sequences_of(request) else "incomplete"


def sequences_of(request: Request) -> int:
    """How many it has, ended or not."""
    said = max(event.row.sequences or 1 for event in request.events)
    return max(said, len(request.events))


def status_of(request: Request) -> Status:
    """That of the worst sequence of those that have ended."""
    reasons = {event.row.finish_reason for event in request.events}
    return next(each for each in reversed(STATUSES) if reasons & set(REASONS[each]))


def charges_of(request: Request, prices: Mapping[int, PriceList]) -> Charges:
    rows = [event.row for event in request.events]
    waits = any(row.price_version_no is None for row in rows)
    versions = {row.price_version_no for row in rows}
    currencies = {price.currency for no, price in prices.items() if no in versions}
    if len(currencies) > 1:
        return Charges(None, None, waits)
    amount = exact_sum(row.amount for row in rows if row.amount is not None)
    return Charges(amount, next(iter(currencies), None), waits)


def content(request: Request, facts: Facts) -> dict[str, Any]:
    """As it is signed. Raises BooksDisagreeError."""
    row, series = request.events[0]
    rows = [event.row for event in request.events]
    ratings = [_rating(event, facts.prices) for event in request.events]
    charges = charges_of(request, facts.prices)
    return {
        "id": request.id,
        "x_request_id": x_request_id_of(row.request, row.x_request_id),
        "issuer": facts.issuer,
        "issued_at": _time(facts.issued_at),
        "tenant_id": series.tenant_id,
        "api_key_id": series.api_key_id,
        "status": told_status(request),
        "arrived_at": _time(min(each.arrival_time for each in rows)),
        "finished_at": _time(max(each.event_time for each in rows)),
        "asked": {
            "model": series.asked_model,
            "alias": series.alias,
            "class": series.asked_class,
            "max_tokens": row.max_tokens,
        },
        "ran": {
            "model": series.model,
            "plan": series.plan,
            "adapter": _adapter(request.events[0], facts),
            "residency": row.residency,
            "sequences": sequences_of(request),
            "sequences_booked": len(rows),
        },
        "tokens": _tokens(rows),
        "prices": _prices(ratings),
        "waits_for_price": charges.waits,
        "amount": None if charges.amount is None else money(charges.amount),
        "currency": charges.currency,
        "meters": _meters(ratings) if charges.amount is not None else None,
        "sequences": [
            _sequence(event, rating, facts)
            for event, rating in zip(request.events, ratings, strict=True)
        ],
    }


def _adapter(event: Event, facts: Facts) -> dict[str, Any] | None:
    series = event.series
    if series.adapter_digest is None:
        return None
    named = facts.adapters.get(series.adapter_version_id or "")
    return {
        "name": named.name if named else None,
        "version": named.version if named else None,
        "version_id": series.adapter_version_id,
        "digest": series.adapter_digest,
    }


def _rating(event: Event, prices: Mapping[int, PriceList]) -> Rating | None:
    """As it was rated, computed again; None while it waits. Raises BooksDisagreeError."""
    row = event.row
    if row.price_version_no is None or row.amount is None:
        return None
    billable = stored_billable(*event)
    if row.price_version_no == 0:
        found = Rating(billable, None, (), None)
    else:
        price = prices.get(row.price_version_no)
        if price is None:
            raise BooksDisagreeError(f"{billable.event_id}: its price version is missing")
        try:
            found = rate_again(price, billable, row.positions)
        except UnratableError as error:
            raise BooksDisagreeError(f"{billable.event_id}: {error}") from error
    if found.amount != row.amount:
        raise BooksDisagreeError(
            f"{billable.event_id}: {money(row.amount)} in the books, but {money(found.amount)} "
            "by its price list"
        )
    return found


def _tokens(rows: Iterable[Any]) -> dict[str, int]:
    all_rows = list(rows)
    return {
        "uncached_prefill": sum(row.prompt_tokens - row.cached_tokens for row in all_rows),
        "cached_prefill": sum(row.cached_tokens for row in all_rows),
        "output": sum(row.output_tokens for row in all_rows),
    }


def _sequence(event: Event, rating: Rating | None, facts: Facts) -> dict[str, Any]:
    row, series = event
    price = rating.price if rating else None
    return {
        "sequence": row.sequence,
        "finish_reason": row.finish_reason,
        "finished_at": _time(row.event_time),
        "class": series.class_,
        "adapter_digest": series.adapter_digest,
        "residency": row.residency,
        "tokens": _tokens([row]),
        "cold_loads": row.cold_loads,
        "preemptions": row.preemptions,
        "times_ms": _times(event),
        "price_version": price.id if price else None,
        "currency": price.currency if price else None,
        "waits_because": None
        if rating
        else facts.waiting.get(row.sequence, "it has not been rated yet"),
        "meters": [_line(line) for line in rating.lines] if rating else None,
        "amount": money(rating.amount) if rating else None,
    }


def _times(event: Event) -> dict[str, float | None]:
    """`queue` is until it first ran, the load of its adapter included; `prefill` from there to the
    first token, `decode` from the first token to the end."""
    row = event.row
    first = row.first_token_ms
    return {
        "queue": round(row.queue_ms, 3),
        "adapter_load": round(row.adapter_load_ms, 3),
        "prefill": None if first is None else round(max(first - row.queue_ms, 0.0), 3),
        "decode": None if first is None else round(max(row.duration_ms - first, 0.0), 3),
        "total": round(row.duration_ms, 3),
    }


def _line(line: Any) -> dict[str, Any]:
    return {
        "meter": line.meter,
        "quantity": line.quantity,
        "parts": [
            {
                "quantity": part.quantity,
                "per_million": f"{part.per_million:f}",
                "amount": money(exact_amount(part.quantity, part.per_million)),
            }
            for part in line.parts
        ],
        "amount": money(line.amount),
    }


def _meters(ratings: Sequence[Rating | None]) -> list[dict[str, Any]]:
    """Of all sequences together."""
    quantities: dict[str, int] = {}
    amounts: dict[str, list[Decimal]] = {}
    for line in (line for rating in ratings if rating for line in rating.lines):
        quantities[line.meter] = quantities.get(line.meter, 0) + line.quantity
        amounts.setdefault(line.meter, []).append(line.amount)
    return [
        {"meter": meter, "quantity": quantities[meter], "amount": money(exact_sum(amounts[meter]))}
        for meter in quantities
    ]


def _prices(ratings: Sequence[Rating | None]) -> list[dict[str, Any]]:
    found = {rating.price.id: rating.price for rating in ratings if rating and rating.price}
    return [
        {
            "id": price.id,
            "currency": price.currency,
            "effective_from": _time(price.effective_from),
            "effective_to": _time(price.effective_to) if price.effective_to else None,
            "scope": {
                "adapter_id": price.scope.adapter_id,
                "tenant_id": price.scope.tenant_id,
                "plan": price.scope.plan,
                "model": price.scope.model,
            },
        }
        for price in found.values()
    ]


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
