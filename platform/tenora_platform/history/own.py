"""A tenant's own series out of its usage events: by adapter and version, and of tenants that the
engine does not tell apart. What the engine alone counts (refusals) is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import in_slices
from tenora_platform.errors import BadRequestError
from tenora_platform.history.metrics import QUANTILES, Metric
from tenora_platform.history.schemas import TimeSeries, TimeSeriesAnswer
from tenora_platform.history.service import metric_sum
from tenora_platform.history.window import Window

LONGEST = timedelta(days=31)
_Key = tuple[str | None, str | None, int | None]
_FROM_EVENTS = (
    "finished",
    "ended",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "ttft",
    "tpot",
    "queue",
    "ttft_attainment",
    "tpot_attainment",
)
_TPOT = "(e.duration_ms - e.first_token_ms) / nullif(e.output_tokens - 1, 0)"
_PERCENTILES = "ARRAY[0.5, 0.9, 0.99]"
_OWN = "coalesce(s.asked_class, s.class) = :class"
_REASONS = ("stop", "length", "abort", "error")


def _ended(reason: str) -> str:
    return f"count(*) FILTER (WHERE e.finish_reason = '{reason}')"


_TTFT_MET = f"count(*) FILTER (WHERE {_OWN} AND e.first_token_ms <= CAST(:ttft AS float8))"
_SUMMED: Mapping[str, Mapping[str, str]] = {
    "finished": {"finished": "count(*)"},
    "ended": {reason: _ended(reason) for reason in _REASONS},
    **{
        name: {name: f"sum(e.{name})"}
        for name in ("prompt_tokens", "cached_tokens", "output_tokens")
    },
    "ttft_attainment": {
        "ttft_met": _TTFT_MET,
        "ttft_promised": f"count(e.first_token_ms) FILTER (WHERE {_OWN})",
    },
    "tpot_attainment": {
        "tpot_met": f"count(*) FILTER (WHERE {_OWN} AND {_TPOT} <= CAST(:tpot AS float8))",
        "tpot_promised": f"count({_TPOT}) FILTER (WHERE {_OWN})",
    },
}
"""Metric -> column -> what it is of events; each is a sum over groups, too."""
_TIMES = {"ttft": "e.first_token_ms", "tpot": _TPOT, "queue": "e.queue_ms"}
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    **_SUMMED,
    **{
        name: {
            f"{name}_count": f"count({time})",
            name: f"percentile_cont({_PERCENTILES}) WITHIN GROUP (ORDER BY {time})",
        }
        for name, time in _TIMES.items()
    },
}
_KEYS = {
    "class": "s.class",
    "adapter": "coalesce(a.name, '')",
    "version": "coalesce(v.number, 0)",  # 0: the base model, so that keys are equal or not
}
_KEY_TYPES = {"class": "text", "adapter": "text", "version": "int"}
_FROM = """
  FROM usage_events e
  JOIN usage_series s ON s.id = e.series_id
  LEFT JOIN adapters a ON a.id = s.adapter_id
  LEFT JOIN adapter_versions v ON v.id = s.adapter_version_id
  {join}
 WHERE e.tenant_no = (SELECT no FROM tenants WHERE id = :tenant)
   AND e.event_time >= :start AND e.event_time < :end AND s.kind != 'shadow'
   AND (CAST(:adapter AS text) IS NULL OR a.name = :adapter)
   AND (CAST(:only AS text) IS NULL OR s.class = :only)
"""


def from_events(metrics: Mapping[str, Metric], *, all_: bool) -> dict[str, Metric]:
    """Those that events tell of. Raises BadRequestError if they have to be all and are not."""
    for name in metrics:
        if all_ and name not in _FROM_EVENTS:
            raise BadRequestError(
                f"The metric {name!r} is not available by adapter; group by class instead.",
                param="metric",
            )
    return {name: metric for name, metric in metrics.items() if name in _FROM_EVENTS}


@dataclass(frozen=True, slots=True)
class EventQuestion:
    """Which events, and what is told of them. `promised`: the plan's class and its targets in ms.
    `adapter` and `service_class`: only those of it."""

    tenant_id: str
    window: Window
    group_by: tuple[str, ...]
    metrics: Mapping[str, Metric]
    promised: tuple[str, float | None, float | None]
    adapter: str | None = None
    service_class: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """What the groups differ in. A version is one of its adapter's."""
        by = {*self.group_by, "adapter"} if "version" in self.group_by else set(self.group_by)
        return tuple(name for name in _KEYS if name in by)

    @property
    def targets_ms(self) -> tuple[float | None, float | None]:
        return self.promised[1:]

    def values(self) -> dict[str, Any]:
        start, end = self.window.bounds
        class_, ttft_ms, tpot_ms = self.promised
        return {
            "step": self.window.step_s,
            "start": start,
            "end": end,
            "tenant": self.tenant_id,
            "adapter": self.adapter,
            "only": self.service_class,
            "class": class_,
            "ttft": ttft_ms,
            "tpot": tpot_ms,
        }


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """The largest groups with their steps, and of all groups how many there are and their sums."""

    asked: EventQuestion
    groups: Mapping[_Key, Mapping[int, Mapping[str, Any]]]
    total: int
    sums: Mapping[str, Any]

    def add_to(self, answer: TimeSeriesAnswer, limit: int) -> None:
        """Of each metric at most `limit` series."""
        for name, metric in self.asked.metrics.items():
            series = [
                each
                for key, steps in self.groups.items()
                for each in _made(name, metric, key, steps, self.asked)
            ]
            answer.series += series[:limit]
            answer.total = max(answer.total, self.total * _series_of_group(metric))
            if series and name in _SUMMED:
                answer.sums += metric_sum(name, metric.unit, self._sums(name, metric))

    def _sums(self, name: str, metric: Metric) -> list[float]:
        numbers: list[float] = [int(self.sums[column]) for column in _SUMMED[name]]
        if metric.form != "part":
            return [sum(numbers)]
        return numbers if self.asked.targets_ms[name.startswith("tpot")] is not None else [0, 0]


