"""A noisy tenant beside tenants within their shares: what it does to their time to first token."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome
from tenora_bench.tenancy.live import LiveEngine, live_engine, make_adapters, tenant_of
from tenora_bench.tenancy.traffic import Kind, capacity, poisson, quantile, ttfts_ms

QUIET = 4  # tenants; with the noisy one each has a fifth of the engine
OF_SHARE = 0.6  # of its share that a quiet tenant asks for
NOISE = 20.0  # times its share that the noisy one asks for
ROUNDS = 7
RANK = 16
MOST = 1.2
PLAN: dict[str, Any] = {"ttft_ms": 300.0, "tpot_ms": 100.0}  # of all of them, the noisy one too
NOISY = tenant_of("noisy", **PLAN)
RUNS = {"quiet alone": 0.0, "noisy within its share": OF_SHARE, "noisy at 20 times": NOISE}


@dataclass(frozen=True)
class Shape:
    """Of all requests, and the seconds of a run: thirty or forty of the quiet tenants'."""

    prompt_tokens: int
    output_tokens: int
    seconds: float


SHORT = Shape(64, 16, 3.0)
CHAT = Shape(256, 32, 9.0)


def run(options: Options, shape: Shape = SHORT) -> Outcome:
    return asyncio.run(_run(options, shape))


async def _run(options: Options, shape: Shape) -> Outcome:
    refs = make_adapters(options.scratch, options.model, [RANK] * (QUIET + 1))
    kinds = [Kind(shape.prompt_tokens, shape.output_tokens, ref) for ref in refs]
    found: dict[str, list[list[RequestRecord]]] = {name: [] for name in RUNS}
    refused = 0
    async with live_engine(options.model, options.scratch) as engine:
        for turn in range(2):
            per_s = await capacity(engine, kinds, NOISY, 100, f"{options.seed}/capacity{turn}")
        for number in range(options.rounds or ROUNDS):
            for name, noise in list(RUNS.items())[:: -1 if number % 2 else 1]:
                seed = f"{options.seed}/{number}"
                records = await one_run(engine, kinds, per_s, noise, shape.seconds, seed)
                found[name].append(records)
                refused += sum(r.error is not None for r in records)
    return summarise(found, {"capacity_per_s": per_s, "quiet_requests_failed": refused})


async def one_run(
    engine: LiveEngine, kinds: list[Kind], per_s: float, noise: float, seconds: float, seed: str
) -> list[RequestRecord]:
    """The quiet tenants' records; their requests come at the same times for the same seed, whatever
    the noise. Their prompts are new in each run: no run finds in the prefix cache what another has
    computed."""
    share = per_s / (QUIET + 1)
    quiet = [
        request
        for number in range(QUIET)
        for request in poisson(
            kinds[number],
            tenant_of(f"quiet{number}", **PLAN),
            OF_SHARE * share,
            seconds,
            seed,
            f"{noise:g}",
        )
    ]
    noisy = (
        poisson(kinds[QUIET], NOISY, noise * share, seconds, seed, f"{noise:g}") if noise else []
    )
    return await engine.play(quiet, background=noisy)


def summarise(found: dict[str, list[list[RequestRecord]]], details: dict[str, Any]) -> Outcome:
    """`found` has the quiet tenants' records by run and round. The claim compares medians over the
    rounds, with the quicker of the runs without noise: alone, a few slow requests make the P99.
    Beside them stand the percentiles of all rounds together."""
    runs: dict[str, dict[str, Any]] = {}
    for name, rounds in found.items():
        p99s = [quantile(ttfts_ms(records), 0.99) for records in rounds]
        pooled = [ttft for records in rounds for ttft in ttfts_ms(records)]
        runs[name] = {
            "requests": len(pooled),
            "p50_ttft_ms": quantile(pooled, 0.5),
            "p99_ttft_ms": statistics.median(p99s),
            "pooled_p99_ttft_ms": quantile(pooled, 0.99),
            "p99_ttft_ms_by_round": p99s,
        }
    *calm, noisy = (runs[name]["p99_ttft_ms"] for name in RUNS)
    columns = ("run", "quiet requests", "TTFT p50 ms", "p99 ms", "p99 of all rounds ms")
    keys = ("requests", "p50_ttft_ms", "p99_ttft_ms", "pooled_p99_ttft_ms")
    return Outcome(
        claims=[
            Claim(
                "P99 TTFT of the others, with the noisy over without",
                noisy / min(calm),
                "below",
                MOST,
            )
        ],
        columns=columns,
        rows=[(name, *(figures[key] for key in keys)) for name, figures in runs.items()],
        details={**details, "runs": runs},
    )


EXPERIMENT = Experiment("noisy", "a tenant at 20 times its share beside four within theirs", run)
CHATS = Experiment(
    "noisy-chats", "the same with longer prompts and answers", partial(run, shape=CHAT)
)
