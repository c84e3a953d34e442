"""A tenant's own series out of its usage events: by adapter and version, and of tenants that the
engine does not tell apart. What the engine alone counts (refusals) is not in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.errors import BadRequestError
from tenora_platform.history.metrics import QUANTILES, Metric
from tenora_platform.history.schemas import TimeSeries
from tenora_platform.history.window import Window

LONGEST = timedelta(days=31)
_SERIES_MAX = 200
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
_EVENTS = f"""
SELECT floor(extract(epoch FROM e.event_time) / :step) * :step AS step, {{keys}},
       count(*) AS finished,
       count(*) FILTER (WHERE e.finish_reason = 'stop') AS stop,
       count(*) FILTER (WHERE e.finish_reason = 'length') AS length,
       count(*) FILTER (WHERE e.finish_reason = 'abort') AS abort,
       count(*) FILTER (WHERE e.finish_reason = 'error') AS error,
       sum(e.prompt_tokens) AS prompt_tokens,
       sum(e.cached_tokens) AS cached_tokens,
       sum(e.output_tokens) AS output_tokens,
       count(e.first_token_ms) AS ttft_count,
       percentile_cont({_PERCENTILES}) WITHIN GROUP (ORDER BY e.first_token_ms) AS ttft,
       count(*) FILTER (WHERE {_TPOT} IS NOT NULL) AS tpot_count,
       percentile_cont({_PERCENTILES}) WITHIN GROUP (ORDER BY {_TPOT}) AS tpot,
       count(*) AS queue_count,
       percentile_cont({_PERCENTILES}) WITHIN GROUP (ORDER BY e.queue_ms) AS queue,
       count(e.first_token_ms) FILTER (WHERE {{own}}) AS ttft_promised,
       count(*) FILTER (WHERE {{own}} AND e.first_token_ms <= CAST(:ttft AS float8)) AS ttft_met,
       count({_TPOT}) FILTER (WHERE {{own}}) AS tpot_promised,
       count(*) FILTER (WHERE {{own}} AND {_TPOT} <= CAST(:tpot AS float8)) AS tpot_met
  FROM usage_events e
  JOIN usage_series s ON s.id = e.series_id
  LEFT JOIN adapters a ON a.id = s.adapter_id
  LEFT JOIN adapter_versions v ON v.id = s.adapter_version_id
 WHERE e.tenant_no = (SELECT no FROM tenants WHERE id = :tenant)
   AND e.event_time >= :start AND e.event_time < :end AND s.kind != 'shadow'
   AND (CAST(:adapter AS text) IS NULL OR a.name = :adapter)
 GROUP BY 1, 2, 3, 4
"""
_OWN = "coalesce(s.asked_class, s.class) = :class"
_REASONS = ("stop", "length", "abort", "error")


def from_events(metrics: Mapping[str, Metric], *, all_: bool) -> dict[str, Metric]:
    """Those that events tell of. Raises BadRequestError if they have to be all and are not."""
    for name in metrics:
        if all_ and name not in _FROM_EVENTS:
            raise BadRequestError(
                f"The metric {name!r} is not available by adapter; group by class instead.",
                param="metric",
            )
    return {name: metric for name, metric in metrics.items() if name in _FROM_EVENTS}


async def event_series(
    session: AsyncSession,
    tenant_id: str,
    window: Window,
    group_by: Sequence[str],
    metrics: Mapping[str, Metric],
    promised: tuple[str, float | None, float | None],
    adapter: str | None = None,
) -> list[TimeSeries]:
    """Of one `adapter`, by its name, or of all. `promised`: the plan's class and its targets in ms.
    Raises BadRequestError for more than a month."""
    if not metrics:
        return []
    start, end = window.bounds
    if end - start > LONGEST + timedelta(seconds=2 * window.step_s):
        raise BadRequestError(
            "By adapter, the period can be at most 31 days. Move start and end closer together.",
            param="start",
        )
    class_, ttft_ms, tpot_ms = promised
    statement = _EVENTS.format(keys=", ".join(_keys(group_by)), own=_OWN)
    rows = await session.execute(
        text(statement),
        {
            "step": window.step_s,
            "start": start,
            "end": end,
            "tenant": tenant_id,
            "adapter": adapter,
            "class": class_,
            "ttft": ttft_ms,
            "tpot": tpot_ms,
        },
    )
    found: dict[_Key, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows.mappings():
        key = (row["class"], row["adapter"], row["version"])
        found[key][window.place(float(row["step"]))] = dict(row)
    largest = sorted(found, key=lambda key: -sum(row["finished"] for row in found[key].values()))
    return [
        each
        for name, metric in metrics.items()
        for key in largest[:_SERIES_MAX]
        for each in _made(name, metric, key, found[key], window, (ttft_ms, tpot_ms))
    ]


def _keys(group_by: Sequence[str]) -> list[str]:
    by_adapter = "adapter" in group_by or "version" in group_by
    return [
        "s.class AS class" if "class" in group_by else "NULL::text AS class",
        "coalesce(a.name, '') AS adapter" if by_adapter else "NULL::text AS adapter",
        "v.number AS version" if "version" in group_by else "NULL::int AS version",
    ]


def _made(
    name: str,
    metric: Metric,
    key: _Key,
    steps: Mapping[int, Mapping[str, Any]],
    window: Window,
    targets_ms: tuple[float | None, float | None],
) -> list[TimeSeries]:
    places = range(len(window.times))

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
