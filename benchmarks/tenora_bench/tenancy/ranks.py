"""Adapters of rank 8 beside as much load on adapters of rank 128: what the others' rank does to the
time to first token, and how much of it is bytes."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tenora_bench.adapters import ATTENTION, LINEARS, adapter_bytes
from tenora_bench.dummy_model import write_llama_layers
from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome, median_ratio
from tenora_bench.tenancy.live import (
    LiveEngine,
    LiveRequest,
    live_engine,
    make_adapters,
    tenant_of,
)
from tenora_bench.tenancy.traffic import Kind, capacity, poisson, quantile, ttfts_ms
from tenora_engine.request import AdapterRef

SMALL, LARGE = 8, 128
ADAPTERS = 4  # of each kind, each with a tenant of its own
LOAD = 0.5  # of what the engine can do of both kinds together
ROUNDS = 12
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
MOST = 1.3
ARENA_BYTES = 1024**3  # rank 128: 78 MB an adapter


@dataclass(frozen=True)
class Setting:
    """What the adapters change, of which model, and how long a run takes. What a rank costs beside
    the base depends on both: rank 128 on all linears is 29% of SmolLM2-135M's bytes, 9% of those of
    Llama-3.2-1B's layers, 5% of Llama-3-8B's; on the attention's alone 11, 3 and 2%."""

    modules: tuple[str, ...] = LINEARS
    llama_layers: int = 0  # of a model with random weights; 0: the model that is given
    seconds: float = 4.0


@dataclass(frozen=True)
class Run:
    """One run: the records of the measured requests and of those beside them."""

    measured: list[RequestRecord]
    beside: list[RequestRecord]


def run(setting: Setting, options: Options) -> Outcome:
    model = options.model
    if setting.llama_layers:
        model = write_llama_layers(options.scratch / "model", setting.llama_layers, options.model)
    return asyncio.run(_run(setting, options, model))


async def _run(setting: Setting, options: Options, model: Path) -> Outcome:
    import torch

    from tenora_bench.machine import threads
    from tenora_bench.step import read_bandwidth

    torch.set_num_threads(threads())
    ranks = [SMALL] * (2 * ADAPTERS) + [LARGE] * ADAPTERS
    refs = make_adapters(options.scratch, model, ranks, setting.modules)
    measured, beside = refs[:ADAPTERS], {SMALL: refs[ADAPTERS:-ADAPTERS], LARGE: refs[-ADAPTERS:]}
    runs: dict[int, list[Run]] = {SMALL: [], LARGE: []}
    bandwidths = []
    async with live_engine(model, options.scratch, arena_bytes=ARENA_BYTES) as engine:
        mixed = kinds([*measured, *beside[LARGE], *beside[SMALL]])
        for turn in range(3):
            per_s = await capacity(engine, mixed, tenant_of("warm"), 96, f"{options.seed}/w{turn}")
        for number in range(options.rounds or ROUNDS):
            for rank in (SMALL, LARGE) if number % 2 else (LARGE, SMALL):
                seed = f"{options.seed}/{number}"
                kind = (measured, beside[rank])
                runs[rank].append(await one_run(engine, *kind, setting.seconds, per_s, seed))
            bandwidths.append(read_bandwidth())
    bandwidth = statistics.median(bandwidths)
    extra_ms = {
        rank: adapter_bytes(model, rank, setting.modules) / bandwidth * 1e3 for rank in runs
    }
    return summarise(runs, extra_ms, {"capacity_per_s": per_s, "read_gb_per_s": bandwidth / 1e9})


def kinds(adapters: Sequence[AdapterRef]) -> list[Kind]:
    return [Kind(PROMPT_TOKENS, OUTPUT_TOKENS, adapter) for adapter in adapters]


async def one_run(
    engine: LiveEngine,
    measured: Sequence[AdapterRef],
    beside: Sequence[AdapterRef],
    seconds: float,
    per_s: float,
    seed: str,
) -> Run:
    """Both halves of the load; arrivals and prompts depend on the seed alone."""
    rate = LOAD * per_s / (2 * ADAPTERS)

    def arrivals(adapters: Sequence[AdapterRef], name: str) -> list[LiveRequest]:
        return [
            request
            for number, kind in enumerate(kinds(adapters))
            for request in poisson(kind, tenant_of(f"{name}{number}"), rate, seconds, seed)
        ]

    requests = [*arrivals(measured, "measured"), *arrivals(beside, "beside")]
    records = await engine.play(requests)
    return Run(
        [r for r in records if r.tenant.startswith("measured")],
        [r for r in records if r.tenant.startswith("beside")],
    )


