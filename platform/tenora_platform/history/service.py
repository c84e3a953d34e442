"""Makes time series of the history: steps without rows filled, parts with what they are parts of,
quantiles of histograms, the plans' targets. It knows metrics and rows, no routes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.history import repository
from tenora_platform.history.metrics import ADMIN_METRICS, QUANTILES, Metric, Unit
from tenora_platform.history.quantiles import quantile_ms
from tenora_platform.history.repository import COUNT, Asked, Group, Ranked, Steps
from tenora_platform.history.schemas import TimeSeries, TimeSeriesAnswer, TimeSeriesSum
from tenora_platform.history.window import Window
from tenora_platform.tenants.tables import PlanRow, TenantRow

POINTS_MAX = 200_000
"""Of all series of an answer together."""
_TARGETS = {"ttft": 0, "ttft_attainment": 0, "tpot": 1, "tpot_attainment": 1}


Promise = tuple[float | None, float | None]
"""ttft_ms and tpot_ms of a plan."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What plans promise now. `tenants`, those that are shown: id -> (name, class of its plan,
    promise). `classes`, of all tenants: class -> their promises."""

    tenants: Mapping[str, tuple[str, str, Promise]]
    classes: Mapping[str, frozenset[Promise]]

    def name(self, tenant_id: str | None) -> str | None:
        found = self.tenants.get(tenant_id or "")
        return found[0] if found is not None else None

    def of(self, metric: str, group: Group, only: str | None) -> float | None:
        """The one that holds for all of a group: of a tenant's own class, or of all tenants of a
        class if they are alike."""
        which = _TARGETS.get(metric)
        if which is None:
            return None
        found = {promise[which] for promise in self._of(group, group.tenant_id or only)}
        return found.pop() if len(found) == 1 else None

    def _of(self, group: Group, tenant_id: str | None) -> Iterable[Promise]:
        class_ = group.service_class
        if not tenant_id:
            of = self.classes if class_ is None else {class_: self.classes.get(class_, ())}
            return chain.from_iterable(of.values())
        _, own, promise = self.tenants.get(tenant_id, ("", "", None))
        return (promise,) if promise is not None and class_ in (None, own) else ()


async def targets(session: AsyncSession, groups: Iterable[Group], only: str | None) -> Targets:
    """Those of these groups; `only`: of a tenant's who is alone in them."""
    ids = {group.tenant_id or only for group in groups}
    of_plans = select(
        TenantRow.id, TenantRow.name, PlanRow.sla_class, PlanRow.ttft_ms, PlanRow.tpot_ms
    ).join(PlanRow, PlanRow.name == TenantRow.plan)
    tenants = {}
    if named := ids - {None, ""}:
        rows = await session.execute(of_plans.where(TenantRow.id.in_(named)))
        tenants = {id_: (name, own, (ttft, tpot)) for id_, name, own, ttft, tpot in rows}
    classes: dict[str, set[Promise]] = defaultdict(set)
    if ids & {None, ""}:
        has_any = exists().where(TenantRow.plan == PlanRow.name)
        promised = select(PlanRow.sla_class, PlanRow.ttft_ms, PlanRow.tpot_ms).where(has_any)
        for class_, ttft, tpot in await session.execute(promised):
            classes[class_].add((ttft, tpot))
    return Targets(tenants, {class_: frozenset(each) for class_, each in classes.items()})


@dataclass(frozen=True, slots=True)
class Found:
    """Of one metric of service: the groups to show with their steps, and of all of them how many
    there are and their sums."""

    name: str
    metric: Metric
    ranked: Ranked
    groups: Mapping[Group, Steps]

    @property
    def total(self) -> int:
        """Series of all groups."""
        return self.ranked.total * self.metric.series_of_group

    def sums(self) -> list[TimeSeriesSum]:
        if not self.ranked.groups:
            return []
        return metric_sum(self.name, self.metric.unit, list(self.ranked.sums.values()))


@dataclass(frozen=True, slots=True)
class FoundSeries:
    """What an answer consists of, in the order of the metrics (the engine's made already).
    `looked`: the steps in which anybody looked; in the others nothing is known, in these nothing is
    zero."""

    asked: Asked
    limit: int
    looked: frozenset[int]
    metrics: Sequence[Found | list[TimeSeries]]
    targets: Targets

    def answer(self) -> TimeSeriesAnswer:
        """The series of all metrics, of each at most `limit`, the largest group first."""
        window = self.asked.window
        made = TimeSeriesAnswer(
            start=window.start_s,
            end=window.end_s,
            step_s=window.step_s,
            times=list(window.times),
            known_until=None,
            total=0,
            series=[],
            sums=[],
        )
        for found in self.metrics:
            if isinstance(found, Found):
                made.total = max(made.total, found.total)
                made.series += self._series(found)[: self.limit]
                made.sums += found.sums()
            else:
                made.total = max(made.total, len(found))
                made.series += found[: self.limit]
                made.sums += sums(found)
        return made

    def _series(self, found: Found) -> list[TimeSeries]:
        maker, made = Maker(self.asked.window, self.looked), []
        for group, steps in found.groups.items():
            target_ms = self.targets.of(found.name, group, self.asked.tenant_id)
            for each in maker.series(found.name, found.metric, steps):
                each.target_ms = target_ms
                each.tenant_id = group.tenant_id or None
                each.tenant_name = self.targets.name(group.tenant_id)
                each.service_class = group.service_class
                each.kind = group.kind or each.kind
                made.append(each)
        return made


