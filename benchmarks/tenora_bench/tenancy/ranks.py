"""Adapters of rank 8 beside as much load on adapters of rank 128: what the others' rank does to the
time to first token, and how much of it is bytes."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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
SECONDS = 4.0  # of a run
ROUNDS = 6
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
MOST = 1.3
ARENA_BYTES = 1024**3  # rank 128: 78 MB an adapter


@dataclass(frozen=True)
class Run:
    """One run: the records of the measured requests and of those beside them."""

    measured: list[RequestRecord]
    beside: list[RequestRecord]


def run(options: Options) -> Outcome:
    return asyncio.run(_run(options))


async def _run(options: Options) -> Outcome:
    import torch

    from tenora_bench.lora_tax import adapter_bytes
    from tenora_bench.machine import threads
    from tenora_bench.step import read_bandwidth

    torch.set_num_threads(threads())
    ranks = [SMALL] * (2 * ADAPTERS) + [LARGE] * ADAPTERS
    refs = make_adapters(options.scratch, options.model, ranks)
    measured, beside = refs[:ADAPTERS], {SMALL: refs[ADAPTERS:-ADAPTERS], LARGE: refs[-ADAPTERS:]}
    runs: dict[int, list[Run]] = {SMALL: [], LARGE: []}
    bandwidths = []
    async with live_engine(options.model, options.scratch, arena_bytes=ARENA_BYTES) as engine:
        mixed = kinds([*measured, *beside[LARGE], *beside[SMALL]])
        for turn in range(3):
            per_s = await capacity(engine, mixed, tenant_of("warm"), 96, f"{options.seed}/w{turn}")
        for number in range(options.rounds or ROUNDS):
            for rank in (SMALL, LARGE) if number % 2 else (LARGE, SMALL):
                seed = f"{options.seed}/{number}"
                runs[rank].append(await one_run(engine, measured, beside[rank], per_s, seed))
            bandwidths.append(read_bandwidth())
        model = engine.client.model
    bandwidth = statistics.median(bandwidths)
    extra_ms = {
        rank: adapter_bytes(model, beside[rank]) / ADAPTERS / bandwidth * 1e3 for rank in runs
    }
    return summarise(runs, extra_ms, {"capacity_per_s": per_s, "read_gb_per_s": bandwidth / 1e9})


def kinds(adapters: Sequence[AdapterRef]) -> list[Kind]:
    return [Kind(PROMPT_TOKENS, OUTPUT_TOKENS, adapter) for adapter in adapters]


async def one_run(
    engine: LiveEngine,
    measured: Sequence[AdapterRef],
    beside: Sequence[AdapterRef],
    per_s: float,
    seed: str,
) -> Run:
    """Both halves of the load; arrivals and prompts depend on the seed alone."""
    rate = LOAD * per_s / (2 * ADAPTERS)

    def arrivals(adapters: Sequence[AdapterRef], name: str) -> list[LiveRequest]:
        return [
            request
            for number, kind in enumerate(kinds(adapters))
            for request in poisson(kind, tenant_of(f"{name}{number}"), rate, SECONDS, seed)
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
    """`adapter_ms`: what reading one of the adapters beside takes, by their rank."""
    figures: dict[int, dict[str, Any]] = {}
    for rank, rounds in runs.items():
        p95s = [quantile(ttfts_ms(each.measured), 0.95) for each in rounds]
        distinct = statistics.median(distinct_in_flight(each.beside) for each in rounds)
        figures[rank] = {
            "requests": sum(len(ttfts_ms(each.measured)) for each in rounds),
            "failed": sum(r.error is not None for each in rounds for r in each.measured),
            "p50_ttft_ms": statistics.median(
                quantile(ttfts_ms(each.measured), 0.5) for each in rounds
            ),
            "p95_ttft_ms": statistics.median(p95s),
            "p95_ttft_ms_by_round": p95s,
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


EXPERIMENT = Experiment("ranks", "rank 8 beside as much load of rank 128, or of rank 8", run)
