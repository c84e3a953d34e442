"""What the order of classes, tenants and deadlines costs in tokens per second, against order of
arrival: two engines on the same saturated mix in turns."""

from __future__ import annotations

import asyncio
import random
import statistics
from contextlib import AsyncExitStack
from typing import Any

from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy.experiment import (
    Claim,
    Experiment,
    Options,
    Outcome,
    bootstrap_interval,
)
from tenora_bench.tenancy.live import LiveRequest, live_engine, make_adapters, tenant_of
from tenora_bench.tenancy.traffic import Kind
from tenora_engine.request import AdapterRef

POLICIES = ("sla", "fcfs")
CLASSES = {"priority": (500.0, 100.0), "default": (2_000.0, 200.0), "flex": (30_000.0, 500.0)}
"""TTFT and TPOT targets in milliseconds, by tier."""

TENANTS = 6
RANK = 16
REQUESTS = 40
ROUNDS = 15
LEAST = 0.98


def run(options: Options) -> Outcome:
    return asyncio.run(_run(options))


async def _run(options: Options) -> Outcome:
    refs = make_adapters(options.scratch, options.model, [RANK] * TENANTS)
    speeds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    async with AsyncExitStack() as stack:
        engines = {
            policy: await stack.enter_async_context(
                live_engine(options.model, options.scratch, scheduling_policy=policy)
            )
            for policy in POLICIES
        }
        for number in range(-1, options.rounds or ROUNDS):  # the first warms up
            mix = saturated_mix(refs, f"{options.seed}/{number}")
            for policy in POLICIES if number % 2 else POLICIES[::-1]:
                speed = tokens_per_s(await engines[policy].play(mix))
                if number >= 0:
                    speeds[policy].append(speed)
    return summarise(speeds, {"requests": REQUESTS})


def saturated_mix(refs: list[AdapterRef], seed: str) -> list[LiveRequest]:
    """All at once: tenants of all classes, each with an adapter, prompts and answers of 16 to 256
    and 8 to 48 tokens. What is late keeps its place, so that nothing is refused."""
    draw = random.Random(seed)
    tiers = list(CLASSES)
    requests = []
    for number in range(REQUESTS):
        place = number % TENANTS
        tier = tiers[place % len(tiers)]
        ttft_ms, tpot_ms = CLASSES[tier]
        tenant = tenant_of(f"t{place}", tier=tier, ttft_ms=ttft_ms, tpot_ms=tpot_ms)
        kind = Kind(draw.randint(16, 256), draw.randint(8, 48), refs[place])
        requests.append(kind.request(0.0, tenant, f"{seed}/{number}"))
    return requests


def tokens_per_s(records: list[RequestRecord]) -> float:
    """Output tokens over the time from the first request to the last token. Raises BenchError
    when a request failed."""
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise BenchError(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    end_s = max(record.finished_s or 0.0 for record in records)
    return sum(r.output_tokens for r in records) / (end_s - min(r.sent_s for r in records))


def summarise(speeds: dict[str, list[float]], details: dict[str, Any]) -> Outcome:
    """The claim is of the median over the rounds of what one order had of the other's, with the
    interval of its resamples: the machine changes from round to round, less so within one. Beside
    it stands the ratio of the times of all rounds together."""
    pairs = [a / b for a, b in zip(speeds["sla"], speeds["fcfs"], strict=True)]
    low, high = bootstrap_interval(pairs)
    totals = {policy: statistics.harmonic_mean(values) for policy, values in speeds.items()}
    return Outcome(
        claims=[
            Claim(
                f"throughput over that of order of arrival, median of {len(pairs)} rounds "
                f"({low:.3f} to {high:.3f})",
                statistics.median(pairs),
                "at least",
                LEAST,
            )
        ],
        columns=("order", "output tokens/s", "least", "most"),
        rows=[(policy, totals[policy], min(v), max(v)) for policy, v in speeds.items()],
        details={
            **details,
            "tokens_per_s": speeds,
            "ratio_by_round": pairs,
            "interval": (low, high),
            "ratio_of_totals": totals["sla"] / totals["fcfs"],
        },
    )


EXPERIMENT = Experiment("throughput", "what fair order costs on a saturated mix", run)
