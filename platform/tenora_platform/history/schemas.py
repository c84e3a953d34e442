"""Time series over HTTP."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class TimeSeries(BaseModel):
    """`values` has one value per time of the answer; null if it is not known, or has no data (a
    quantile without requests). For fractions (`unit` part), `met` and `promised` are its numerator
    and denominator; for quantiles `counts` is the number of observations. `target_ms` is the
    current target of the plans concerned; null if they differ or have none."""

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
    """A metric over all times and all series, including those left out by `limit`: `value` for
    counts and tokens, null if not known; `met` of `promised` for fractions."""

    metric: str
    unit: Literal["count", "tokens", "part"]
    value: float | None
    met: int | None = None
    promised: int | None = None


class TimeSeriesAnswer(BaseModel):
    """`times` are the starts of steps of `step_s` seconds, as Unix time; the last step may still be
    in progress. `total` is the number of series of a metric that was cut to `limit`. `sums` has
    each metric that can be summed and has a series."""

    object: Literal["timeseries"] = "timeseries"
    start: int
    end: int
    step_s: int
    times: list[int]
    known_until: float | None
    total: int
    series: list[TimeSeries]
    sums: list[TimeSeriesSum]
