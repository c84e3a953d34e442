"""Prometheus metrics of one platform process, in a registry of its own (no globals)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tenora_engine.events import EngineStats

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """What is counted. Labels are bounded: routes by their pattern, never a tenant's own names."""

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
            ["limit"],
            registry=self.registry,
        )
        self._engine_ready = self._gauge("tenora_engine_ready", "1 while the engine serves")
        self._running = self._gauge("tenora_engine_running", "Sequences in the batch")
        self._waiting = self._gauge("tenora_engine_waiting", "Sequences in the queue")
        self._step_ms = self._gauge("tenora_engine_last_step_ms", "Length of the last step")
        self._memory = self._gauge("tenora_engine_resident_bytes", "Memory of the engine process")
        self._page_bytes = self._gauge("tenora_pool_page_bytes", "Size of one page")
        self._pages = Gauge(
            "tenora_pool_pages", "Pages of the arena by use", ["kind"], registry=self.registry
        )
        self._counters: dict[str, Gauge] = {}

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def record_request(self, method: str, route: str, status: int, elapsed_s: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(elapsed_s)

    def record_engine(self, stats: EngineStats | None) -> None:
        """Take over the engine's own numbers; None says that it does not serve."""
        self._engine_ready.set(0 if stats is None else 1)
        if stats is None:
            return
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._step_ms.set(stats.last_step_ms)
        self._memory.set(stats.resident_bytes)
        pool = stats.pool
        self._page_bytes.set(pool.page_bytes)
        for kind, pages in (
            ("free", pool.free_pages),
            ("live_kv", pool.live_kv_pages),
            ("cached_kv", pool.cached_kv_pages),
            ("adapter", pool.adapter_pages),
        ):
            self._pages.labels(kind).set(pages)
        for name, value in stats.counters.items():
            gauge = self._counters.get(name)
            if gauge is None:
                gauge = self._gauge(f"tenora_engine_{name}_total", f"Engine counter {name}")
                self._counters[name] = gauge
            gauge.set(value)

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self.registry)
