"""Telemetry: what the engine counts by class and tenant is what a recount of its events gives; it
never falls, and knows no more tenants than it may."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from tenora_engine.adapters.loader import LoadResult
from tenora_engine.errors import DeadlineError, QueueFullError
from tenora_engine.events import Event, FinishEvent, RefusedEvent, Residency, UsageRecord
from tenora_engine.request import GenerationRequest, Tenant
from tenora_engine.scheduling.arrival_queue import ArrivalQueue
from tenora_engine.scheduling.class_queue import service_class
from tenora_engine.sequence import Sequence
from tenora_engine.telemetry import (
    BOUNDS_S,
    OTHER,
    Histogram,
    QueueStats,
    ServiceMeter,
    Telemetry,
    TelemetryStats,
)

TENANTS = [
    make_tenant("plain"),
    make_tenant("quick", tier="priority", ttft_ms=400.0, tpot_ms=120.0),
    make_tenant("refuse", tier="priority", ttft_ms=900.0, late="refuse"),
    make_tenant("relegate", ttft_ms=600.0, late="relegate"),
    make_tenant("flex", tier="flex", tpot_ms=101.0),
    make_tenant("odd", tier="no class is called so", weight=2.0),
]
REFS = [make_ref(f"a{number}", 5) for number in range(5)]


def rig_of(metrics_tenants: int = 100, instant: bool = True, **config: int) -> Rig:
    made = make_config(**config)  # type: ignore[arg-type]
    engine = msgspec.structs.replace(made.engine, metrics_tenants=metrics_tenants)
    return Rig.build(msgspec.structs.replace(made, engine=engine), instant=instant)


def telemetry_of(rig: Rig) -> TelemetryStats:
    return rig.engine.stats().telemetry


def meter_of(rig: Rig, tenant: str, name: str = "default") -> ServiceMeter:
    (meter,) = [
        meter
        for meter in telemetry_of(rig).meters
        if (meter.service_class, meter.tenant) == (name, tenant)
    ]
    return meter


def run(rig: Rig, seconds: float = 0.1) -> list[Event]:
    events: list[Event] = []
    while rig.engine.has_work:
        rig.now_s += seconds
        events += rig.engine.step()
    return events


def histogram_of(values: list[float]) -> list[int]:
    bounds = [0.0, *BOUNDS_S, float("inf")]
    return [
        sum(low < value <= high or (value == low == 0.0) for value in values)
        for low, high in pairwise(bounds)
    ]


@given(st.lists(st.one_of(st.sampled_from(BOUNDS_S), st.floats(0.0, 200.0))))
def test_a_histogram_counts_by_its_bounds(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert histogram.counts == histogram_of(values)
    assert histogram.sum_s == pytest.approx(sum(values))


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    histogram = Histogram()
    histogram.observe(-5.0)
    assert (histogram.counts[0], histogram.sum_s) == (1, 0.0)


def test_just_in_time_is_in_time() -> None:
    meter = ServiceMeter()
    for seconds in (0.5, 0.6):
        meter.first_token(seconds, 0.5)
        meter.last_token(seconds, 0.5)
    assert (meter.ttft_promised, meter.ttft_met) == (2, 1)
    assert (meter.tpot_promised, meter.tpot_met) == (2, 1)


@dataclass
class Recount:
    """What one meter should say, from the records of its sequences."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    ttft_targets: list[bool] = field(default_factory=list)  # met or not
    tpot_targets: list[bool] = field(default_factory=list)
    finished: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    adapter_starts: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    adapter_load_s: float = 0.0

    def add(self, usage: UsageRecord, tenant: Tenant, started: bool) -> None:
        first_s, generated = usage.first_token_s, usage.output_tokens
        self.finished[usage.finish_reason] += 1
        if first_s is not None:
            self.ttft.append(first_s - usage.arrival_s)
            if tenant.ttft_ms is not None:
                self.ttft_targets.append(self.ttft[-1] <= tenant.ttft_ms / 1000)
            if generated > 1:
                self.tpot.append((usage.finished_s - first_s) / (generated - 1))
                if tenant.tpot_ms is not None:
                    self.tpot_targets.append(self.tpot[-1] <= tenant.tpot_ms / 1000)
        elif tenant.ttft_ms is not None:
            is_late = usage.finished_s - usage.arrival_s > tenant.ttft_ms / 1000
            if usage.finish_reason != "abort" or is_late:
                self.ttft_targets.append(False)
        if usage.residency is not None and started:
            self.adapter_starts[usage.residency] += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.output_tokens += generated
        self.adapter_load_s += usage.adapter_load_ms / 1000

    def check(self, meter: ServiceMeter) -> None:
        assert meter.ttft.counts == histogram_of(self.ttft)
        assert meter.tpot.counts == histogram_of(self.tpot)
        assert meter.ttft.sum_s == pytest.approx(sum(self.ttft))
        assert meter.tpot.sum_s == pytest.approx(sum(self.tpot))
        ttft, tpot = self.ttft_targets, self.tpot_targets
        assert (meter.ttft_promised, meter.ttft_met) == (len(ttft), sum(ttft))
        assert (meter.tpot_promised, meter.tpot_met) == (len(tpot), sum(tpot))
        assert meter.finished == self.finished
        assert meter.refused == self.refused
        assert meter.adapter_starts == self.adapter_starts
        assert meter.adapter_load_s == pytest.approx(self.adapter_load_s)
        assert meter.prompt_tokens == self.prompt_tokens
        assert meter.cached_tokens == self.cached_tokens
        assert meter.output_tokens == self.output_tokens


