"""The generated workloads have the figures that the literature gives for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from numpy.random import default_rng

from tenora_bench.cache.timing import h200_llama3_8b
from tenora_bench.cache.trace_figures import gap_cv, infinite_hit_tokens, trace_figures
from tenora_bench.cache.workloads import (
    NOISE,
    NOISY,
    PREFIX_BLOCK_TOKENS,
    WORKLOADS,
    Demand,
    gamma_arrivals,
    generate,
    power_choice,
    zipf_choice,
)
from tenora_bench.client import BenchError
from tenora_bench.trace import read_trace, write_trace

MANY = Demand(requests=4000, rate=8.0, seed=3)


@pytest.mark.parametrize(
    ("alpha", "share"), [(0.1, 0.589), (0.3, 0.204), (0.6, 0.042), (1.0, 0.005)]
)
def test_slora_top_share_is_the_published_one(alpha: float, share: float) -> None:
    chosen = power_choice(default_rng(0), 100_000, 200, alpha)
    assert (chosen == 0).mean() == pytest.approx(share, abs=0.003)
    assert chosen.min() >= 0
    assert chosen.max() < 200


@pytest.mark.parametrize("cv", [1.0, 4.0, 8.0, 13.2])
def test_gamma_gaps_have_their_rate_and_cv(cv: float) -> None:
    times = gamma_arrivals(default_rng(1), 400_000, 5.0, cv)
    assert gap_cv(times.tolist()) == pytest.approx(cv, rel=0.05)
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize("exponent", [0.9, 1.0, 1.5])
def test_zipf_is_true_zipf(exponent: float) -> None:
    counts = Counter(zipf_choice(default_rng(2), 200_000, 1000, exponent).tolist())
    total = sum(k**-exponent for k in range(1, 1001))
    for k in (1, 2, 10):
        assert counts[k - 1] / 200_000 == pytest.approx(k**-exponent / total, rel=0.05)


def test_slora_lengths_are_uniform_and_nothing_is_shared() -> None:
    trace = generate("slora", MANY)
    for lengths in ([r.prompt_tokens for r in trace], [r.output_tokens for r in trace]):
        assert (min(lengths), max(lengths)) == (8, 512)
        assert sum(lengths) / len(lengths) == pytest.approx(260, rel=0.05)
    assert infinite_hit_tokens(trace, 16) == 0


def test_zipf_ranks_drift() -> None:
    """Adapters are as unequal in every part, but they are not the same ones."""
    trace = generate("zipf-drift", replace(MANY, adapters=20))
    first = Counter(r.adapter for r in trace[:500])
    last = Counter(r.adapter for r in trace[-500:])
    assert [name for name, _ in first.most_common()] != [name for name, _ in last.most_common()]
    for part in (first, last):
        assert part.most_common(1)[0][1] / 500 == pytest.approx(0.278, abs=0.06)


@pytest.mark.parametrize("seed", range(3))
def test_mooncake_has_the_published_lengths_and_hit_rate(seed: int) -> None:
    trace = generate("mooncake", replace(MANY, seed=seed))
    figures = trace_figures(trace, 512, h200_llama3_8b())
    assert figures["mean_prompt_tokens"] == pytest.approx(12_035, rel=0.06)
    assert figures["mean_output_tokens"] == pytest.approx(343, rel=0.06)
    assert figures["infinite_cache_hit_rate"] == pytest.approx(0.366, abs=0.02)


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("azure-code", 2048, 28), ("azure-conversation", 1155, 211)]
)
def test_azure_lengths(name: str, prompt: int, output: int) -> None:
    figures = trace_figures(generate(name, MANY), 16, h200_llama3_8b())
    assert figures["mean_prompt_tokens"] == pytest.approx(prompt, rel=0.06)
    assert figures["mean_output_tokens"] == pytest.approx(output, rel=0.06)


def test_azure_bursts_as_published() -> None:
    conversation = generate("azure-conversation", replace(MANY, requests=20_000))
    assert gap_cv([r.t_s for r in conversation]) == pytest.approx(1.09, rel=0.05)
    code = generate("azure-code", replace(MANY, requests=100_000))
    assert gap_cv([r.t_s for r in code]) == pytest.approx(13.2, rel=0.1)


def test_overload_is_twenty_times_the_share_of_each_other() -> None:
    counts = Counter(r.tenant for r in generate("overload", MANY))
    noisy = counts.pop(NOISY)
    assert len(counts) == MANY.tenants - 1
    assert noisy / (sum(counts.values()) / len(counts)) == pytest.approx(NOISE, rel=0.15)


def test_on_off_is_silent_in_every_other_tenth() -> None:
    end_s = MANY.requests / MANY.rate
    tenths = {int(r.t_s / end_s * 10) for r in generate("on-off", MANY) if r.tenant == NOISY}
    assert tenths == {0, 2, 4, 6, 8}


def test_shift_begins_without_noise_and_ends_with_it() -> None:
    end_s = MANY.requests / MANY.rate
    thirds = Counter(int(r.t_s / end_s * 3) for r in generate("shift", MANY) if r.tenant == NOISY)
    assert thirds[0] == 0
    assert 0.3 < thirds[1] / thirds[2] < 0.7


def test_short_beside_long() -> None:
    trace = generate("short-long", MANY)
    short = [r.prompt_tokens for r in trace if r.tenant == NOISY]
    long = [r.prompt_tokens for r in trace if r.tenant != NOISY]
    assert sum(long) / len(long) == pytest.approx(10 * sum(short) / len(short), rel=0.1)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_is_a_trace(name: str) -> None:
    demand = Demand(requests=200, seed=5)
    trace = generate(name, demand)
    assert trace == generate(name, demand)
    assert trace != generate(name, replace(demand, seed=6))
    assert trace == sorted(trace, key=lambda request: request.t_s)
    assert all(r.prompt_tokens > 0 and r.output_tokens > 0 and r.t_s >= 0 for r in trace)
    size = PREFIX_BLOCK_TOKENS[name]
    assert all((len(r.prefix_blocks) - 1) * size < r.prompt_tokens for r in trace)
    ranks = {(r.tenant, r.adapter, r.rank) for r in trace}
    assert len(ranks) == len({(tenant, adapter) for tenant, adapter, _ in ranks})


@pytest.mark.parametrize("name", ["mooncake", "slora"])
def test_traces_come_back_from_their_files(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trace = generate(name, Demand(requests=50))
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    write_trace(path, trace)
    assert read_trace(path) == trace


@pytest.mark.parametrize("bad", [{"requests": 0}, {"rate": 0.0}, {"skew": -1.0}, {"tenants": 0}])
def test_demands_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BenchError, match="must be positive"):
        generate("slora", replace(Demand(), **bad))  # type: ignore[arg-type]
    with pytest.raises(BenchError, match="no workload"):
        generate("slower", Demand())
