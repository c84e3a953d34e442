"""What a namespace for each tenant costs against one for all, on traffic that shares nothing."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from statistics import median

from msgspec import structs

from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome, median_ratio
from tenora_bench.tenancy.live import LiveEngine, LiveRequest, live_engine, page_bytes, tenant_of
from tenora_bench.tenancy.traffic import Kind, poisson, quantile, ttfts_ms

TENANTS = 8
RATE = 6.0  # requests a second of all tenants
SECONDS = 5.0  # of a run
ROUNDS = 6
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 8
ARENA_PAGES = 256  # 30 prompts: each run evicts what the one before left
MOST = 1.1
ISOLATED, SHARED = "a namespace each", "one namespace"


def run(options: Options) -> Outcome:
    return asyncio.run(_run(options))


async def _run(options: Options) -> Outcome:
    arena_bytes = ARENA_PAGES * page_bytes(options.model)
    found: dict[str, list[list[RequestRecord]]] = {ISOLATED: [], SHARED: []}
    async with live_engine(options.model, options.scratch, arena_bytes=arena_bytes) as engine:
        for kind in found:
            await one_run(engine, kind, f"{options.seed}/warm-up")
        for number in range(options.rounds or ROUNDS):
            order = sorted(found)
            random.Random(f"{options.seed}/{number}").shuffle(order)
            for kind in order:
                found[kind].append(await one_run(engine, kind, f"{options.seed}/{number}"))
    return summarise(found)


async def one_run(engine: LiveEngine, kind: str, seed: str) -> list[RequestRecord]:
    """Arrivals are the same for the same seed; prompts are of this run alone."""
    kinds = Kind(PROMPT_TOKENS, OUTPUT_TOKENS)
    requests: list[LiveRequest] = []
    for number in range(TENANTS):
        tenant = tenant_of(f"t{number}")
        for index, each in enumerate(poisson(kinds, tenant, RATE / TENANTS, SECONDS, seed)):
            own = kinds.request(each.at_s, tenant, f"{seed}/{kind}/{number}/{index}")
            shared = replace(own, tenant=structs.replace(tenant, namespace="all"))
            requests.append(own if kind == ISOLATED else shared)
    return await engine.play(requests)


def summarise(found: dict[str, list[list[RequestRecord]]]) -> Outcome:
    """The claim is the median over the rounds of the ratio of their median TTFTs."""
    medians = {kind: [median(ttfts_ms(r)) for r in rounds] for kind, rounds in found.items()}
    pooled = {
        k: [t for records in rounds for t in ttfts_ms(records)] for k, rounds in found.items()
    }
    ratio = median_ratio(list(zip(medians[ISOLATED], medians[SHARED], strict=True)))
    return Outcome(
        claims=[Claim("median TTFT, a namespace each over one for all", ratio, "below", MOST)],
        columns=("", "requests", "TTFT p50 ms", "p99 ms", "cached tokens", "failed"),
        rows=[
            (
                kind,
                len(pooled[kind]),
                median(medians[kind]),
                quantile(pooled[kind], 0.99),
                sum(record.cached_tokens for records in rounds for record in records),
                sum(record.error is not None for records in rounds for record in records),
            )
            for kind, rounds in found.items()
        ],
        details={"p50_ttft_ms_by_round": medians},
    )


EXPERIMENT = Experiment(
    "isolation-cost", "TTFT with a namespace for each tenant against one for all", run
)
