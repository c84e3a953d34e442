"""Which processes there are and what they have counted for all, as metric families: read as it
stands when it is asked for, so that each API process shows the same. Levels belong here, not in
gauges of one process, which would show what only that one knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tenora_platform.processes.presence import Presence, Process
from tenora_platform.reconciliation.told import Told
from tenora_platform.registry.store_told import StoreTold


class ProcessCollector(Collector):
    """Shows no process until it was given a `presence`, nor while Redis is away."""

    def __init__(self) -> None:
        self.presence: Presence | None = None
        self.hosts = True
        self.unbilled: Callable[[], tuple[int, int] | None] = lambda: None
        self.proof: Callable[[], Told | None] = lambda: None
        self.store: Callable[[], StoreTold | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        others = [] if self.presence is None else self.presence.others or []
        processes = GaugeMetricFamily("tenora_processes", "Processes by role", labels=["role"])
        for role, count in Counter(each.role for each in others).items():
            processes.add_metric([role], count)
        yield processes
        yield self._restarts(others)
        unbilled = self.unbilled()
        unrated, letters = (None, None) if unbilled is None else unbilled
        for name, text, value in (
            ("unrated_events", "Usage events in the database that have no price yet", unrated),
            ("dead_letters", "Usage records that could not be stored as events", letters),
        ):
            yield GaugeMetricFamily(f"tenora_usage_{name}", text, value)
        yield from _proof(self.proof())
        yield from _store(self.store())

    def _restarts(self, others: list[Process]) -> Metric:
        """Of each process; of those of one name together where no host may be named."""
        counted: Counter[tuple[str, ...]] = Counter()
        for each in others:
            for name, count in each.restarts.items():
                counted[(each.host, name) if self.hosts else (name,)] += count
        family = CounterMetricFamily(
            "tenora_process_restarts",
            "Processes that died and were restarted",
            labels=["host", "process"] if self.hosts else ["process"],
        )
        for labels, count in counted.items():
            family.add_metric(list(labels), count)
        return family


_RUN = (
    ("differences", "Differences found by the last reconciliation"),
    ("timestamp_seconds", "When it ended"),
    ("seconds", "Duration of the last reconciliation"),
)


_STORE = (
    ("sweep_stopped", "1 while garbage collection of the object store has stopped"),
    ("objects", "Objects that the last sweep of the object store looked at"),
    ("unowned_objects", "Objects of the last sweep that no row owns"),
    ("damaged_versions", "Adapter versions whose content is damaged or missing"),
    ("missing_contents", "Contents of adapters of which the last sweep missed a file"),
    ("usage_held", "1 while usage waits in the outbox, because the database is not its own"),
    ("unreadable_usage", "Segments and records of the outbox that cannot be read"),
)


def _store(told: StoreTold | None) -> Iterator[Metric]:
    """Without samples until a worker has looked, the counts until one has swept."""
    values: tuple[float | None, ...] = (None,) * len(_STORE)
    if told is not None:
        stopped = float(bool(told.problem or told.stopped))
        held = float(told.usage_held)
        found = (told.objects, told.unowned, told.damaged, told.missing)
        values = (stopped, *found, held, told.unreadable_usage)
    for (name, text), value in zip(_STORE, values, strict=True):
        yield GaugeMetricFamily(f"tenora_store_{name}", text, value)


def _proof(told: Told | None) -> Iterator[Metric]:
    """Without samples until there was a run, or a round."""
    values: tuple[float | None, ...] = (None, None, None)
    if told is not None and told.reconciled_s is not None:
        values = (told.differences, told.reconciled_s, told.took_s)
    for (name, text), value in zip(_RUN, values, strict=True):
        yield GaugeMetricFamily(f"tenora_reconciliation_{name}", text, value)
    ok = GaugeMetricFamily("tenora_canary_ok", "1 if the synthetic check passed", labels=["check"])
    for check, held in sorted(told.canary.items() if told is not None else ()):
        ok.add_metric([check], held)
    yield ok
    last_s = None if told is None else told.canary_s
    yield GaugeMetricFamily(
        "tenora_canary_timestamp_seconds", "When the last round of synthetic checks ended", last_s
    )
