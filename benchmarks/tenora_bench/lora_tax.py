"""What adapters add to a decode step, against the bytes that have to be read for them; behind
`tenora bench step --compare-adapters`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenora_bench.adapters import publish_adapters
from tenora_bench.machine import machine
from tenora_bench.step import Workload, build, end, read_bandwidth, requests, start_decoding
from tenora_engine.config import ModelInfo
from tenora_engine.engine import Engine
from tenora_engine.request import AdapterRef
from tenora_engine.scheduling.plan import ScheduledStep
from tenora_engine.step import StepResult

SHARING_STREAMS = 16
"""Fewer adapters than this are also timed in as many streams, which share them."""


def adapter_bytes(model: ModelInfo, adapters: Sequence[AdapterRef]) -> int:
    """What a step reads of these distinct adapters, all of which change all linears."""
    row = sum(inputs + outputs for inputs, outputs in model.modules.values())
    item = 2 if model.dtype == "bfloat16" else 4
    return sum(adapter.rank for adapter in adapters) * row * model.num_layers * item


def measure_taxes(
    load: Workload, folder: Path, counts: Sequence[int], mixed_ranks: Sequence[int]
) -> dict[str, Any]:
    """The tax of each number of distinct adapters, all of rank 8 and of `mixed_ranks` in turn (a
    single one: of the highest), with a stream for each and shared by `SHARING_STREAMS`."""
    most = max(counts)
    store = folder / "store"
    small = publish_adapters(folder / "small", store, load.model, most, [8])
    mixed = publish_adapters(folder / "mixed", store, load.model, most, mixed_ranks)
    highest = publish_adapters(folder / "highest", store, load.model, 1, [max(mixed_ranks)])
    engine = build(load, 2 * max(SHARING_STREAMS, most), store)
    taxes = [
        time_tax(engine, each, streams, load)
        for count in counts
        for streams in sorted({count, max(SHARING_STREAMS, count)})
        for each in (small[:count], mixed[:count] if count > 1 else highest)
    ]
    engine.close()
    return {"machine": machine(), "workload": load.as_dict(), "taxes": taxes}


def time_tax(
    engine: Engine, adapters: Sequence[AdapterRef], streams: int, load: Workload
) -> dict[str, Any]:
    """`streams` on the base model and as many on the adapters run together, and each of the
    engine's plans is run as two steps, the base's rows alone and the adapters' rows alone, which of
    them first in turns. So each pair has the same number of rows and of context tokens, a moment
    apart.

    A round's tax is the median difference of its pairs, and its bytes are judged at the read
    bandwidth measured in the same round; all figures are medians over the rounds.
    """
    model = engine.config.model
    submitted = requests(load, "base", streams, model.vocab)
    submitted += requests(load, "adapters", streams, model.vocab, adapters)
    start_decoding(engine, submitted)
    num_bytes = adapter_bytes(model, adapters)
    rounds = []
    for _ in range(load.rounds):
        pairs = [_pair(engine, base_first=step % 2 == 0) for step in range(load.steps)]
        base_s = statistics.median(base for base, _ in pairs)
        tax_s = statistics.median(adapted - base for base, adapted in pairs)
        bandwidth = read_bandwidth()
        rounds.append(
            {
                "read_gb_per_s": bandwidth / 1e9,
                "base_ms": base_s * 1e3,
                "tax_ms": tax_s * 1e3,
                "bytes_ms": num_bytes / bandwidth * 1e3,
                "tax_over_bytes": tax_s / (num_bytes / bandwidth),
                "speed_of_base": base_s / (base_s + tax_s),
            }
        )
    end(engine, submitted)
    return {
        "streams": streams,
        "adapters": len(adapters),
        "ranks": sorted({adapter.rank for adapter in adapters}),
        "adapter_bytes": num_bytes,
        **{name: statistics.median(each[name] for each in rounds) for name in rounds[0]},
    }


def _pair(engine: Engine, base_first: bool) -> tuple[float, float]:
    """Seconds of one plan's base rows and of its adapter rows, each built and run alone."""
    plan = engine._scheduler.schedule()
    items = engine._scheduler.scheduled(plan).items
    base = [item for item in items if item.sequence.request.adapter is None]
    adapted = [item for item in items if item.sequence.request.adapter is not None]
    writer = engine._scheduler.in_flight.plans
    engine._executor.stage(engine._memory.operations.take_staged())
    engine._executor.execute(writer.write(ScheduledStep(), memory=plan.memory))
    parts = {
        "base": writer.write(ScheduledStep(base)),
        "adapted": writer.write(ScheduledStep(adapted)),
    }
    seconds: dict[str, float] = {}
    results: dict[str, StepResult] = {}
    for name in ("base", "adapted") if base_first else ("adapted", "base"):
        started = time.perf_counter()
        result = engine._executor.execute(parts[name])
        seconds[name] = time.perf_counter() - started
        assert result is not None, "nobody asks for a pause"
        results[name] = result
    together = StepResult(
        results["base"].token_ids + results["adapted"].token_ids,  # the plan has the base first
        results["base"].logprobs + results["adapted"].logprobs,
    )
    engine._scheduler.commit(plan, together, sum(seconds.values()))
    return seconds["base"], seconds["adapted"]
