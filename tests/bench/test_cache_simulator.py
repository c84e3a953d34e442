"""The simulator serves or refuses each request once, hits what a plain model hits, and comes to the
same result each time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_bench.cache.load import Replays, find_peak
from tenora_bench.cache.miss_costs import least_miss_cost_s, replay_miss_cost_s
from tenora_bench.cache.report import figures
from tenora_bench.cache.simulator import (
    CLASS_TARGETS,
    Limits,
    Prompts,
    Setup,
    Simulator,
    Targets,
    simulate,
)
from tenora_bench.cache.timing import (
    StepFeatures,
    h200_llama3_8b,
    read_timing,
    write_timing,
)
from tenora_bench.cache.workloads import PREFIX_BLOCK_TOKENS, Demand, generate
from tenora_bench.client import BenchError
from tenora_bench.trace import TraceRequest
from tenora_engine.config import SchedulingPolicy
from tenora_engine.memory.policies import POLICIES, make_policy

TIMING = h200_llama3_8b()
GIB = 1024**3
ROOMY = Setup(TIMING, 400 * GIB)
TIGHT = Setup(TIMING, 2 * GIB)


def request(t_s: float = 0.0, **changes: object) -> TraceRequest:
    base = TraceRequest(t_s, "t0", "a0", 8, 100, 10, (), "interactive")
    return replace(base, **changes)  # type: ignore[arg-type]  # fields by their names


requests = st.builds(
    TraceRequest,
    t_s=st.floats(0.0, 2.0),
    tenant=st.sampled_from(["t0", "t1"]),
    adapter=st.sampled_from([None, "a0", "a1", "a2"]),
    rank=st.just(8),
    prompt_tokens=st.integers(1, 3000),
    output_tokens=st.integers(1, 40),
    prefix_blocks=st.lists(st.sampled_from("abc"), max_size=40).map(tuple),
    sla_class=st.just("interactive"),
)


def by_time(trace: list[TraceRequest]) -> list[TraceRequest]:
    return sorted(trace, key=lambda each: each.t_s)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12)
@given(trace=st.lists(requests, min_size=1, max_size=25).map(by_time))
def test_every_request_is_served_or_refused_exactly_once(
    policy: str, trace: list[TraceRequest]
) -> None:
    setup = replace(TIGHT, limits=Limits(max_waiting=12, max_running=4, max_adapters=2))
    simulator = Simulator(
        replace(setup, device_bytes=256 * TIMING.page_bytes), make_policy(policy), trace
    )
    records = simulator.run().records
    assert len(records) == len(trace)
    for record, asked in zip(records, trace, strict=True):
        assert (record.tenant, record.adapter) == (asked.tenant, asked.adapter)
        if record.error is not None:
            assert record.finished_s is None or record.output_tokens < asked.output_tokens
            continue
        assert record.prompt_tokens == asked.prompt_tokens
        assert record.output_tokens == asked.output_tokens
        assert record.first_token_s is not None
        assert record.finished_s is not None
        assert record.sent_s < record.first_token_s <= record.finished_s
    assert simulator.memory.pool.count(ord("L")) == 0


@settings(max_examples=40)
@given(st.lists(requests, min_size=1, max_size=25))
def test_an_infinite_cache_hits_what_a_set_of_blocks_says(trace: list[TraceRequest]) -> None:
    """One request after another, so that each finds all blocks of those before it."""
    apart = [replace(each, t_s=100.0 * number) for number, each in enumerate(trace)]
    replay = simulate(ROOMY, make_policy("joint"), apart)
    prompts, size = Prompts(ROOMY.prefix_block_tokens), TIMING.block_tokens
    seen: set[tuple[str, str | None, tuple[int, ...]]] = set()
    for record, asked in zip(replay.records, apart, strict=True):
        tokens = prompts.make(asked)
        ends = range(size, len(tokens) + 1, size)
        paths = [(asked.tenant, asked.adapter, tuple(tokens[:end])) for end in ends]
        usable = paths[: (len(tokens) - 1) // size]
        assert record.cached_tokens == size * sum(path in seen for path in usable)
        seen.update(paths)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_is_the_same_result_to_the_bit(policy: str) -> None:
    trace = generate("zipf-drift", Demand(requests=150, rate=20.0, adapters=30))
    first, second = (
        json.dumps(figures(simulate(TIGHT, make_policy(policy), trace), TIGHT)) for _ in range(2)
    )
    assert first == second


def test_pressure_evicts_and_costs_hits() -> None:
    trace = generate("zipf-drift", Demand(requests=150, rate=5.0, adapters=20))
    roomy, tight = (
        figures(simulate(setup, make_policy("joint"), trace), setup) for setup in (ROOMY, TIGHT)
    )
    assert roomy["kv_evictions"] + roomy["adapter_evictions"] == 0
    assert tight["kv_evictions"] + tight["adapter_evictions"] > 0
    assert tight["prefix_hit_tokens"] < roomy["prefix_hit_tokens"]
    assert tight["adapter_hit_rate"] < roomy["adapter_hit_rate"]


def test_a_lone_request_takes_what_the_timing_model_says() -> None:
    lone = request(prompt_tokens=160, output_tokens=3, rank=8)
    (record,) = simulate(ROOMY, make_policy("joint"), [lone]).records
    num_bytes = TIMING.adapter_bytes(8)
    prefill_s = TIMING.step_s(StepFeatures(160, 0, 0, 160 * 80, num_bytes))
    decode_s = [TIMING.step_s(StepFeatures(0, 1, 160 + n, 0, num_bytes)) for n in range(2)]
    assert record.ttft_ms == pytest.approx((TIMING.store.load_s(num_bytes) + prefill_s) * 1e3)
    assert record.tpot_ms == pytest.approx(sum(decode_s) / 2 * 1e3)


def test_adapters_that_host_memory_cannot_keep_are_kept_on_the_device() -> None:
    """What the device gives up would come from the object store again, which takes 30 times as long
    as host memory does."""
    trace = generate("zipf-drift", Demand(requests=150, rate=10.0, adapters=60, tenants=10))

    def store_loads(host_bytes: int, policy: str) -> float:
        setup = Setup(TIMING, 4 * GIB, limits=Limits(host_adapter_bytes=host_bytes))
        return simulate(setup, make_policy(policy), trace).counters["loader_store_loads"]

    assert store_loads(GIB // 2, "joint") < store_loads(GIB // 2, "unified-lru")
    distinct = len({each.adapter for each in trace} - {None})
    assert store_loads(64 * GIB, "joint") == distinct


def test_loads_queue_for_the_link_and_the_host_tier_keeps_them() -> None:
    """Five adapters over four lanes of the store: the last waits for a lane; then the device has no
    room for all, and the host gives back what it lost."""
    setup = replace(ROOMY, limits=Limits(max_adapters=2))
    trace = [request(adapter=f"a{number}") for number in range(5)]
    again = [request(t_s=50.0, adapter="a0")]
    replay = simulate(setup, make_policy("unified-lru"), trace + again)
    times = sorted(record.ttft_ms or 0.0 for record in replay.records[:5])
    load_ms = TIMING.store.load_s(TIMING.adapter_bytes(8)) * 1e3
    assert times[-1] > 2 * load_ms > times[0]
    assert replay.records[-1].residency == "host"
    assert replay.counters["loader_host_loads"] >= 1


def test_classes_have_targets_of_their_own() -> None:
    targets = {"interactive": Targets(0.001, 100.0), "batch": Targets(60_000.0, 1000.0)}
    trace = [request(), request(t_s=0.1, sla_class="batch", tenant="t1")]
    setup = replace(ROOMY, targets=targets)
    tenants = figures(simulate(setup, make_policy("joint"), trace), setup)["tenants"]
    assert [tenants[name]["slo_attainment"] for name in ("t0", "t1")] == [0.0, 1.0]


def test_refusals_are_counted_and_do_not_attain() -> None:
    setup = replace(ROOMY, limits=Limits(max_waiting=2))
    trace = [request(prompt_tokens=64) for _ in range(5)]
    result = figures(simulate(setup, make_policy("joint"), trace), setup)
    assert result["failed"] == 3
    assert result["slo_attainment"] == pytest.approx(2 / 5)


def test_a_device_without_a_page_is_refused() -> None:
    with pytest.raises(BenchError, match="hold no page"):
        simulate(replace(ROOMY, device_bytes=1000), make_policy("joint"), [request()])


@pytest.mark.parametrize("near", [1.0, 6.0])
@pytest.mark.parametrize("limit", [0.02, 0.3, 1.0, 7.3, 40.0])
def test_the_peak_is_found_within_its_tolerance(limit: float, near: float) -> None:
    def at(speed: float) -> dict[str, float]:
        return {"mean_ttft_ms": 500.0 * speed / limit, "failed": 0}

    found = find_peak(at, 500.0, near=near, step=1.05)
    assert found["speed"] < limit <= found["speed"] * 1.021
    speeds = [point["speed"] for point in found["points"]]
    assert speeds == sorted(set(speeds))


def test_a_peak_beyond_what_is_looked_at() -> None:
    def at(ttft_ms: float, failed: int) -> dict[str, float]:
        return {"mean_ttft_ms": ttft_ms, "failed": failed}

    assert find_peak(lambda speed: at(1.0, 0), 500.0)["speed"] == 64.0
    assert find_peak(lambda speed: at(900.0, 0), 500.0)["speed"] is None
    assert find_peak(lambda speed: at(1.0, 1), 500.0)["speed"] is None


def test_timing_models_come_back_from_their_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("timing") / "timing.json"
    write_timing(path, TIMING)
    assert read_timing(path) == TIMING
    path.write_text('{"name": "half"}')
    with pytest.raises(BenchError, match="no timing model"):
        read_timing(path)


def test_the_h200_preset_has_the_published_sizes() -> None:
    """papers.md: 2 MiB pages of 16 tokens or 12 granules; a rank-16 adapter of 84 MB in 1.7 ms."""
    assert TIMING.page_bytes == 2 * 1024**2
    assert TIMING.adapter_pages(12) == 32
    assert TIMING.adapter_bytes(16) == pytest.approx(84e6, rel=0.08)
    assert TIMING.adapter_bytes(16) / TIMING.host.bytes_per_s == pytest.approx(1.7e-3, rel=0.08)
    tokens_s = TIMING.step.prefill_token_s * 4096
    assert tokens_s == pytest.approx(0.130)


@pytest.mark.parametrize("name", ["zipf-drift", "slora", "mooncake"])
def test_no_policy_pays_less_than_the_offline_bound(name: str) -> None:
    trace = generate(name, Demand(requests=80, rate=3.0, adapters=20))
    setup = Setup(TIMING, 20 * GIB, PREFIX_BLOCK_TOKENS[name])
    least_s = least_miss_cost_s(setup, trace)
    assert least_s > 0
    for policy in POLICIES:
        replay = simulate(setup, make_policy(policy), trace)
        assert not any(record.error for record in replay.records)
        assert replay_miss_cost_s(setup, trace, replay) >= least_s * (1 - 1e-9)


def test_without_pressure_each_miss_is_paid_once() -> None:
    """Requests far apart on a device with room for all: the bound is reached."""
    trace = generate("zipf-drift", Demand(requests=60, rate=0.01, adapters=6))
    replay = simulate(ROOMY, make_policy("joint"), trace)
    paid_s = replay_miss_cost_s(ROOMY, trace, replay)
    assert paid_s == pytest.approx(least_miss_cost_s(ROOMY, trace), rel=1e-6)


def test_a_page_too_small_for_a_rank_row_is_refused() -> None:
    setup = replace(ROOMY, timing=h200_llama3_8b(block_tokens=1))
    with pytest.raises(BenchError, match="raise block_tokens"):
        simulate(setup, make_policy("joint"), [request()])


def test_a_traces_classes_are_the_engines() -> None:
    """A flood of batch requests is there first; an interactive one passes it, but not in a replay
    that serves first who came first."""
    flood = [request(prompt_tokens=2000, sla_class="batch", tenant=f"t{n % 3}") for n in range(30)]
    late = request(t_s=0.01, tenant="quick")
    results = {}
    policies: tuple[SchedulingPolicy, ...] = ("sla", "fcfs")
    for policy in policies:
        setup = replace(ROOMY, limits=Limits(max_running=4, scheduling_policy=policy))
        results[policy] = simulate(setup, make_policy("joint"), [*flood, late]).records[-1]
    assert results["sla"].sla_class == "interactive"
    ttfts_ms = [results[policy].ttft_ms or 0.0 for policy in policies]
    assert 0 < ttfts_ms[0] < 0.3 * ttfts_ms[1]


def test_a_system_is_a_policy_with_a_scheduler() -> None:
    """What found no pages is passed by a smaller one, but not where who came first goes first."""
    trace = [
        request(prompt_tokens=1600, output_tokens=400),
        request(t_s=0.1, tenant="t1", prompt_tokens=2600),
        request(t_s=0.2, tenant="t2", prompt_tokens=160),
    ]
    setup = replace(TIGHT, device_bytes=256 * TIMING.page_bytes)
    ttfts_ms = {}
    for system in ("joint", "joint@sla", "joint@fcfs"):
        tenants = Replays(setup, system, trace).at(1.0)["tenants"]
        ttfts_ms[system] = tenants["t2"]["p99_ttft_ms"]
    assert ttfts_ms["joint"] == ttfts_ms["joint@sla"] < 0.3 * ttfts_ms["joint@fcfs"]
    for name in ("joint@lottery", "joint@", "clairvoyant@fcfs"):
        with pytest.raises(BenchError, match="there are"):
            Replays(setup, name, trace)


@pytest.mark.parametrize("policy", POLICIES)
def test_host_memory_gives_evicted_kv_back(policy: str) -> None:
    """Fetched KV counts as cached, takes time on the link, and costs no less than the bound."""
    trace = generate("mooncake", Demand(requests=60, rate=0.5, adapters=5))
    size = PREFIX_BLOCK_TOKENS["mooncake"]
    timing = h200_llama3_8b(128)
    costs, hits = {}, {}
    for share in (0.0, 2.0):
        setup = Setup(timing, 12 * GIB, size, host_kv_share=share)
        replay = simulate(setup, make_policy(policy), trace)
        assert not any(record.error for record in replay.records)
        assert (replay.counters["kv_pages_fetched"] > 0) == (share > 0)
        hits[share] = sum(record.cached_tokens for record in replay.records)
        costs[share] = replay_miss_cost_s(setup, trace, replay)
        assert costs[share] >= least_miss_cost_s(setup, trace) * (1 - 1e-9)
    assert hits[2.0] > hits[0.0]
    assert costs[2.0] < costs[0.0]


def test_a_fetch_of_kv_takes_its_time_on_the_link() -> None:
    """The second request's prompt lies in host memory: it waits for the copy of its pages."""
    timing = h200_llama3_8b(16)
    prompt = tuple(f"b{number}" for number in range(100))
    other = request(t_s=5.0, adapter=None, tenant="t1", prompt_tokens=1800, output_tokens=1)
    first = request(adapter=None, prompt_tokens=1601, prefix_blocks=prompt, output_tokens=1)
    setup = Setup(timing, 120 * timing.page_bytes, host_kv_share=2.0)
    replay = simulate(setup, make_policy("unified-lru"), [first, other, replace(first, t_s=9.0)])
    last = replay.records[-1]
    pages = replay.counters["kv_pages_fetched"]
    assert last.cached_tokens >= 16 * pages > 0
    step_ms = timing.step.step_s * 1e3
    fetch_ms = timing.host.load_s(int(pages) * timing.page_bytes) * 1e3
    first_ms, last_ms = replay.records[0].ttft_ms or 0.0, last.ttft_ms or 0.0
    assert fetch_ms + step_ms < last_ms < 0.7 * first_ms


def test_classes_without_targets_of_their_own_have_the_presets() -> None:
    setup = replace(ROOMY, targets={"batch": Targets(1.0, 2.0)})
    assert setup.targets_of("batch") == Targets(1.0, 2.0)
    assert setup.targets_of("standard") == CLASS_TARGETS["standard"]
    assert setup.targets_of("interactive") == setup.default_targets
