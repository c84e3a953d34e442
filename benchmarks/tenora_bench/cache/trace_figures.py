"""What a trace is like, by plain counting: no engine, no clock."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from tenora_bench.cache.timing import TimingModel
from tenora_bench.trace import TraceRequest


def trace_figures(
    trace: Sequence[TraceRequest], prefix_block_tokens: int, timing: TimingModel
) -> dict[str, Any]:
    """`top_adapter_share`, `gap_cv`, mean lengths, the hit rate of a cache which forgets nothing,
    and `working_set_bytes`: all adapters and all blocks that more than one request names."""
    adapters = Counter((r.tenant, r.adapter) for r in trace if r.adapter is not None)
    return {
        "requests": len(trace),
        "seconds": trace[-1].t_s - trace[0].t_s,
        "tenants": len({request.tenant for request in trace}),
        "adapters": len(adapters),
        "top_adapter_share": max(adapters.values(), default=0) / len(trace),
        "gap_cv": gap_cv([request.t_s for request in trace]),
        "mean_prompt_tokens": statistics.fmean(r.prompt_tokens for r in trace),
        "mean_output_tokens": statistics.fmean(r.output_tokens for r in trace),
        "infinite_cache_hit_rate": infinite_hit_tokens(trace, prefix_block_tokens)
        / sum(request.prompt_tokens for request in trace),
        "working_set_bytes": working_set_bytes(trace, prefix_block_tokens, timing),
    }


def gap_cv(times_s: Sequence[float]) -> float:
    """Coefficient of variation of the gaps between arrivals."""
    gaps = [later - sooner for sooner, later in pairwise(times_s)]
    if len(gaps) < 2 or not any(gaps):
        return 0.0
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def infinite_hit_tokens(trace: Sequence[TraceRequest], prefix_block_tokens: int) -> int:
    """Prompt tokens that a cache which forgets nothing, and has each block as soon as it was asked
    for, would have had already; the last token of a prompt is always computed."""
    seen: set[tuple[str, str | None, tuple[str, ...]]] = set()
    hits = 0
    for request in trace:
        known = 0
        for path in _paths(request, prefix_block_tokens):
            if path not in seen:
                seen.add(path)
            elif len(path[2]) == known + 1:
                known += 1
        hits += known * prefix_block_tokens
    return hits


def working_set_bytes(
    trace: Sequence[TraceRequest], prefix_block_tokens: int, timing: TimingModel
) -> int:
    ranks = {(r.tenant, r.adapter): r.rank for r in trace if r.adapter is not None}
    uses = Counter(path for r in trace for path in _paths(r, prefix_block_tokens))
    shared = sum(1 for count in uses.values() if count > 1)
    pages = -(-prefix_block_tokens // timing.block_tokens)
    adapters = sum(map(cache(timing.adapter_bytes), ranks.values()))
    return adapters + shared * pages * timing.page_bytes


def _paths(
    request: TraceRequest, prefix_block_tokens: int
) -> list[tuple[str, str | None, tuple[str, ...]]]:
    """Each block of a request with all before it: what makes a cached block what it is."""
    usable = (request.prompt_tokens - 1) // prefix_block_tokens
    blocks = request.prefix_blocks[:usable]
    return [(request.tenant, request.adapter, blocks[: end + 1]) for end in range(len(blocks))]