def distinct_in_flight(records: Sequence[RequestRecord]) -> float:
    """Distinct adapters in flight (from sending to the last token), the mean over the time in which
    there is any."""
    changes = sorted(
        change
        for r in records
        if r.finished_s is not None and r.adapter is not None
        for change in ((r.sent_s, 1, r.adapter), (r.finished_s, -1, r.adapter))
    )
    counts: dict[str, int] = {}
    area = busy_s = 0.0
    for (time_s, step, adapter), (next_s, _, _) in pairwise(changes):
        counts[adapter] = counts.get(adapter, 0) + step
        distinct = sum(count > 0 for count in counts.values())
        area += distinct * (next_s - time_s)
        busy_s += (next_s - time_s) * (distinct > 0)
    return area / busy_s if busy_s else 0.0


def gaps_ms(records: Sequence[RequestRecord]) -> list[float]:
    """Between two tokens of a request: a step, as a stream feels it."""
    return [(b - a) * 1e3 for r in records for a, b in pairwise(r.chunk_times_s)]


def summarise(
    runs: dict[int, list[Run]], adapter_ms: dict[int, float], details: dict[str, Any]
) -> Outcome:
    """`adapter_ms`: what reading one of the adapters beside takes, by their rank. Percentiles are
    medians over the rounds: of all requests together, a P95 is that of the worst round."""
    figures: dict[int, dict[str, Any]] = {}
    for rank, rounds in runs.items():
        ttfts = [ttfts_ms(each.measured) for each in rounds]
        p50s, p95s = ([quantile(each, share) for each in ttfts] for share in (0.5, 0.95))
        distinct = statistics.median(distinct_in_flight(each.beside) for each in rounds)
        figures[rank] = {
            "requests": sum(map(len, ttfts)),
            "failed": sum(r.error is not None for each in rounds for r in each.measured),
            "p50_ttft_ms": statistics.median(p50s),
            "p95_ttft_ms": statistics.median(p95s),
            "p95_ttft_ms_by_round": p95s,
            "ttft_ms_by_round": ttfts,
            "gap_ms": statistics.median(quantile(gaps_ms(each.measured), 0.5) for each in rounds),
            "distinct_beside": distinct,
            "bytes_ms_a_step": distinct * adapter_ms[rank],
        }
    small, large = figures[SMALL], figures[LARGE]
    pairs = zip(large["p95_ttft_ms_by_round"], small["p95_ttft_ms_by_round"], strict=True)
    ratio = large["p95_ttft_ms"] / small["p95_ttft_ms"]
    more = {
        "gap_ms": large["gap_ms"] - small["gap_ms"],
        "bytes_ms": large["bytes_ms_a_step"] - small["bytes_ms_a_step"],
        "p95_ttft_ratio_by_pairs": median_ratio(list(pairs)),
    }
    keys = ("requests", "p50_ttft_ms", "p95_ttft_ms", "gap_ms", "distinct_beside")
    return Outcome(
        claims=[
            Claim("P95 TTFT of rank 8, beside rank 128 over beside rank 8", ratio, "below", MOST)
        ],
        columns=(
            "beside",
            "requests",
            "TTFT p50 ms",
            "p95 ms",
            "between tokens ms",
            "adapters beside in flight",
            "their bytes, ms a step",
        ),
        rows=[
            (f"rank {rank}", *(row[key] for key in keys), row["bytes_ms_a_step"])
            for rank, row in figures.items()
        ],
        details={**details, "beside": {str(r): f for r, f in figures.items()}, "more": more},
    )


EXPERIMENT = Experiment(
    "ranks", "rank 8 beside as much load of rank 128, or of rank 8", partial(run, Setting())
)
ATTENTION_ONLY = Experiment(
    "ranks-attention",
    "ranks, of adapters that change the attention's linears only",
    partial(run, Setting(modules=ATTENTION)),
)
LLAMA = Experiment(
    "ranks-llama",
    "ranks, on four layers of Llama-3.2-1B's shape with random weights",
    partial(run, Setting(llama_layers=4, seconds=15.0)),
)