def numbers_of(meter: ServiceMeter) -> Iterator[tuple[str, float]]:
    """Everything in a meter that may only rise, by a name of its own."""
    for name, value in msgspec.structs.asdict(meter).items():
        if isinstance(value, Histogram):
            yield f"{name} sum", value.sum_s
            yield from ((f"{name} {place}", count) for place, count in enumerate(value.counts))
        elif isinstance(value, dict):
            yield from ((f"{name} {key}", count) for key, count in value.items())
        elif not isinstance(value, str):
            yield name, value


class Day:
    """Random requests, aborts and steps of all tenants on one engine in little memory."""

    def __init__(self, seed: int, metrics_tenants: int) -> None:
        self.draw = random.Random(seed)
        self.rig = rig_of(metrics_tenants, num_pages=16, max_waiting=9, max_tenant_waiting=6)
        self.bound = metrics_tenants
        self.requests: dict[str, GenerationRequest] = {}
        self.labels: list[str] = []
        self.recounts: defaultdict[tuple[str, str], Recount] = defaultdict(Recount)
        self.seen: dict[tuple[str, str, str], float] = {}

    def live(self, actions: int) -> None:
        for _ in range(actions):
            action = self.draw.choice((self.submit, self.submit, self.step, self.step, self.abort))
            action()
            self.rig.now_s += self.draw.choice((0.0, 0.03, 0.1, 0.25))
            self.check_bounds()
        while self.rig.engine.has_work:
            self.rig.now_s += 0.1
            self.step()

    def submit(self) -> None:
        tenant = self.draw.choice(TENANTS)
        if tenant.key not in self.labels and len(self.labels) < self.bound:
            self.labels.append(tenant.key)
        number = len(self.requests)
        request = make_request(
            f"r{number}",
            [tenant.key.encode()[0] % 90] * self.draw.randrange(1, 24),
            tenant=tenant,
            adapter=self.draw.choice([None, *REFS]),
            max_tokens=self.draw.randrange(1, 10),
            n=self.draw.choice((1, 1, 2)),
            arrival_s=self.rig.now_s,
        )
        try:
            self.rig.engine.submit(request)
        except QueueFullError as error:
            reason = "deadline" if isinstance(error, DeadlineError) else "queue_full"
            self.recount(tenant).refused[reason] += 1
        else:
            self.requests[request.request_id] = request

    def step(self) -> None:
        for event in self.rig.engine.step():
            if isinstance(event, FinishEvent):
                tenant = self.requests[event.request_id].tenant
                started = f"{event.request_id}:{event.index}" in self.started
                self.recount(tenant).add(event.usage, tenant, started)
            elif isinstance(event, RefusedEvent):
                request = self.requests[event.request_id]
                recount = self.recount(request.tenant)
                recount.refused["deadline"] += 1
                recount.ttft_targets += [False] * request.sampling.n

    @property
    def started(self) -> set[str]:
        return {
            f"{item.sequence.request.request_id}:{item.sequence.index}"
            for plan in self.rig.executor.plans
            for item in plan.scheduled
        }

    def abort(self) -> None:
        if self.requests:
            self.rig.engine.abort(self.draw.choice(list(self.requests)))

    def recount(self, tenant: Tenant) -> Recount:
        label = tenant.key if tenant.key in self.labels else OTHER
        return self.recounts[service_class(tenant.tier), label]

    def check_bounds(self) -> None:
        stats = telemetry_of(self.rig)
        allowed = {*self.labels, OTHER}
        assert len(self.labels) <= self.bound
        assert {meter.tenant for meter in stats.meters} <= allowed
        assert {queue.tenant for queue in stats.queues} <= allowed
        for meter in stats.meters:
            for name, number in numbers_of(meter):
                key = meter.service_class, meter.tenant, name
                assert number >= self.seen.get(key, 0.0), key
                self.seen[key] = number


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), metrics_tenants=st.sampled_from((0, 1, 3, 100)))
def test_meters_are_what_a_recount_of_the_events_gives(seed: int, metrics_tenants: int) -> None:
    day = Day(seed, metrics_tenants)
    day.live(150)
    stats = day.rig.engine.stats()
    meters = {(m.service_class, m.tenant): m for m in stats.telemetry.meters}
    assert {key for key, recount in day.recounts.items() if recount != Recount()} <= set(meters)
    for key, meter in meters.items():
        day.recounts[key].check(meter)
    for name in (
        "output_tokens",
        "preemptions",
        "relegations",
        "kv_evictions",
        "adapter_evictions",
    ):
        assert stats.counters[name] == sum(getattr(meter, name) for meter in meters.values())
    assert sum(sum(meter.queue.counts) for meter in meters.values()) == len(day.started)


