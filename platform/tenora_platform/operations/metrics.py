"""Prometheus metrics of the platform's processes, in a registry of their own (no globals)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from tenora_engine.events import EngineStats
from tenora_engine.private_folders import make_private
from tenora_platform.operations.engine_metrics import EngineCollector
from tenora_platform.operations.process_metrics import ProcessCollector
from tenora_platform.processes.presence import Presence
from tenora_platform.reconciliation.told import Told
from tenora_platform.registry.store_told import StoreTold

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """What is counted. Labels are bounded: routes by their pattern, tenants by their ids as far as
    the engine tells them apart, never a tenant's own names. With a `folder` (see `share_metrics`)
    all processes that share it show what they have counted together."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.last_engine: EngineStats | None = None  # what it last said, with its tenants
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
            "Requests refused by a rate limit",
            ["limit", "of"],
            registry=self.registry,
        )
        self.sign_in_failures = Counter(
            "tenora_sign_in_failures",
            "Attempts to sign in that failed, by the code of their error",
            ["reason"],
            registry=self.registry,
        )
        self.wrong_keys = Counter(
            "tenora_wrong_keys",
            "Requests with a key that is none, or none any more, by the code of their error",
            ["reason"],
            registry=self.registry,
        )
        self.limits_local = Gauge(
            "tenora_limits_local",
            "1 while a process checks rate limits without Redis",
            multiprocess_mode="max",
            registry=self.registry,
        )
        self.limits_unwritten = Gauge(
            "tenora_limits_unwritten",
            "Reservations and settlements not yet sent to Redis",
            multiprocess_mode="sum",
            registry=self.registry,
        )
        self.budget_settles_queued = Gauge(
            "tenora_budget_settles_queued",
            "Requests whose cost has not yet been sent to Redis",
            multiprocess_mode="sum",
            registry=self.registry,
        )
        self.budget_local_checks = Counter(
            "tenora_budget_local_checks",
            "Budget checks that this process did on its own, without Redis",
            ["outcome"],
            registry=self.registry,
        )
        self.usage_months = Gauge(
            "tenora_usage_months",
            "Monthly partitions of usage events in the database",
            multiprocess_mode="mostrecent",
            registry=self.registry,
        )
        self.usage_strays = Gauge(
            "tenora_usage_strays",
            "Usage events of distant months, because a clock was far ahead",
            multiprocess_mode="mostrecent",
            registry=self.registry,
        )
        self.usage_upkeep_failures = Counter(
            "tenora_usage_upkeep_failures",
            "Failures to create or archive monthly partitions of usage",
            ["reason"],
            registry=self.registry,
        )
        self.budget_corrections = Counter(
            "tenora_budget_corrections",
            "Budget counters that differed from the books and were corrected",
            ["way"],
            registry=self.registry,
        )
        self.contents_lost = Counter(
            "tenora_contents_lost",
            "Requests whose contents should have been kept but were not",
            ["reason"],
            registry=self.registry,
        )
        self.responses_not_stored = Counter(
            "tenora_responses_not_stored",
            "Responses that should have been stored but were not, as their clients were told",
            ["reason"],
            registry=self.registry,
        )
        self.rejected_calls_lost = Counter(
            "tenora_rejected_calls_lost",
            "Calls that were answered with an error and are not in the list of rejected calls",
            ["reason"],
            registry=self.registry,
        )
        self.jobs_parked = Counter(
            "tenora_jobs_parked",
            "Jobs that failed by what is in them and are not tried again",
            ["kind"],
            registry=self.registry,
        )
        self.usage_copies = Counter(
            "tenora_usage_copies",
            "Copies of usage records that were stored because the engine's own was missing, "
            "or given up",
            ["outcome"],
            registry=self.registry,
        )
        self.redis_rejected = Counter(
            "tenora_redis_rejected",
            "Values found in Redis that this installation did not write there, by their kind",
            ["kind"],
            registry=self.registry,
        )
        self.invoices = Counter(
            "tenora_invoices",
            "Invoices made, including drafts made again",
            ["status"],
            registry=self.registry,
        )
        self.webhook_attempts = Counter(
            "tenora_webhook_attempts",
            "Attempts to deliver an event to an endpoint",
            ["outcome"],
            registry=self.registry,
        )
        self.rollouts = Counter(
            "tenora_rollouts",
            "Staged rollouts that advanced, completed or were rolled back automatically",
            ["what"],
            registry=self.registry,
        )
        self.live_streams = Gauge(
            "tenora_live_streams",
            "Open streams of live updates",
            multiprocess_mode="sum",
            registry=self.registry,
        )
        self.shadow_requests = Counter(
            "tenora_shadow_requests",
            "Copies of requests sent to another version of their adapter (shadow traffic)",
            ["outcome"],
            registry=self.registry,
        )
        self._engine = EngineCollector()
        self._processes = ProcessCollector()
        for collector in (self._engine, self._processes):
            self.registry.register(collector)

    def record_request(self, method: str, route: str, status: int, elapsed_s: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(elapsed_s)

    def show_processes(
        self, presence: Presence, unbilled: Callable[[], tuple[int, int] | None]
    ) -> None:
        """And what their workers have counted: events without a price, dead letters."""
        self._processes.presence = presence
        self._processes.unbilled = unbilled

    def show_proof(self, told: Callable[[], Told | None]) -> None:
        """And what they found when they compared the books."""
        self._processes.proof = told

    def show_store(self, told: Callable[[], StoreTold | None]) -> None:
        """And whether the object store is the database's."""
        self._processes.store = told

    def record_engine(
        self, stats: EngineStats | None, *, refuses: bool = False, answers: bool = True
    ) -> None:
        """Take over the engine's own numbers; None says that it does not serve. They are older
        ones where it did not answer."""
        self._engine.stats, self._engine.refuses = stats, refuses
        self._engine.answers = answers and stats is not None

    def text(self, *, hosts: bool = True) -> bytes:
        """The exposition format, version 0.0.4; without `hosts` no machine is named."""
        self._processes.hosts = hosts
        if self._folder is None:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._folder))  # type: ignore[no-untyped-call]
        for collector in (self._engine, self._processes):
            registry.register(collector)
        return generate_latest(registry)


def share_metrics(folder: Path, name: str) -> None:
    """From here on this process counts in files of `folder` under `name`. A process that follows
    one of the same name goes on where it stopped, so that no counter falls and no file is left,
    but with its own levels; two that run at once must have two names. Call it before any Metrics
    is made."""
    make_private(folder)
    for levels in folder.glob(f"gauge_*_{name}.db"):
        levels.unlink()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]
