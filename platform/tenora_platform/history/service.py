"""Makes time series of the history: steps without rows filled, parts with what they are parts of,
quantiles of histograms, the plans' targets. It knows metrics and rows, no routes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.history import repository
from tenora_platform.history.metrics import QUANTILES, Metric
from tenora_platform.history.quantiles import quantile_ms
from tenora_platform.history.repository import Asked, Group
from tenora_platform.history.schemas import TimeSeries, TimeSeriesAnswer, TimeSeriesSum
from tenora_platform.history.window import Window
from tenora_platform.tenants.tables import PlanRow, TenantRow

_TARGETS = {
    "ttft": "ttft_ms",
    "ttft_attainment": "ttft_ms",
    "tpot": "tpot_ms",
    "tpot_attainment": "tpot_ms",
}


@dataclass(frozen=True, slots=True)
class Promise:
    """What a plan promises to those of its class."""

    class_: str
    ttft_ms: float | None
    tpot_ms: float | None


@dataclass(frozen=True, slots=True)
class Targets:
    """What plans promise now. `plans` are those that tenants have; `tenants`, of those that are
    shown, id -> (name, plan)."""

    plans: Mapping[str, Promise]
    tenants: Mapping[str, tuple[str, str]]

    def name(self, tenant_id: str | None) -> str | None:
        found = self.tenants.get(tenant_id or "")
        return found[0] if found is not None else None

    def of(self, metric: str, group: Group, only: str | None) -> float | None:
        """The one that holds for all of a group: of a tenant's own class, or of all tenants of a
        class if they are alike."""
        which = _TARGETS.get(metric)
        if which is None:
            return None
        tenant_id, class_ = group[0] or only, group[1]
        promised = list(self.plans.values())
        if tenant_id is not None:
            own = self.tenants.get(tenant_id)
            promised = [] if own is None else [self.plans[own[1]]]
        found = {getattr(each, which) for each in promised if class_ in (None, each.class_)}
        return found.pop() if len(found) == 1 else None


async def targets(session: AsyncSession, tenant_ids: Collection[str]) -> Targets:
    """For series of these tenants, and for those of several together."""
    has_any = exists().where(TenantRow.plan == PlanRow.name)
    plans = select(PlanRow.name, PlanRow.sla_class, PlanRow.ttft_ms, PlanRow.tpot_ms)
    tenants = select(TenantRow.id, TenantRow.name, TenantRow.plan).where(
        TenantRow.id.in_(tenant_ids)
    )
    return Targets(
        {
            plan: Promise(class_, ttft_ms, tpot_ms)
            for plan, class_, ttft_ms, tpot_ms in await session.execute(plans.where(has_any))
        },
        {id_: (name, plan) for id_, name, plan in await session.execute(tenants)},
    )


class Reader:
    """One answer's series. `looked` are the steps in which anybody looked: in the others nothing is
    known, in these nothing is zero."""

    def __init__(self, session: AsyncSession, asked: Asked, looked: frozenset[int]) -> None:
        self._session = session
        self._asked = asked
        self._looked = looked

    @property
    def window(self) -> Window:
        return self._asked.window

    async def series(self, name: str, metric: Metric) -> list[tuple[TimeSeries, Group]]:
        """Of one metric, the largest group first."""
        if metric.of_engine:
            return [(each, (None, None)) for each in await self._of_engine(name, metric)]
        return await self._of_service(name, metric)

    async def _of_service(self, name: str, metric: Metric) -> list[tuple[TimeSeries, Group]]:
        if metric.form == "counts":
            return await self._counts(name, metric)
        read = repository.histograms if metric.form == "quantiles" else repository.sums
        rows = await read(self._session, self._asked, metric.columns)
        made: list[tuple[TimeSeries, Group]] = []
        for group in sorted(rows, key=_order(rows, metric)):
            for each in self._made(name, metric, rows[group]):
                made.append((each, group))
        return made

    def _made(
        self, name: str, metric: Metric, steps: Mapping[int, Mapping[str, Any]]
    ) -> list[TimeSeries]:
        column = metric.columns[0]
        if metric.form == "part":
            return [self._part(name, metric, steps)]
        if metric.form == "quantiles":
            counted = self._numbers(lambda at: sum(steps[at][column]), steps)
            return [
                TimeSeries(
                    metric=name,
                    unit=metric.unit,
                    kind=kind,
                    values=[
                        quantile_ms(steps[at][column], part) if at in steps else None
                        for at in self._places
                    ],
                    counts=counted,
                )
                for kind, part in QUANTILES.items()
            ]
        values = self._filled({at: float(row[column]) for at, row in steps.items()})
        return [TimeSeries(metric=name, unit=metric.unit, values=values)]

    def _part(
        self, name: str, metric: Metric, steps: Mapping[int, Mapping[str, Any]]
    ) -> TimeSeries:
        of, whole = metric.columns
        met = self._numbers(lambda at: steps[at][of], steps)
        promised = self._numbers(lambda at: steps[at][whole], steps)
        return TimeSeries(
            metric=name,
            unit=metric.unit,
            values=[own / all_ if all_ else None for own, all_ in zip(met, promised, strict=True)],
            met=met,
            promised=promised,
        )

    async def _counts(self, name: str, metric: Metric) -> list[tuple[TimeSeries, Group]]:
        rows = await repository.counts(self._session, self._asked, metric.columns[0])
        if name == "errors":
            rows = {key: steps for key, steps in rows.items() if key[1] >= "400"}
        return [
            (
                TimeSeries(
                    metric=name,
                    unit=metric.unit,
                    kind=kind,
                    values=self._filled({at: float(count) for at, count in steps.items()}),
                ),
                group,
            )
            for (group, kind), steps in sorted(
                rows.items(), key=lambda item: -sum(item[1].values())
            )
        ]

    async def _of_engine(self, name: str, metric: Metric) -> list[TimeSeries]:
        if metric.form == "counts":
            named = await repository.engine_counts(self._session, self.window, metric.columns[0])
            return [
                TimeSeries(
                    metric=name,
                    unit=metric.unit,
                    kind=kind,
                    values=self._filled({at: float(count) for at, count in steps.items()}),
                )
                for kind, steps in sorted(named.items())
            ]
        columns = dict.fromkeys((*metric.columns, "ready"))
        rows = await repository.engine_rows(self._session, self.window, columns)
        if metric.form == "part":
            return [self._part(name, metric, rows)]
        return [
            TimeSeries(
                metric=name,
                unit=metric.unit,
                kind=kind,
                values=[_level(rows.get(at), column, metric) for at in self._places],
            )
            for column, kind in zip(
                metric.columns, metric.kinds or (None,) * len(metric.columns), strict=True
            )
        ]

    @property
    def _places(self) -> range:
        return range(len(self.window.times))

    def _filled(self, steps: Mapping[int, float]) -> list[float | None]:
        return [steps.get(at, 0.0 if at in self._looked else None) for at in self._places]

    def _numbers(
        self, number: Callable[[int], Any], steps: Mapping[int, Mapping[str, Any]]
    ) -> list[int]:
        return [int(number(at)) if at in steps else 0 for at in self._places]


async def looked(session: AsyncSession, window: Window) -> frozenset[int]:
    return frozenset(await repository.engine_rows(session, window, ["samples"]))


async def answer(
    session: AsyncSession,
    asked: Asked,
    metrics: Mapping[str, Metric],
    limit: int,
    steps: frozenset[int],
) -> TimeSeriesAnswer:
    """The series of all metrics, of each at most `limit`."""
    reader = Reader(session, asked, steps)
    made = TimeSeriesAnswer(
        start=asked.window.start_s,
        end=asked.window.end_s,
        step_s=asked.window.step_s,
        times=list(asked.window.times),
        known_until=None,
        total=0,
        series=[],
        sums=[],
    )
    shown: list[tuple[TimeSeries, Group]] = []
    for name, metric in metrics.items():
        found = await reader.series(name, metric)
        made.total = max(made.total, len(found))
        made.sums += sums([each for each, _ in found])
        shown += found[:limit]
    await _name(session, shown, asked.tenant_id)
    made.series = [each for each, _ in shown]
    return made


async def _name(
    session: AsyncSession, shown: Sequence[tuple[TimeSeries, Group]], only: str | None
) -> None:
    """Whose each is, and what was promised. `only`: all are this tenant's."""
    ids = {tenant_id for _, (tenant_id, _) in shown} | {only}
    known = await targets(session, {each for each in ids if each})
    for each, group in shown:
        each.target_ms = known.of(each.metric, group, only)
        each.tenant_id = group[0] or None
        each.tenant_name = known.name(group[0])
        each.service_class = group[1]