def test_a_first_token_is_counted_when_it_comes_and_the_rest_at_the_end() -> None:
    rig = rig_of()
    tenant = make_tenant("t", ttft_ms=150.0, tpot_ms=50.0)
    rig.engine.submit(make_request("r", [1], tenant=tenant, max_tokens=4, ignore_eos=True))
    rig.now_s += 0.1
    rig.engine.step()
    meter = meter_of(rig, "t")
    assert (meter.ttft_promised, meter.ttft_met, sum(meter.tpot.counts)) == (1, 1, 0)
    assert meter.finished == {}
    run(rig)
    meter = meter_of(rig, "t")
    assert meter.output_tokens == 4
    assert (meter.tpot_promised, meter.tpot_met) == (1, 0)
    assert meter.tpot.sum_s == pytest.approx(0.1)
    assert meter.finished == {"length": 1}


@pytest.mark.parametrize(("waited_s", "promised"), [(0.1, 0), (0.3, 1)])
def test_who_leaves_in_time_says_nothing_about_the_target(waited_s: float, promised: int) -> None:
    rig = rig_of()
    rig.engine.submit(make_request("r", [1], tenant=make_tenant("t", ttft_ms=200.0)))
    rig.now_s += waited_s
    rig.engine.abort("r")
    meter = meter_of(rig, "t")
    assert (meter.ttft_promised, meter.ttft_met) == (promised, 0)


def test_a_relegated_sequence_is_late_in_the_class_that_promised() -> None:
    rig = rig_of(instant=False)
    late = make_tenant("late", tier="priority", ttft_ms=100.0, late="relegate")
    rig.engine._scheduler.gate.feasibility.observe_drain(1e6, 1.0)
    rig.memory.costs.observe_load(10**6, 1e-3)
    rig.engine.submit(make_request("late", [2] * 4, tenant=late, adapter=REFS[0]))
    rig.now_s += 1.0
    rig.engine.step()
    assert [(q.service_class, q.tenant) for q in telemetry_of(rig).queues] == [("flex", "late")]
    rig.loader.finish(REFS[0].digest)
    run(rig)
    meter = meter_of(rig, "late", "priority")
    assert (meter.relegations, meter.ttft_promised, meter.ttft_met) == (1, 1, 0)


def test_queues_by_class_and_tenant_and_the_oldest_of_each() -> None:
    rig = rig_of(metrics_tenants=1, max_running=1)
    rig.engine.submit(make_request("first", [1] * 4, ignore_eos=True))
    rig.engine.step()
    for number, tenant in enumerate(("t0", "a", "b")):
        for copy in range(2):
            request = make_request(f"{tenant}{copy}", [2] * 4, tenant=make_tenant(tenant))
            rig.engine.submit(request)
            rig.now_s += 1.0 + number
    stats = telemetry_of(rig)
    assert {queue.tenant: queue for queue in stats.queues} == {
        "t0": QueueStats("default", "t0", 2, 12.0),
        OTHER: QueueStats("default", OTHER, 4, 10.0),
    }
    run(rig)
    assert telemetry_of(rig).queues == []


def test_queues_in_order_of_arrival_are_told_apart_as_well() -> None:
    queue = ArrivalQueue()
    for number, tenant in enumerate((make_tenant("a"), make_tenant("b"), make_tenant("a"))):
        request = make_request(f"r{number}", [1], tenant=tenant)
        queue.push(Sequence(request, 0, [1], 1), now_s=1000.0 + number)
    telemetry = Telemetry(max_tenants=1)
    telemetry.meter("default", "a")
    stats = telemetry.snapshot(queue.stats(1005.0), queue.service_gaps())
    assert stats.queues == [
        QueueStats("default", "a", 2, 5.0),
        QueueStats("default", OTHER, 1, 4.0),
    ]
    assert stats.service_gaps == {}


