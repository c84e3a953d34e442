"""Time series over HTTP."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class TimeSeries(BaseModel):
    """`values` has one for each of the answer's times; null: nothing is known, or there was none to
    speak of (a quantile without requests). Of parts (`unit` part), `met` and `promised` are what it
    is a part of; of quantiles `counts` how many there were. `target_ms` is what the plans of all
    that it is about promise now, null where they differ or promise nothing."""

    metric: str
    unit: Literal["count", "tokens", "part", "ms", "s", "pages", "sequences", "adapters"]
    tenant_id: str | None = None
    tenant_name: str | None = None
    service_class: str | None = None
    adapter: str | None = None
    version: int | None = None
    kind: str | None = None
    target_ms: float | None = None
    values: list[float | None]
    met: list[int] | None = None
    promised: list[int] | None = None
    counts: list[int] | None = None


class TimeSeriesSum(BaseModel):
    """A metric over all times and all its series, also those that `limit` left out (by adapter and
    version of the 200 largest): of counts and tokens `value`, null where nothing is known; of parts
    what was `met` of what was `promised`."""

    metric: str
    unit: Literal["count", "tokens", "part"]
    value: float | None
    met: int | None = None
    promised: int | None = None


class TimeSeriesAnswer(BaseModel):
    """`times` are the beginnings of steps of `step_s` seconds, as unix time; the last may still
    run. `total` is how many series there are of a metric that was cut to `limit`. `sums`: of each
    metric that can be summed and has a series."""

    object: Literal["timeseries"] = "timeseries"
    start: int
    end: int
    step_s: int
    times: list[int]
    known_until: float | None
    total: int
    series: list[TimeSeries]
    sums: list[TimeSeriesSum]
