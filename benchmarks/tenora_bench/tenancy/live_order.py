"""One small trace on the live engine and in the simulator: do eviction policies come in the same
order by mean TTFT?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.random import default_rng

from tenora_bench.cache.calibration import calibrate_engine
from tenora_bench.cache.simulator import Limits, Setup, simulate
from tenora_bench.cache.timing import TimingModel, read_timing
from tenora_bench.cache.workloads import zipf_choice
from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome
from tenora_bench.tenancy.live import (
    LiveRequest,
    live_engine,
    make_adapters,
    page_bytes,
    tenant_of,
)
from tenora_bench.trace import TraceRequest, prompt_of
from tenora_engine.memory.policies import make_policy
from tenora_engine.request import AdapterRef

POLICIES = ("joint", "unified-lru", "kv-first")
ADAPTERS, RANK = 12, 16
REQUESTS, RATE = 60, 3.0
SYSTEM_BLOCKS, BLOCK_TOKENS = 16, 16  # of each adapter's own system prompt
OWN_TOKENS, OUTPUT_TOKENS = 32, 8
ARENA_PAGES = 200  # of the 516 that all adapters and their system prompts take
WARM_UP_S = 6.0  # in which each adapter is asked for once
ROUNDS = 3
LIMITS = Limits(
    max_running=16,
    max_step_tokens=512,
    max_prefill_chunk=256,
    max_adapters=64,
    host_adapter_bytes=256 * 1024**2,
)


def make_trace(seed: int) -> list[TraceRequest]:
    """First each adapter once with a short prompt, which brings it into host memory and is not
    judged; then Zipf popularity over adapters, each of a tenant of its own."""
    draw = default_rng(seed)
    times = WARM_UP_S + np.cumsum(draw.exponential(1 / RATE, REQUESTS))
    chosen = zipf_choice(draw, REQUESTS, ADAPTERS, 1.0)
    blocks = tuple(f"s{block}" for block in range(SYSTEM_BLOCKS))
    warm_up = [_request(n * WARM_UP_S / ADAPTERS, n, ()) for n in range(ADAPTERS)]
    return warm_up + [
        _request(float(t), int(n), blocks) for t, n in zip(times, chosen, strict=True)
    ]


def _request(t_s: float, adapter: int, blocks: tuple[str, ...]) -> TraceRequest:
    return TraceRequest(
        t_s=t_s,
        tenant=f"t{adapter}",
        adapter=str(adapter),
        rank=RANK,
        prompt_tokens=len(blocks) * BLOCK_TOKENS + OWN_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        prefix_blocks=blocks,
        sla_class="default",
    )


def mean_ttft_ms(records: Sequence[RequestRecord]) -> float:
    """Of what is judged. Raises BenchError when a request failed."""
    failed = [record.error for record in records if record.error]
    if failed:
        raise BenchError(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    return fmean(record.ttft_ms or 0.0 for record in records[ADAPTERS:])


def simulated(timing: TimingModel, trace: Sequence[TraceRequest], policy: str) -> float:
    setup = Setup(timing, ARENA_PAGES * timing.page_bytes, BLOCK_TOKENS, LIMITS)
    return mean_ttft_ms(simulate(setup, make_policy(policy), trace).records)


async def live(
    options: Options, refs: Sequence[AdapterRef], trace: Sequence[TraceRequest], policy: str
) -> float:
    requests = [
        LiveRequest(
            each.t_s,
            tenant_of(each.tenant),
            prompt_of(each, number, BLOCK_TOKENS),
            each.output_tokens,
            refs[int(each.adapter or 0)],
        )
        for number, each in enumerate(trace)
    ]
    settings = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}
    settings |= {"eviction_policy": policy, "arena_bytes": ARENA_PAGES * page_bytes(options.model)}
    async with live_engine(options.model, options.scratch, **settings) as engine:
        return mean_ttft_ms(await engine.play(requests))


def run(options: Options) -> Outcome:
    if options.timing is None:
        timing = calibrate_engine(options.model)
    else:
        timing = read_timing(options.timing)
    refs = make_adapters(options.scratch, options.model, [RANK] * ADAPTERS)
    ttft_ms: dict[str, dict[str, list[float]]] = {p: {"live": [], "sim": []} for p in POLICIES}
    for number in range(options.rounds or ROUNDS):
        seed = options.seed + number
        trace = make_trace(seed)
        order = list(POLICIES)
        random.Random(seed).shuffle(order)
        for policy in order:
            ttft_ms[policy]["sim"].append(simulated(timing, trace, policy))
            ttft_ms[policy]["live"].append(asyncio.run(live(options, refs, trace, policy)))
    return summarise(ttft_ms, {"timing": timing.source})


def same_order(medians: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether both list the policies in one order."""
    orders = [sorted(medians, key=lambda p: medians[p][where]) for where in ("live", "sim")]
    return orders[0] == orders[1]


def summarise(ttft_ms: dict[str, dict[str, list[float]]], details: dict[str, Any]) -> Outcome:
    medians = {p: {where: median(ms) for where, ms in both.items()} for p, both in ttft_ms.items()}
    rounds = range(len(next(iter(ttft_ms.values()))["live"]))
    by_round = [
        {p: {where: ms[n] for where, ms in both.items()} for p, both in ttft_ms.items()}
        for n in rounds
    ]
    same = sum(map(same_order, by_round))
    return Outcome(
        claims=[
            Claim("same order by median TTFT (1 is yes)", float(same_order(medians)), "at least", 1)
        ],
        columns=("policy", "mean TTFT live, ms", "simulated, ms", "live over simulated"),
        rows=[(p, *both.values(), both["live"] / both["sim"]) for p, both in medians.items()],
        details={**details, "mean_ttft_ms": ttft_ms, "rounds_of_same_order": same},
    )


EXPERIMENT = Experiment(
    "live-order", "the order of eviction policies on the live engine and in the simulator", run
)