def test_the_service_gap_is_that_of_tenants_who_wait() -> None:
    rig = rig_of(max_running=1)
    tenants = [make_tenant("light"), make_tenant("heavy", weight=4.0)]
    for number in range(6):
        for tenant in tenants:
            request = make_request(f"{tenant.key}{number}", [1] * 12, tenant=tenant, max_tokens=2)
            rig.engine.submit(request)
    widest = 0.0
    while rig.engine.has_work:
        rig.now_s += 0.1
        rig.engine.step()
        queue = rig.engine._scheduler.queue
        counters = [queue.counter(key, "default") for key in queue.waiting_by_tenant()]
        expected = max(counters) - min(counters) if counters else 0.0
        gap = telemetry_of(rig).service_gaps["default"]
        assert gap == expected
        widest = max(widest, gap)
    assert widest > 0
    light, heavy = meter_of(rig, "light"), meter_of(rig, "heavy")
    counter = rig.engine._scheduler.queue.counter
    assert light.service == pytest.approx(counter("light", "default"))
    assert heavy.service == pytest.approx(
        4 * rig.engine._scheduler.queue.counter("heavy", "default")
    )


def test_evictions_belong_to_who_used_the_pages_last() -> None:
    rig = rig_of(num_pages=8, max_adapters=1)
    victim, other = make_tenant("victim"), make_tenant("other tenant")
    rig.engine.submit(make_request("v", [1] * 12, tenant=victim, adapter=REFS[0], max_tokens=2))
    run(rig)
    rig.engine.submit(make_request("o", [2] * 24, tenant=other, adapter=REFS[1], max_tokens=2))
    run(rig)
    lost, kept = meter_of(rig, "victim"), meter_of(rig, "other tenant")
    assert (lost.kv_evictions > 0, lost.adapter_evictions) == (True, 1)
    assert (kept.kv_evictions, kept.adapter_evictions) == (0, 0)
    counters = rig.engine.stats().counters
    assert counters["kv_evictions"] == lost.kv_evictions


def test_a_preemption_belongs_to_who_was_preempted() -> None:
    rig = rig_of(num_pages=10, max_step_tokens=32, max_prefill_chunk=32, context_tokens=40)
    keen, patient = make_tenant("keen", tier="priority"), make_tenant("patient", tier="flex")
    for tenant in (keen, patient):
        rig.engine.submit(
            make_request(tenant.key, [3] * 16, tenant=tenant, max_tokens=14, ignore_eos=True)
        )
    run(rig)
    assert meter_of(rig, "patient", "flex").preemptions >= 1
    assert meter_of(rig, "keen", "priority").preemptions == 0


def test_adapter_loads_are_timed_by_the_tier_they_came_from_and_waits_apart() -> None:
    rig = rig_of()
    tiers: Iterator[Residency] = iter(("store", "host", "shared"))
    take = rig.loader.take_completed

    def from_tiers() -> list[LoadResult]:
        return [
            LoadResult(done.ref, done.packed, done.error, next(tiers), 30.0, wait_ms=60_000.0)
            for done in take()
        ]

    rig.loader.take_completed = from_tiers  # type: ignore[method-assign]
    for number, ref in enumerate(REFS[:3]):
        rig.engine.submit(make_request(f"r{number}", [1], adapter=ref))
        run(rig)
    loads = telemetry_of(rig).adapter_loads
    assert set(loads) == {"store", "host", "shared"}
    for histogram in loads.values():
        assert histogram.counts == histogram_of([0.03])
        assert histogram.sum_s == pytest.approx(0.03)
    assert meter_of(rig, "t0").adapter_load_s == pytest.approx(0.09)
    waits = telemetry_of(rig).adapter_load_waits
    assert {tier: times.sum_s for tier, times in waits.items()} == dict.fromkeys(loads, 60.0)


def test_a_snapshot_stays_as_it_was() -> None:
    rig = rig_of()
    rig.engine.submit(make_request("r", [1], adapter=REFS[0], max_tokens=3))
    rig.engine.step()
    before = telemetry_of(rig)
    kept = msgspec.msgpack.encode(before)
    run(rig)
    assert msgspec.msgpack.encode(before) == kept
    assert msgspec.msgpack.decode(kept, type=TelemetryStats) == before


def test_a_tenant_called_like_the_rest_is_counted_with_it() -> None:
    telemetry = Telemetry(max_tenants=1)
    assert telemetry.meter("default", OTHER) is telemetry.meter("default", OTHER)
    assert telemetry.meter("default", "t").tenant == "t"
    assert telemetry.meter("default", "late").tenant == OTHER
    assert telemetry.meter("flex", "t").tenant == "t", "a label is a tenant's in all classes"
    assert len(telemetry.snapshot([], {}).meters) == 3
