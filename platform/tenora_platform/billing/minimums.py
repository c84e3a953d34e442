"""What of a month's minimum is due from who was a customer for a part of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal

_CONTEXT = Context(prec=80, rounding=ROUND_HALF_EVEN)
_EXACT = Decimal("1e-12")


@dataclass(frozen=True, slots=True)
class Stay:
    """When a tenant was made and, if it has been, deleted."""

    since: datetime
    until: datetime | None = None

    def days(self, month: date) -> tuple[int, int]:
        """Of the month that begins on this day: those on which it was there, the first and the
        last ones included, and all (UTC)."""
        end = (month + timedelta(days=31)).replace(day=1)
        first = max(self.since.astimezone(UTC).date(), month)
        last = end - timedelta(days=1)
        if self.until is not None:
            last = min(self.until.astimezone(UTC).date(), last)
        return max((last - first).days + 1, 0), (end - month).days

    def share(self, minimum: Decimal, month: date) -> Decimal:
        """Of the minimum of this month, by days, to twelve decimals."""
        there, of = self.days(month)
        if there == of:
            return minimum
        whole = _CONTEXT.multiply(minimum, Decimal(there))
        return _CONTEXT.quantize(_CONTEXT.divide(whole, Decimal(of)), _EXACT)