def sums(series: Sequence[TimeSeries]) -> list[TimeSeriesSum]:
    """Of each metric of `series` that can be summed, in their order."""
    by_metric: dict[str, list[TimeSeries]] = defaultdict(list)
    for each in series:
        by_metric[each.metric].append(each)
    found = []
    for metric, own in by_metric.items():
        unit = own[0].unit
        if unit == "part":
            met = sum(sum(each.met or ()) for each in own)
            promised = sum(sum(each.promised or ()) for each in own)
            value = met / promised if promised else None
            found.append(
                TimeSeriesSum(metric=metric, unit=unit, value=value, met=met, promised=promised)
            )
        elif unit in ("count", "tokens"):
            known = [value for each in own for value in each.values if value is not None]
            value = sum(known) if known else None
            found.append(TimeSeriesSum(metric=metric, unit=unit, value=value))
    return found


def of_tenant(asked: Asked, tenant_id: str) -> Asked:
    return replace(asked, tenant_id=tenant_id)


def _level(row: Mapping[str, Any] | None, column: str, metric: Metric) -> float | None:
    if row is None:
        return None
    if metric.form == "mean":
        return float(row[column]) / row["ready"] if row["ready"] else None
    return float(row[column])


def _order(
    rows: Mapping[Group, Mapping[int, Mapping[str, Any]]], metric: Metric
) -> Callable[[Group], tuple[float, ...]]:
    """The largest first; of parts those that missed most."""

    def size(group: Group) -> tuple[float, ...]:
        steps = rows[group].values()
        if metric.form == "part":
            of, whole = metric.columns
            promised = sum(row[whole] for row in steps)
            return (-(promised - sum(row[of] for row in steps)), -promised)
        if metric.form == "quantiles":
            return (-sum(sum(row[metric.columns[0]]) for row in steps),)
        return (-sum(float(row[metric.columns[0]]) for row in steps),)

    return size
