"""What the tenancy experiments make of the times they are given."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tenora_bench.adapters import ATTENTION, LINEARS, AdapterSpec, adapter_bytes, write_adapter
from tenora_bench.cache.simulator import Targets
from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy import bursts, long_prompts, noisy, ranks, throughput
from tenora_bench.tenancy.experiment import bootstrap_interval
from tenora_bench.tenancy.live import tenant_of
from tenora_bench.tenancy.traffic import Kind, poisson
from tenora_bench.trace import TraceRequest
from tenora_engine.request import AdapterRef


def record(
    ttft_ms: float, sent_s: float = 0.0, finished_s: float = 10.0, adapter: str | None = None
) -> RequestRecord:
    return RequestRecord(
        "t",
        adapter,
        sent_s,
        first_token_s=sent_s + ttft_ms / 1e3,
        finished_s=finished_s,
        output_tokens=3,
        chunk_times_s=[sent_s + ttft_ms / 1e3, sent_s + ttft_ms / 1e3 + 0.5, finished_s],
    )


def test_arrivals_are_the_same_whatever_else_is_sent() -> None:
    kind = Kind(8, 4)
    ours, again = (poisson(kind, tenant_of("a"), 5.0, 20.0, "seed") for _ in range(2))
    assert ours == again
    assert ours != poisson(kind, tenant_of("b"), 5.0, 20.0, "seed")
    others = poisson(kind, tenant_of("a"), 5.0, 20.0, "seed", "other prompts")
    assert [request.at_s for request in others] == [request.at_s for request in ours]
    assert not {tuple(r.prompt) for r in others} & {tuple(r.prompt) for r in ours}
    assert all(0 < request.at_s < 20.0 and len(request.prompt) == 8 for request in ours)
    assert 50 < len(ours) < 160
    assert len({tuple(request.prompt) for request in ours}) == len(ours)


def test_long_prompts_are_judged_round_by_round_and_by_what_was_promised() -> None:
    """P99s twice those alone; three tokens in 10 s, the first after 0.2 s or 0.6."""
    slow = {ttft_ms: [[record(ttft_ms)], [record(3 * ttft_ms)]] for ttft_ms in (100.0, 200.0)}
    found = dict.fromkeys(long_prompts.CASES, slow[200.0]) | {long_prompts.ALONE: slow[100.0]}
    outcome = long_prompts.summarise(found, 4000.0)
    assert [claim.figure for claim in outcome.claims[::2]] == [2.0] * 3
    assert not any(claim.held for claim in outcome.claims)
    assert outcome.claims[1].figure == pytest.approx(4700)
    assert len(long_prompts.summarise(found, None).claims) == 3, "nothing was promised"
    found[long_prompts.ALONE] = slow[200.0]
    assert all(claim.held for claim in long_prompts.summarise(found, 5000.0).claims)


def test_noise_is_judged_by_the_medians_of_the_rounds() -> None:
    def rounds(*p99s: float) -> list[list[RequestRecord]]:
        return [[record(1.0), record(p99)] for p99 in p99s]

    alone, disturbed = rounds(100, 90, 5), rounds(99, 900, 8)
    for within_share, figure, held in ((95.0, 99 / 90, True), (30.0, 99 / 30, False)):
        runs = (alone, rounds(within_share), disturbed)
        outcome = noisy.summarise(dict(zip(noisy.RUNS, runs, strict=True)), {})
        (claim,) = outcome.claims
        assert claim.figure == pytest.approx(figure), "over the quicker of the runs without noise"
        assert claim.held == held
        assert outcome.details["runs"]["quiet alone"]["requests"] == 6


def test_a_failed_request_has_no_time_to_first_token() -> None:
    failed = record(5000.0)
    failed.error = "refused"
    found = {name: [[record(100.0), failed]] for name in noisy.RUNS}
    runs = noisy.summarise(found, {}).details["runs"]
    assert all(run["p99_ttft_ms"] == pytest.approx(100.0) for run in runs.values())


def test_distinct_adapters_are_counted_over_the_time_with_any() -> None:
    """Two requests of one adapter at once are one; a pause counts for nothing."""
    records = [
        record(1, 0.0, 4.0, "a"),
        record(1, 1.0, 3.0, "a"),
        record(1, 2.0, 4.0, "b"),
        record(1, 9.0, 10.0, "b"),
    ]
    assert ranks.distinct_in_flight(records) == pytest.approx((4 + 2 + 1) / 5)
    assert ranks.distinct_in_flight([]) == 0.0


def test_the_part_of_bytes_is_theirs_in_the_gap_between_tokens() -> None:
    beside = [record(1, 0.0, 2.0, "x")]
    slow, quick = [record(130.0)], [record(100.0)]
    runs = {ranks.SMALL: [ranks.Run(quick, beside)], ranks.LARGE: [ranks.Run(slow, beside)]}
    outcome = ranks.summarise(runs, {ranks.SMALL: 0.5, ranks.LARGE: 8.0}, {})
    assert outcome.claims[0].figure == pytest.approx(1.3)
    assert outcome.details["more"]["bytes_ms"] == pytest.approx(7.5)
    assert outcome.details["beside"]["128"]["bytes_ms_a_step"] == pytest.approx(8.0)


def test_both_orders_get_the_same_mix_of_all_classes() -> None:
    refs = [AdapterRef(f"sha256:{n}", 16) for n in range(throughput.TENANTS)]
    mix = throughput.saturated_mix(refs, "s")
    assert mix == throughput.saturated_mix(refs, "s")
    assert {request.tenant.tier for request in mix} == set(throughput.CLASSES)
    assert len({request.tenant.key for request in mix}) == throughput.TENANTS
    assert {request.at_s for request in mix} == {0.0}


def test_throughput_counts_all_tokens_and_refuses_failures() -> None:
    records = [record(1.0, 2.0, 4.0), record(1.0, 3.0, 8.0)]
    assert throughput.tokens_per_s(records) == pytest.approx(6 / 6.0)
    records[0].error = "no"
    with pytest.raises(BenchError, match="1 of 2"):
        throughput.tokens_per_s(records)
    outcome = throughput.summarise({"sla": [99.0, 50.0, 97.0], "fcfs": [100.0, 98.0, 51.0]}, {})
    assert outcome.claims[0].figure == pytest.approx(99 / 100), "by round, not by speeds"
    assert outcome.claims[0].held
    low, high = outcome.details["interval"]
    assert (low, high) == pytest.approx((50 / 98, 97 / 51)), "three rounds say little"
    assert outcome.details["ratio_of_totals"] < 1


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=15))
def test_the_interval_of_a_median_holds_it(values: list[float]) -> None:
    low, high = bootstrap_interval(values)
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)
    assert bootstrap_interval(values) == (low, high)


def test_more_rounds_narrow_the_interval() -> None:
    few = [0.9, 1.0, 1.1]
    spans = [high - low for low, high in map(bootstrap_interval, (few, few * 20))]
    assert spans[1] < spans[0] / 2


@given(st.floats(*bursts.SPEEDS))
def test_the_highest_load_is_found_within_its_tolerance(limit: float) -> None:
    found = bursts.highest(lambda speed: 1.0 if speed <= limit else 0.0)
    assert found is not None
    assert found <= limit <= found * (1 + bursts.TOLERANCE) or found == bursts.SPEEDS[1]


def test_a_load_outside_of_what_is_looked_at() -> None:
    assert bursts.highest(lambda speed: 0.0) is None
    assert bursts.highest(lambda speed: 1.0) == bursts.SPEEDS[1]


def test_tenants_take_the_classes_in_turn() -> None:
    asked = TraceRequest(0.0, "", None, 8, 10, 5, (), "interactive")
    trace = bursts.classed([replace(asked, tenant=name) for name in ("d", "a", "c", "b", "a")])
    assert [r.sla_class for r in trace] == [bursts.CLASSES[n] for n in (0, 0, 2, 1, 0)]


def test_attainment_on_a_trace_that_one_order_serves_and_the_other_does_not() -> None:
    """Batch work of many tenants before interactive requests that cannot wait for it."""
    batch = TraceRequest(0.0, "b0", None, 8, 30_000, 2, (), "batch")
    flood = [replace(batch, t_s=n / 100, tenant=f"b{n % 3}") for n in range(12)]
    urgent = replace(batch, t_s=0.2, tenant="i", prompt_tokens=100, sla_class="interactive")
    targets = {"interactive": Targets(1000.0, 1000.0), "batch": Targets(60_000.0, 5000.0)}
    fcfs, sla = (
        bursts.attained([*flood, urgent], targets, policy, 1.0) for policy in ("fcfs", "sla")
    )
    assert fcfs == {"b0": 1.0, "b1": 1.0, "b2": 1.0, "i": 0.0}
    assert sla == {"b0": 1.0, "b1": 1.0, "b2": 1.0, "i": 1.0}


def test_bursts_are_judged_over_the_seeds_that_have_a_load() -> None:
    def seed(load: float, fcfs: float, sla: float) -> dict[str, Any]:
        return {
            "speeds": {"fcfs": load, "sla": 3 * load},
            "fcfs": {"a": fcfs, "noisy": 1.0},
            "sla": {"a": sla, "noisy": 0.5},
        }

    nothing: dict[str, Any] = {"speeds": {"fcfs": None, "sla": 1.0}}
    seeds = [seed(1.0, 0.3, 0.9), nothing, seed(2.0, 0.5, 0.95), seed(4.0, 0.1, 1.0)]
    outcome = bursts.summarise({"trace": seeds, "none": [nothing]})
    assert [claim.held for claim in outcome.claims] == [False, False]
    assert outcome.claims[0].figure == 0.5
    assert math.isnan(outcome.claims[1].figure)
    assert outcome.rows[0] == ("trace, 3 seeds", 8.0, 24.0, 0.3, 0.5, 0.95)


def test_an_adapter_is_as_large_as_its_weights(tmp_path: Path) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    for modules in (LINEARS, ATTENTION):
        write_adapter(tmp_path / "made", tmp_path, AdapterSpec("a", 5, 0, modules=modules))
        tensors = load_file(tmp_path / "made" / "adapter_model.safetensors").values()
        assert adapter_bytes(tmp_path, 5, modules) == sum(t.nbytes for t in tensors)
