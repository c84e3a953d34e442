"""The part of a month's minimum that is due, by days."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.billing.minimums import Stay

NOVEMBER = date(2026, 11, 1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}Z")


@pytest.mark.parametrize(
    ("since", "until", "days"),
    [
        ("2020-01-01T00:00:00", None, 30),
        ("2026-11-01T00:00:00", None, 30),
        ("2026-11-01T23:59:59", None, 30),
        ("2026-11-02T00:00:00", None, 29),
        ("2026-11-30T23:59:59", None, 1),
        ("2026-12-01T00:00:00", None, 0),
        ("2020-01-01T00:00:00", "2026-11-01T00:00:00", 1),
        ("2020-01-01T00:00:00", "2026-11-10T12:00:00", 10),
        ("2020-01-01T00:00:00", "2026-11-30T12:00:00", 30),
        ("2020-01-01T00:00:00", "2026-12-01T00:00:00", 30),
        ("2020-01-01T00:00:00", "2026-10-31T23:59:59", 0),
        ("2026-11-10T00:00:00", "2026-11-10T01:00:00", 1),
        ("2026-11-10T00:00:00", "2026-11-12T01:00:00", 3),
    ],
)
def test_days(since: str, until: str | None, days: int) -> None:
    stay = Stay(at(since), None if until is None else at(until))
    assert stay.days(NOVEMBER) == (days, 30)
    assert stay.share(Decimal(30), NOVEMBER) == days


def test_a_day_is_one_in_utc() -> None:
    since = datetime.fromisoformat("2026-11-02T01:00:00+02:00")  # still the first
    assert Stay(since).days(NOVEMBER) == (30, 30)


_TIMES = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(
    lambda t: t.replace(tzinfo=UTC)
)
_MINIMA = st.decimals(0, 10**20, places=12)


@given(_TIMES, st.timedeltas(timedelta(0), timedelta(days=400)), _MINIMA)
def test_it_is_never_more_than_the_whole(
    since: datetime, stays: timedelta, minimum: Decimal
) -> None:
    """Nor below nothing, and over a year it is asked of as many days as the tenant was there."""
    stay = Stay(since, since + stays)
    days = 0
    for month in (date(2026 + number // 12, number % 12 + 1, 1) for number in range(26)):
        there, of = stay.days(month)
        share = stay.share(minimum, month)
        assert 0 <= there <= of
        assert 0 <= share <= minimum
        assert abs(share * of - minimum * there) <= Decimal(of) * Decimal("1e-12")
        days += there
    assert days == ((since + stays).date() - since.date()).days + 1
