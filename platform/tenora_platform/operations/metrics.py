"""Prometheus metrics of one platform process, in a registry of its own (no globals)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tenora_engine.events import EngineStats
from tenora_platform.operations.engine_metrics import EngineCollector

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """What is counted. Labels are bounded: routes by their pattern, tenants by their ids as far as
    the engine tells them apart, never a tenant's own names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tenora_http_requests",
            "HTTP requests",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tenora_http_request_seconds",
            "Time until the last byte of the answer",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.refused = Counter(
            "tenora_limit_refusals",
            "Requests refused by a limit",
            ["limit", "of"],
            registry=self.registry,
        )
        self.limits_local = Gauge(
            "tenora_limits_local",
            "1 while this process checks limits without Redis",
            registry=self.registry,
        )
        self.limits_unwritten = Gauge(
            "tenora_limits_unwritten",
            "Reservations and settlements that Redis has yet to hear of",
            registry=self.registry,
        )
        self.budget_settles_queued = Gauge(
            "tenora_budget_settles_queued",
            "Requests whose cost Redis is to be told of yet",
            registry=self.registry,
        )
        self.budget_local_checks = Counter(
            "tenora_budget_local_checks",
            "Budgets checked by what this process knows, without Redis",
            ["outcome"],
            registry=self.registry,
        )
        self.budget_corrections = Counter(
            "tenora_budget_corrections",
            "Counters of budgets that differed from the books and were put right",
            ["way"],
            registry=self.registry,
        )
        self._unrated = Gauge(
            "tenora_usage_unrated_events",
            "Usage events in the database that have no price yet",
            registry=self.registry,
        )
        self._letters = Gauge(
            "tenora_usage_dead_letters",
            "Usage records in the database that could not become events",
            registry=self.registry,
        )
        self._engine = EngineCollector()
        self.registry.register(self._engine)

    def record_request(self, method: str, route: str, status: int, elapsed_s: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(elapsed_s)

    def record_unbilled(self, unrated_events: int, dead_letters: int) -> None:
        """What the whole database holds that is not billed."""
        self._unrated.set(unrated_events)
        self._letters.set(dead_letters)

    def record_engine(self, stats: EngineStats | None) -> None:
        """Take over the engine's own numbers; None says that it does not serve."""
        self._engine.stats = stats

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self.registry)
