"""Which processes there are and what they have counted for all, as metric families: read as it
stands when it is asked for, so that each API process shows the same. Levels belong here, not in
gauges of one process, which would show what only that one knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tenora_platform.processes.presence import Presence


class ProcessCollector(Collector):
    """Shows no process until it was given a `presence`, nor while Redis is away."""

    def __init__(self) -> None:
        self.presence: Presence | None = None
        self.unbilled: Callable[[], tuple[int, int] | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        others = [] if self.presence is None else self.presence.others or []
        processes = GaugeMetricFamily("tenora_processes", "Processes by role", labels=["role"])
        for role, count in Counter(each.role for each in others).items():
            processes.add_metric([role], count)
        yield processes
        restarts = CounterMetricFamily(
            "tenora_process_restarts",
            "Parts that died and were started again",
            labels=["host", "process"],
        )
        for each in others:
            for name, count in each.restarts.items():
                restarts.add_metric([each.host, name], count)
        yield restarts
        unbilled = self.unbilled()
        unrated, letters = (None, None) if unbilled is None else unbilled
        for name, text, value in (
            ("unrated_events", "Usage events in the database that have no price yet", unrated),
            ("dead_letters", "Usage records that could not become events", letters),
        ):
            yield GaugeMetricFamily(f"tenora_usage_{name}", text, value)
