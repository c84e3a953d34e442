"""The engine's snapshot as metric families: what is counted in another process is read here as it
stands, never added up. docs/metrics.md says what each of them means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tenora_engine.events import EngineStats
from tenora_engine.telemetry import BOUNDS_S, Histogram, ServiceMeter, TelemetryStats

_SERVICE = ("class", "tenant")
_BOUNDS = [*map(str, BOUNDS_S), "+Inf"]

_TIERS = {"resident": "device", "loading": "loading", "host": "host"}
_HISTOGRAMS = {
    "ttft": ("tenora_ttft_seconds", "Time from arrival to the first token of a sequence"),
    "tpot": ("tenora_tpot_seconds", "Mean time between the tokens of a finished sequence"),
    "queue": ("tenora_queue_seconds", "Time from arrival to the first step of a sequence"),
}
_COUNTERS = {
    "prompt_tokens": ("tenora_prompt_tokens", "Prompt tokens of sequences that started"),
    "cached_tokens": ("tenora_cached_tokens", "Prompt tokens found in the prefix cache"),
    "output_tokens": ("tenora_output_tokens", "Tokens generated"),
    "preemptions": (
        "tenora_preemptions",
        "Running sequences that were preempted because pages ran out",
    ),
    "relegations": ("tenora_relegations", "Waiting sequences that were moved to the lowest class"),
    "service": ("tenora_service_tokens", "Service charged, in prefilled tokens of the base model"),
    "adapter_load_s": (
        "tenora_adapter_wait_seconds",
        "Time that sequences waited for adapter loads",
    ),
}
_COUNTERS_BY_LABEL = {
    "finished": ("tenora_sequences_finished", "Sequences that ended", "reason"),
    "refused": ("tenora_requests_refused", "Requests that the engine refused", "reason"),
    "adapter_starts": (
        "tenora_adapter_starts",
        "Sequences started, by where the adapter was when the request arrived",
        "residency",
    ),
    "drafts_accepted": (
        "tenora_draft_tokens_accepted",
        "Draft tokens that were accepted (speculative decoding)",
        "source",
    ),
    "drafts_rejected": (
        "tenora_draft_tokens_rejected",
        "Draft tokens that were verified and rejected (speculative decoding)",
        "source",
    ),
}

ENGINE_COUNTERS = {
    "steps": "Steps that the engine has run",
    "step_failures": "Steps that failed",
    "express_steps": "Prefill steps of tenants within their share that ran before a larger step, "
    "or between its layers",
    "walks_cut": "Steps that started with part of the queue not looked at, because it was too long "
    "to be searched within one step",
    "places_given_up": "Running sequences preempted to give their place to another tenant",
    "output_tokens": "Tokens generated",
    "prompt_tokens": "Prompt tokens of sequences that started",
    "cached_tokens": "Prompt tokens found in the prefix cache",
    "preemptions": "Running sequences that were preempted",
    "relegations": "Waiting sequences that were moved to the lowest class",
    "requests_finished": "Requests that ended",
    "requests_aborted": "Requests that ended because they were aborted",
    "requests_refused": "Requests refused because their first token would have been too late",
    "drafts_accepted": "Draft tokens that were accepted (speculative decoding)",
    "drafts_rejected": "Draft tokens that were verified and rejected (speculative decoding)",
    "draft_layer_bytes": "Memory of the draft layers of adapters",
    "draft_layer_loads": "Draft layers loaded for adapters",
    "draft_layer_failures": "Draft layers that could not be loaded",
    "draft_layer_evictions": "Draft layers evicted from memory",
    "adapter_loads": "Adapters loaded to the device",
    "adapter_evictions": "Adapters evicted from the device",
    "adapter_copies": "Adapters copied to the device beside the steps",
    "adapter_copies_cancelled": "Copies of adapters to the device that were cancelled",
    "kv_evictions": "KV pages evicted from the device",
    "kv_fetches": "Fetches of cached KV from host memory",
    "kv_fetches_cancelled": "Fetches of cached KV that were cancelled",
    "kv_pages_fetched": "KV pages fetched from host memory",
    "host_kv_bytes": "Host memory that holds evicted KV",
    "host_kv_writes": "KV pages copied to host memory",
    "host_kv_evictions": "KV pages evicted from host memory",
    "loader_host_hits": "Adapter loads that found the adapter in host memory",
    "loader_host_evictions": "Adapters evicted from host memory",
    "loader_host_bytes": "Host memory that holds adapters",
    "loader_warmed": "Adapters loaded into host memory at the start",
    "loader_shared_hits": "Adapter loads that found the adapter in Redis",
    "loader_shared_misses": "Adapter loads that did not find the adapter in Redis",
    "loader_shared_errors": "Adapter loads for which Redis did not answer",
    "loader_shared_loads": "Adapter loads from Redis",
    "loader_shared_corrupt": "Adapters in Redis that could not be read",
    "loader_shared_stores": "Adapters stored in Redis",
    "loader_shared_too_large": "Adapters too large to be stored in Redis",
    "loader_store_loads": "Adapter loads from the object store",
    "loader_load_errors": "Adapter loads that failed",
    "loader_cancelled": "Adapter loads that were cancelled",
    "grammars_compiled": "Grammars compiled for constrained answers",
    "grammars_refused": "Grammars that were refused or failed to compile",
}
"""Of the engine's counters over all tenants; one that is not here is named by itself."""


