"""The window of a time series: from when to when, in which steps, and out of which table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tenora_platform.errors import BadRequestError

POINTS_MAX = 500
STEPS_S = {
    "1m": 60,
    "5m": 300,
    "15m": 900,
    "1h": 3600,
    "3h": 10_800,
    "6h": 21_600,
    "12h": 43_200,
    "1d": 86_400,
}
DEFAULT = timedelta(hours=1)
LONGEST = timedelta(days=POINTS_MAX - 1)
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Window:
    """From `start_s` until before `end_s` (unix seconds, whole steps)."""

    start_s: int
    end_s: int
    step_s: int

    @property
    def times(self) -> range:
        return range(self.start_s, self.end_s, self.step_s)

    @property
    def by_hour(self) -> bool:
        """Whether rows of hours are enough."""
        return self.step_s >= _HOUR_S

    @property
    def bounds(self) -> tuple[datetime, datetime]:
        return (
            datetime.fromtimestamp(self.start_s, UTC),
            datetime.fromtimestamp(self.end_s, UTC),
        )

    def place(self, at_s: float) -> int:
        """The index of the step that a time is in."""
        return int(at_s - self.start_s) // self.step_s


def window(
    start: datetime | None,
    end: datetime | None,
    step: str | None,
    *,
    minutes_days: int,
    now: datetime | None = None,
) -> Window:
    """Whole steps that cover what was asked for. The step is the one that was asked for, or a
    longer one: so that there are at most 500 points, and minutes only where they are kept. Raises
    BadRequestError."""
    now = now or datetime.now(UTC)
    end = end or now
    start = start or end - DEFAULT
    if start >= end:
        raise BadRequestError("start must be before end.", param="start")
    if end - start > LONGEST:
        raise BadRequestError(
            f"The period can be at most {LONGEST.days} days. Move start and end closer together.",
            param="start",
        )
    finest = STEPS_S[step] if step is not None else 60
    if start < now - timedelta(days=minutes_days):
        finest = max(finest, _HOUR_S)
    start_s, end_s = start.timestamp(), end.timestamp()
    for step_s in STEPS_S.values():
        first = int(start_s // step_s) * step_s
        last = -int(-end_s // step_s) * step_s
        if step_s >= finest and (last - first) // step_s <= POINTS_MAX:
            return Window(first, last, step_s)
    raise AssertionError("days fit")
