"""What the operator reads of the engine: /metrics in Prometheus' own terms, with as many tenants as
were asked for, and the engine view."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from api_harness import Api
from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from tenora_engine.errors import QueueFullError
from tenora_engine.events import AdapterResidency, EngineStats
from tenora_engine.scheduling.class_queue import CLASS_WEIGHTS
from tenora_engine.telemetry import BOUNDS_S, OTHER, QueueStats, ServiceMeter, TelemetryStats
from tenora_platform.operations.metrics import Metrics

DOCUMENTED = Path(__file__).parents[2] / "docs/metrics.md"
TENANTS = [
    make_tenant(f"tenant_{number}", tier=tier, ttft_ms=300.0, tpot_ms=150.0)
    for number in range(5)
    for tier in CLASS_WEIGHTS
]


def busy_engine(metrics_tenants: int, seed: int = 0) -> Iterator[EngineStats]:
    """Its statistics from step to step, and when all has ended."""
    config = make_config(num_pages=24, max_waiting=3, max_running=4)
    engine = msgspec.structs.replace(config.engine, metrics_tenants=metrics_tenants)
    rig = Rig.build(msgspec.structs.replace(config, engine=engine))
    draw = random.Random(seed)
    for number in range(120):
        request = make_request(
            f"r{number}",
            [draw.randrange(3)] * draw.randrange(1, 20),
            tenant=draw.choice(TENANTS),
            adapter=draw.choice([None, *(make_ref(f"a{n}") for n in range(6))]),
            max_tokens=draw.randrange(1, 9),
        )
        try:
            rig.engine.submit(request)
        except QueueFullError:
            rig.engine.abort(f"r{draw.randrange(number)}")
        rig.now_s += draw.random() / 5
        rig.engine.step()
        yield as_it_arrives(rig)
    while rig.engine.has_work:
        rig.engine.step()
    yield as_it_arrives(rig)


def as_it_arrives(rig: Rig) -> EngineStats:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(rig.engine.stats()), type=EngineStats)


def families(metrics: Metrics) -> dict[str, Metric]:
    parsed = list(text_string_to_metric_families(metrics.text().decode()))
    assert len({family.name for family in parsed}) == len(parsed)
    return {family.name: family for family in parsed}


def rising(shown: dict[str, Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every series of the engine that may not fall. No series is there twice."""
    series: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in shown.values():
        if family.type in ("counter", "histogram") and not family.name.startswith("tenora_http"):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in series
                series[key] = sample.value
    return series


@pytest.mark.parametrize("bound", [0, 2, 100])
def test_no_series_falls_or_goes_away_and_tenants_are_bounded(bound: int) -> None:
    metrics = Metrics()
    before: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for stats in busy_engine(bound):
        metrics.record_engine(stats)
        after = rising(families(metrics))
        assert set(before) <= set(after)
        assert all(after[key] >= value for key, value in before.items())
        before = after
    tenants = {
        sample.labels["tenant"]
        for family in families(metrics).values()
        for sample in family.samples
        if "tenant" in sample.labels
    }
    everybody = {tenant.key for tenant in TENANTS}
    assert len(tenants - {OTHER}) == min(bound, len(everybody))
    assert (OTHER in tenants) == (bound < len(everybody))