class EngineCollector(Collector):
    """Gives what `stats` says at the moment; without it only that the engine does not serve."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None
        self.refuses = False
        self.answers = False

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        ready = 0 if stats is None else 1
        yield GaugeMetricFamily("tenora_engine_ready", "1 while the engine serves", ready)
        text = "1 while the engine accepts no new requests, because it cannot record usage"
        yield GaugeMetricFamily("tenora_engine_refuses", text, int(self.refuses))
        text = "1 if the engine answered this scrape; else its other metrics are of an earlier one"
        yield GaugeMetricFamily("tenora_engine_answers", text, int(self.answers))
        if stats is None:
            return
        yield from _engine(stats)
        yield from _served(stats.telemetry.meters)
        yield from _queues(stats.telemetry)
        yield from _loads(stats.telemetry.adapter_loads, stats.telemetry.adapter_load_waits)


def _engine(stats: EngineStats) -> Iterator[Metric]:
    pool = stats.pool
    for name, text, value in (
        ("tenora_engine_running", "Sequences in the running batch", stats.running),
        ("tenora_engine_waiting", "Sequences in the queue", stats.waiting),
        ("tenora_engine_last_step_ms", "Duration of the last step", stats.last_step_ms),
        (
            "tenora_engine_resident_bytes",
            "Resident memory of the engine process",
            stats.resident_bytes,
        ),
        ("tenora_pool_page_bytes", "Size of one page", pool.page_bytes),
    ):
        yield GaugeMetricFamily(name, text, value)
    pages = GaugeMetricFamily("tenora_pool_pages", "Pages of the arena by kind", labels=["kind"])
    pages.add_metric(["free"], pool.free_pages)
    pages.add_metric(["live_kv"], pool.live_kv_pages)
    pages.add_metric(["cached_kv"], pool.cached_kv_pages)
    pages.add_metric(["adapter"], pool.adapter_pages)
    yield pages
    tiers = Counter(_TIERS[adapter.state] for adapter in stats.adapters)
    adapters = GaugeMetricFamily("tenora_adapters", "Adapters by tier", labels=["tier"])
    for tier in _TIERS.values():
        adapters.add_metric([tier], tiers[tier])
    yield adapters
    for name, value in stats.counters.items():
        is_level = name.endswith("_bytes")  # what a tier holds now
        family = GaugeMetricFamily if is_level else CounterMetricFamily
        yield family(
            f"tenora_engine_{name}", ENGINE_COUNTERS.get(name, name.replace("_", " ")), value
        )


def _served(meters: list[ServiceMeter]) -> Iterator[Metric]:
    for attribute, (name, text) in _HISTOGRAMS.items():
        histogram = HistogramMetricFamily(name, text, labels=_SERVICE)
        for meter in meters:
            _add(histogram, _labels(meter), getattr(meter, attribute))
        yield histogram
    for attribute, (name, text) in _COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=_SERVICE)
        for meter in meters:
            counter.add_metric(_labels(meter), getattr(meter, attribute))
        yield counter
    for attribute, (name, text, label) in _COUNTERS_BY_LABEL.items():
        counter = CounterMetricFamily(name, text, labels=(*_SERVICE, label))
        for meter in meters:
            for value, count in getattr(meter, attribute).items():
                counter.add_metric([*_labels(meter), value], count)
        yield counter
    yield from _targets(meters)
    evictions = CounterMetricFamily(
        "tenora_evictions",
        "KV pages and adapters evicted from the device, by who used them last",
        labels=(*_SERVICE, "kind"),
    )
    for meter in meters:
        evictions.add_metric([*_labels(meter), "kv"], meter.kv_evictions)
        evictions.add_metric([*_labels(meter), "adapter"], meter.adapter_evictions)
    yield evictions


def _targets(meters: list[ServiceMeter]) -> Iterator[Metric]:
    labels = (*_SERVICE, "target")
    promised = CounterMetricFamily(
        "tenora_slo_promised", "Sequences of plans that have a target", labels=labels
    )
    met = CounterMetricFamily(
        "tenora_slo_met", "Sequences of plans that have a target, and that met it", labels=labels
    )
    for meter in meters:
        promised.add_metric([*_labels(meter), "ttft"], meter.ttft_promised)
        promised.add_metric([*_labels(meter), "tpot"], meter.tpot_promised)
        met.add_metric([*_labels(meter), "ttft"], meter.ttft_met)
        met.add_metric([*_labels(meter), "tpot"], meter.tpot_met)
    return iter((promised, met))


def _queues(telemetry: TelemetryStats) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("tenora_queue_waiting", "Sequences that wait", labels=_SERVICE)
    oldest = GaugeMetricFamily(
        "tenora_queue_oldest_seconds",
        "Time that the oldest waiting sequence has waited",
        labels=_SERVICE,
    )
    for queue in telemetry.queues:
        waiting.add_metric([queue.service_class, queue.tenant], queue.waiting)
        oldest.add_metric([queue.service_class, queue.tenant], queue.oldest_wait_s)
    gaps = GaugeMetricFamily(
        "tenora_service_gap_tokens",
        "Largest difference of service divided by weight between waiting tenants",
        labels=["class"],
    )
    for name, gap in telemetry.service_gaps.items():
        gaps.add_metric([name], gap)
    return iter((waiting, oldest, gaps))


def _loads(loads: dict[str, Histogram], waits: dict[str, Histogram]) -> Iterator[Metric]:
    for name, what, by_tier in (
        (
            "tenora_adapter_load_seconds",
            "Duration of adapter loads, without waiting, by the tier they came from",
            loads,
        ),
        (
            "tenora_adapter_load_wait_seconds",
            "Time that adapter loads waited before they started, by the tier they came from",
            waits,
        ),
    ):
        histogram = HistogramMetricFamily(name, what, labels=["tier"])
        for tier, times in by_tier.items():
            _add(histogram, [tier], times)
        yield histogram


def _labels(meter: ServiceMeter) -> list[str]:
    return [meter.service_class, meter.tenant]


def _add(family: HistogramMetricFamily, labels: Iterable[str], times: Histogram) -> None:
    buckets = list(zip(_BOUNDS, accumulate(times.counts), strict=True))
    family.add_metric(list(labels), buckets, times.sum_s)
