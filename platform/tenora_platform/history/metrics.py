"""What can be asked for as a time series: each metric, its unit, and which measures of the history
it is made of. One table for the operator's and for tenants'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tenora_platform.errors import BadRequestError

Unit = Literal["count", "tokens", "part", "ms", "s", "pages", "sequences", "adapters"]
Form = Literal["sum", "max", "counts", "part", "quantiles", "mean"]
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Metric:
    """`form` says how `columns` become values: the sum or the largest, counts by name (one series a
    name), met of promised, quantiles of a histogram, or the mean over samples (one series a column,
    by the names of `kinds`). `names_from`: only counts of names from this one on."""

    form: Form
    unit: Unit
    columns: tuple[str, ...]
    of_engine: bool = False
    kinds: tuple[str, ...] = ()
    names_from: str = ""

    @property
    def series_of_group(self) -> int:
        """How many series each of its groups has; of counts each name is a group."""
        return len(QUANTILES) if self.form == "quantiles" else 1


_SERVED = {
    "finished": Metric("sum", "count", ("finished",)),
    "ended": Metric("counts", "count", ("ended",)),
    "refused": Metric("counts", "count", ("refused",)),
    "answers": Metric("counts", "count", ("answers",)),
    "errors": Metric("counts", "count", ("answers",), names_from="400"),
    "prompt_tokens": Metric("sum", "tokens", ("prompt_tokens",)),
    "cached_tokens": Metric("sum", "tokens", ("cached_tokens",)),
    "output_tokens": Metric("sum", "tokens", ("output_tokens",)),
    "ttft_attainment": Metric("part", "part", ("ttft_met", "ttft_promised")),
    "tpot_attainment": Metric("part", "part", ("tpot_met", "tpot_promised")),
    "ttft": Metric("quantiles", "ms", ("ttft",)),
    "tpot": Metric("quantiles", "ms", ("tpot",)),
    "queue": Metric("quantiles", "ms", ("queue",)),
}
_OPERATORS = {
    "service": Metric("sum", "tokens", ("service",)),
    "preemptions": Metric("sum", "count", ("preemptions",)),
    "relegations": Metric("sum", "count", ("relegations",)),
    "running": Metric("mean", "sequences", ("running",), True),
    "running_max": Metric("max", "sequences", ("running_max",), True),
    "waiting": Metric("mean", "sequences", ("waiting",), True),
    "waiting_max": Metric("max", "sequences", ("waiting_max",), True),
    "oldest_wait": Metric("max", "s", ("oldest_wait_s_max",), True),
    "step_time": Metric("max", "ms", ("step_ms_max",), True),
    "steps": Metric("sum", "count", ("steps",), True),
    "pool": Metric(
        "mean",
        "pages",
        ("live_kv_pages", "cached_kv_pages", "adapter_pages", "free_pages"),
        True,
        ("live_kv", "cached_kv", "adapter", "free"),
    ),
    "evictions": Metric(
        "sum", "count", ("kv_evictions", "adapter_evictions"), True, ("kv", "adapter")
    ),
    "adapter_loads": Metric("counts", "count", ("loads",), True),
    "restarts": Metric("counts", "count", ("restarts",), True),
    "ready": Metric("part", "part", ("ready", "samples"), True),
}
TENANT_METRICS: Mapping[str, Metric] = _SERVED
ADMIN_METRICS: Mapping[str, Metric] = _SERVED | _OPERATORS
ADMIN_GROUPS = ("tenant", "class")
TENANT_GROUPS = ("class", "adapter", "version")


def chosen(text: str, known: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics of a list with commas. Raises BadRequestError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise BadRequestError(
                f"Unknown metric {name!r}. Metrics: {', '.join(known)}.", param="metric"
            )
    if not names:
        raise BadRequestError(f"metric is required. Metrics: {', '.join(known)}.", param="metric")
    return {name: known[name] for name in dict.fromkeys(names)}


def groups(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Of a list with commas. Raises BadRequestError."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise BadRequestError(
                f"group_by cannot contain {name!r}, only {', '.join(known)}.",
                param="group_by",
            )
    return tuple(dict.fromkeys(names))