def test_classes_and_tenants_add_up_to_the_engines_own_counters() -> None:
    metrics = Metrics()
    for stats in busy_engine(3):
        metrics.record_engine(stats)
    shown = families(metrics)

    def total(name: str) -> float:
        return sum(sample.value for sample in shown[name].samples)

    for name in ("prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "relegations"):
        assert total(f"tenora_{name}") == total(f"tenora_engine_{name}")
    evicted = total("tenora_engine_kv_evictions") + total("tenora_engine_adapter_evictions")
    assert total("tenora_evictions") == evicted > 0
    assert total("tenora_requests_refused") > 0
    assert total("tenora_sequences_finished") > 0
    labels = [set(sample.labels) for sample in shown["tenora_slo_met"].samples]
    assert labels.count({"class", "tenant", "target"}) == len(labels) > 0


def test_histograms_are_cumulative_and_hold_what_the_engine_counted() -> None:
    metrics = Metrics()
    *_, stats = busy_engine(3)
    metrics.record_engine(stats)
    family = families(metrics)["tenora_ttft_seconds"]
    for meter in stats.telemetry.meters:
        own = [
            sample
            for sample in family.samples
            if (sample.labels["class"], sample.labels["tenant"])
            == (meter.service_class, meter.tenant)
        ]
        by_name = {sample.name: sample.value for sample in own}
        buckets = [sample for sample in own if sample.name.endswith("_bucket")]
        assert [float(b.labels["le"]) for b in buckets] == [*BOUNDS_S, float("inf")]
        values = [bucket.value for bucket in buckets]
        assert values == sorted(values)
        assert values[-1] == by_name["tenora_ttft_seconds_count"] == sum(meter.ttft.counts)
        assert by_name["tenora_ttft_seconds_sum"] == pytest.approx(meter.ttft.sum_s)
    for name in ("tenora_adapter_load_seconds", "tenora_adapter_load_wait_seconds"):
        loads = families(metrics)[name]
        assert {sample.labels["tier"] for sample in loads.samples} == {"store"}


def test_each_counter_of_the_engine_has_a_help_text() -> None:
    metrics = Metrics()
    *_, stats = busy_engine(3)
    metrics.record_engine(stats)
    shown = families(metrics)
    for name in stats.counters.keys() - {"loader_starts"}:  # of the loader in tests
        said = shown[f"tenora_engine_{name}"].documentation
        assert len(said.split()) >= 2, name
        assert said.lower() != name.replace("_", " "), name
    assert "not looked at" in shown["tenora_engine_walks_cut"].documentation


def test_counters_are_counters_and_levels_gauges() -> None:
    metrics = Metrics()
    *_, stats = busy_engine(3)
    counters = {**stats.counters, "loader_host_bytes": 5.0}
    metrics.record_engine(msgspec.structs.replace(stats, counters=counters))
    shown = families(metrics)
    assert shown["tenora_engine_steps"].type == "counter"
    assert shown["tenora_engine_loader_host_bytes"].type == "gauge"
    assert shown["tenora_service_gap_tokens"].type == "gauge"
    assert shown["tenora_ttft_seconds"].type == "histogram"


def test_every_adapter_is_counted_where_it_is() -> None:
    states: list[Literal["resident", "loading", "host"]] = ["resident", "host", "host", "loading"]
    *_, stats = busy_engine(metrics_tenants=8)
    stats = msgspec.structs.replace(
        stats, adapters=[AdapterResidency(str(i), s, 8, 2, 0, 0.0) for i, s in enumerate(states)]
    )
    metrics = Metrics()
    metrics.record_engine(stats)
    samples = families(metrics)["tenora_adapters"].samples
    counted = {sample.labels["tier"]: sample.value for sample in samples}
    assert counted == {"device": 1, "loading": 1, "host": 2}


def test_an_engine_that_does_not_serve_has_no_numbers() -> None:
    metrics = Metrics()
    for stats in busy_engine(3):
        metrics.record_engine(stats)
    metrics.record_engine(None)
    shown = families(metrics)
    assert [sample.value for sample in shown["tenora_engine_ready"].samples] == [0.0]
    assert not rising(shown).keys() & {("tenora_engine_steps_total", frozenset[tuple[str, str]]())}
    assert "tenora_ttft_seconds" not in shown


async def test_the_engine_view_has_classes_and_tenants(api: Api) -> None:
    tenant = await api.new_tenant("acme")
    api.engine.telemetry = TelemetryStats(
        meters=[
            ServiceMeter("priority", tenant.id, ttft_promised=4, ttft_met=3, finished={"stop": 5}),
            ServiceMeter("priority", OTHER, ttft_promised=4, ttft_met=1, finished={"abort": 2}),
            ServiceMeter("default", OTHER, tpot_promised=2, tpot_met=2),
        ],
        queues=[
            QueueStats("priority", OTHER, 2, 1.5),
            QueueStats("priority", tenant.id, 1, 4.0),
            QueueStats("flex", tenant.id, 3, 2.0),
        ],
        service_gaps={"priority": 10.0, "default": 0.0, "flex": 0.0},
    )
    (replica,) = (await api.admin("GET", "/admin/v1/engine")).json()["replicas"]
    assert replica["classes"][0] == {
        "service_class": "priority",
        "finished": 7,
        "ttft_attainment": 0.5,
        "tpot_attainment": None,
        "waiting": 3,
        "oldest_wait_s": 4.0,
        "service_gap_tokens": 10.0,
    }
    assert [view["service_class"] for view in replica["classes"]] == list(CLASS_WEIGHTS)
    assert replica["classes"][1]["oldest_wait_s"] is None
    shown = [
        (v["tenant_id"], v["name"], v["service_class"], v["ttft_attainment"], v["waiting"])
        for v in replica["tenants"]
    ]
    assert shown == [
        (tenant.id, "acme", "flex", None, 3),
        (tenant.id, "acme", "priority", 0.75, 1),
        (None, None, "default", None, 0),
        (None, None, "priority", 0.25, 2),
    ]


async def test_tenants_are_told_apart_for_the_operator_alone_and_by_id(api: Api) -> None:
    tenant = await api.new_tenant("the name is theirs")
    api.engine.telemetry = TelemetryStats(
        meters=[
            ServiceMeter("default", tenant.id, output_tokens=3, finished={"stop": 1}),
            ServiceMeter("default", OTHER, output_tokens=4, finished={"stop": 1, "abort": 2}),
        ],
        queues=[
            QueueStats("default", tenant.id, 2, 4.0),
            QueueStats("default", OTHER, 3, 1.0),
        ],
    )
    shown = (await api.admin("GET", "/metrics")).text
    assert f'tenora_output_tokens_total{{class="default",tenant="{tenant.id}"}} 3.0' in shown
    assert "theirs" not in shown
    made = await api.admin("POST", "/admin/v1/admin_keys", json={"role": "metrics"})
    scraped = (await api.call(made.json()["key"], "GET", "/metrics")).text
    assert f'tenora_output_tokens_total{{class="default",tenant="{tenant.id}"}} 3.0' in scraped
    public = (await api.http.get("/metrics")).text
    assert tenant.id not in public
    for series in (
        'tenora_output_tokens_total{class="default",tenant="other"} 7.0',
        'tenora_sequences_finished_total{class="default",reason="stop",tenant="other"} 2.0',
        'tenora_queue_waiting{class="default",tenant="other"} 5.0',
        'tenora_queue_oldest_seconds{class="default",tenant="other"} 4.0',
    ):
        assert series in public
    assert (await api.call(tenant.key, "GET", "/metrics")).status_code == 403
    assert (await api.call("tn_nobody", "GET", "/metrics")).status_code == 401


def test_every_metric_is_documented() -> None:
    metrics = Metrics()
    *_, stats = busy_engine(3)
    metrics.record_engine(stats)
    documented = set(re.findall(r"`(tenora_\w+)`", DOCUMENTED.read_text()))
    counters = {
        f"tenora_engine_{name}" if name.endswith("_bytes") else f"tenora_engine_{name}_total"
        for name in stats.counters
    }
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families(metrics).values()
    }
    assert shown - counters == documented - counters  # of those a page may speak, or not


@pytest.mark.parametrize("bound", [0, 3])
def test_without_tenants_every_sum_stays(bound: int) -> None:
    *_, stats = busy_engine(bound)
    shown, public = Metrics(), Metrics()
    shown.record_engine(stats)
    public.record_engine(
        msgspec.structs.replace(stats, telemetry=stats.telemetry.without_tenants())
    )
    apart, together = families(shown), families(public)
    assert set(apart) == set(together)
    for name, family in apart.items():
        if name != "tenora_queue_oldest_seconds":
            total = sum(sample.value for sample in family.samples)
            assert sum(sample.value for sample in together[name].samples) == pytest.approx(total)