def _series_of_group(metric: Metric) -> int:
    return len(_REASONS) if metric.form == "counts" else metric.series_of_group


async def find_events(session: AsyncSession, asked: EventQuestion, limit: int) -> FoundEvents:
    """Of each metric as many groups as have `limit` series. Raises BadRequestError for more than a
    month."""
    if not asked.metrics:
        return FoundEvents(asked, {}, 0, {})
    start, end = asked.window.bounds
    if end - start > LONGEST + timedelta(seconds=2 * asked.window.step_s):
        raise BadRequestError(
            "By adapter, the period can be at most 31 days. Move start and end closer together.",
            param="start",
        )
    least = min(map(_series_of_group, asked.metrics.values()))
    rows = await session.execute(_ranking(asked, -(-limit // least)), asked.values())
    ranked = [dict(row) for row in rows.mappings()]
    groups: dict[_Key, dict[int, Mapping[str, Any]]] = {_key(row): {} for row in ranked}
    if ranked:
        values = asked.values() | {
            f"kept_{name}": [row[name] for row in ranked] for name in asked.keys
        }
        async for row in in_slices(session, _of_steps(asked), values):
            named = dict(row._mapping)
            groups[_key(named)][asked.window.place(float(named["step"]))] = named
    return FoundEvents(
        asked, groups, ranked[0]["groups"] if ranked else 0, ranked[0] if ranked else {}
    )


def _ranking(asked: EventQuestion, limit: int) -> TextClause:
    """The groups with the most sequences, with how many there are and the sums of all."""
    summed = {
        column: each for name in asked.metrics for column, each in _SUMMED.get(name, {}).items()
    }
    columns = [f"{_KEYS[name]} AS {name}" for name in asked.keys]
    columns += ["count(*) OVER () AS groups", "count(*) AS size"]
    columns += [f"sum({each}) OVER () AS {column}" for column, each in summed.items()]
    grouped = ", ".join(_KEYS[name] for name in asked.keys)
    return text(
        f"SELECT {', '.join(columns)} {_FROM.format(join='')}"
        f" {f'GROUP BY {grouped}' if grouped else ''} HAVING count(*) > 0"
        f" ORDER BY {', '.join(['size DESC', *asked.keys])} LIMIT {limit}"
    )


def _of_steps(asked: EventQuestion) -> TextClause:
    """Of the groups in the arrays `kept_...`."""
    keys = [f"{_KEYS[name]} AS {name}" for name in asked.keys]
    columns = {column: each for name in asked.metrics for column, each in _COLUMNS[name].items()}
    join = ""
    if asked.keys:
        arrays = (f"CAST(:kept_{name} AS {_KEY_TYPES[name]}[])" for name in asked.keys)
        equal = (f"kept.{name} = {_KEYS[name]}" for name in asked.keys)
        join = (
            f"JOIN unnest({', '.join(arrays)}) AS kept ({', '.join(asked.keys)})"
            f" ON {' AND '.join(equal)}"
        )
    step = "floor(extract(epoch FROM e.event_time) / :step) * :step"
    named = [f"{step} AS step", *keys, *(f"{each} AS {name}" for name, each in columns.items())]
    by = ", ".join(str(place) for place in range(1, len(keys) + 2))
    return text(f"SELECT {', '.join(named)} {_FROM.format(join=join)} GROUP BY {by}")


def _key(row: Mapping[str, Any]) -> _Key:
    return row.get("class"), row.get("adapter"), row.get("version") or None


def _made(
    name: str,
    metric: Metric,
    key: _Key,
    steps: Mapping[int, Mapping[str, Any]],
    asked: EventQuestion,
) -> list[TimeSeries]:
    places, targets_ms = range(len(asked.window.times)), asked.targets_ms

    def numbers(column: str) -> list[int]:
        return [int(steps[at][column]) if at in steps else 0 for at in places]

    def made(values: list[float | None], kind: str | None = None, **more: Any) -> TimeSeries:
        target = targets_ms[name.startswith("tpot")] if name[:4] in ("ttft", "tpot") else None
        return TimeSeries(
            metric=name,
            unit=metric.unit,
            service_class=key[0],
            adapter=key[1],
            version=key[2],
            kind=kind,
            target_ms=target,
            values=values,
            **more,
        )

    if metric.form == "quantiles":
        return [
            made(
                [steps[at][name][n] if at in steps and steps[at][name] else None for at in places],
                kind,
                counts=numbers(f"{name}_count"),
            )
            for n, kind in enumerate(QUANTILES)
        ]
    if metric.form == "part":
        met, promised = numbers(metric.columns[0]), numbers(metric.columns[1])
        if targets_ms[name.startswith("tpot")] is None:
            met = promised = [0] * len(met)
        parts = [own / all_ if all_ else None for own, all_ in zip(met, promised, strict=True)]
        return [made(parts, met=met, promised=promised)]
    if metric.form == "counts":
        return [made([float(n) for n in numbers(reason)], reason) for reason in _REASONS]
    return [made([float(number) for number in numbers(metric.columns[0])])]