class Maker:
    """Makes series of steps. `looked` as `FoundSeries` has it."""

    def __init__(self, window: Window, looked: frozenset[int]) -> None:
        self._places = range(len(window.times))
        self._looked = looked

    def series(self, name: str, metric: Metric, steps: Steps) -> list[TimeSeries]:
        """Of one group of a metric of service."""
        if metric.form == "part":
            return [self.part(name, metric, steps)]
        if metric.form == "quantiles":
            return self._quantiles(name, metric, steps)
        column = COUNT if metric.form == "counts" else metric.columns[0]
        values = self.filled({at: float(row[column]) for at, row in steps.items()})
        return [TimeSeries(metric=name, unit=metric.unit, values=values)]

    def _quantiles(self, name: str, metric: Metric, steps: Steps) -> list[TimeSeries]:
        column = metric.columns[0]
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

    def part(self, name: str, metric: Metric, steps: Steps) -> TimeSeries:
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

    def levels(self, name: str, metric: Metric, steps: Steps) -> list[TimeSeries]:
        """Of a metric of the engine, one series a column."""
        kinds = metric.kinds or (None,) * len(metric.columns)
        return [
            TimeSeries(
                metric=name,
                unit=metric.unit,
                kind=kind,
                values=[_level(steps.get(at), column, metric) for at in self._places],
            )
            for column, kind in zip(metric.columns, kinds, strict=True)
        ]

    def filled(self, steps: Mapping[int, float]) -> list[float | None]:
        return [steps.get(at, 0.0 if at in self._looked else None) for at in self._places]

    def _numbers(self, number: Callable[[int], Any], steps: Steps) -> list[int]:
        return [int(number(at)) if at in steps else 0 for at in self._places]


async def looked(session: AsyncSession, window: Window) -> frozenset[int]:
    return frozenset(await repository.engine_rows(session, window, ["samples"]))


def fitting(limit: int, window: Window, metrics: Collection[str]) -> int:
    """How many series of each metric an answer may have."""
    return max(1, min(limit, POINTS_MAX // (len(window.times) * max(1, len(metrics)))))


async def find(
    session: AsyncSession,
    asked: Asked,
    metrics: Mapping[str, Metric],
    limit: int,
    steps: frozenset[int],
) -> FoundSeries:
    """Reads the rows of the groups that are shown alone: the database ranks and counts all, and
    adds them up."""
    found: list[Found | list[TimeSeries]] = []
    groups: set[Group] = set()
    for name, metric in metrics.items():
        if metric.of_engine:
            found.append(await _of_engine(session, Maker(asked.window, steps), asked, name))
            continue
        ranked = await repository.ranked(
            session, asked, metric, -(-limit // metric.series_of_group)
        )
        rows = await repository.steps_of(session, asked, metric, ranked)
        found.append(Found(name, metric, ranked, rows))
        groups |= rows.keys()
    known = await targets(session, groups, asked.tenant_id)
    return FoundSeries(asked, limit, steps, found, known)


async def _of_engine(
    session: AsyncSession, maker: Maker, asked: Asked, name: str
) -> list[TimeSeries]:
    metric, window = ADMIN_METRICS[name], asked.window
    if metric.form == "counts":
        named = await repository.engine_counts(session, window, metric.columns[0])
        return [
            TimeSeries(
                metric=name,
                unit=metric.unit,
                kind=kind,
                values=maker.filled({at: float(count) for at, count in steps.items()}),
            )
            for kind, steps in sorted(named.items())
        ]
    columns = dict.fromkeys((*metric.columns, "ready"))
    rows = await repository.engine_rows(session, window, columns)
    if metric.form == "part":
        return [maker.part(name, metric, rows)]
    return maker.levels(name, metric, rows)


def sums(series: Sequence[TimeSeries]) -> list[TimeSeriesSum]:
    """Of a metric of the engine, if it can be summed."""
    if not series:
        return []
    first = series[0]
    if first.unit == "part":
        numbers = [sum(sum(each.met or ()) for each in series)]
        numbers.append(sum(sum(each.promised or ()) for each in series))
        return metric_sum(first.metric, first.unit, numbers)
    known = [value for each in series for value in each.values if value is not None]
    return metric_sum(first.metric, first.unit, [sum(known)] if known else [])


def metric_sum(name: str, unit: Unit, numbers: Sequence[float]) -> list[TimeSeriesSum]:
    """`numbers`: one, or of a part its numerator and denominator; empty: not known."""
    if unit == "part":
        met, promised = map(int, numbers)
        value = met / promised if promised else None
        return [TimeSeriesSum(metric=name, unit=unit, value=value, met=met, promised=promised)]
    if unit in ("count", "tokens"):
        value = float(numbers[0]) if numbers else None
        return [TimeSeriesSum(metric=name, unit=unit, value=value)]
    return []


def _level(row: Mapping[str, Any] | None, column: str, metric: Metric) -> float | None:
    if row is None:
        return None
    if metric.form == "mean":
        return float(row[column]) / row["ready"] if row["ready"] else None
    return float(row[column])
