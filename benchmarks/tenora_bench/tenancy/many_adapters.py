"""Many registered adapters against a few: the output tokens a second that are kept (S-LoRA, section
7, keeps 94.5% with 2000 adapters of rank 8 on an A100)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from numpy.random import default_rng

from tenora_bench.adapters import ATTENTION, AdapterSpec, adapter_bytes, write_adapter
from tenora_bench.cache.workloads import zipf_choice
from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome, median_ratio
from tenora_bench.tenancy.live import STORE, LiveEngine, LiveRequest, live_engine, tenant_of
from tenora_bench.tenancy.traffic import Kind
from tenora_engine.adapters.identity import (
    adapter_digest,
    config_key,
    normalise_config,
    weights_key,
)
from tenora_engine.request import AdapterRef

MANY, FEW = 1000, 5
EXPONENT = 1.0  # of Zipf
RANK = 8
MODULES = ATTENTION  # as in S-LoRA
STREAMS = 16
REQUESTS = 96  # of a run, all there at once
WARM_UP = 400
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64
ROUNDS = 3
KEPT = 0.95
TENANT = tenant_of("bench")


def register(scratch: Path, model: Path, count: int) -> list[AdapterRef]:
    """`count` adapters in the store of `live_engine(model, scratch)`. They differ in their alpha
    and share one file of weights by hard links; to the engine each is an adapter of its own."""
    spec = AdapterSpec("shared", RANK, seed=0, modules=MODULES)
    folder, store = scratch / spec.name, scratch / STORE
    write_adapter(folder, model, spec)
    weights = folder / "adapter_model.safetensors"
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    fields = json.loads((folder / "adapter_config.json").read_text())
    refs = []
    for number in range(count):
        config = normalise_config({**fields, "lora_alpha": 2 * RANK + number / 1000})
        digest = adapter_digest(config, sha256)
        (store / config_key(digest)).parent.mkdir(parents=True)
        (store / config_key(digest)).write_bytes(config)
        os.link(weights, store / weights_key(digest))
        refs.append(AdapterRef(digest, RANK))
    return refs


def run(options: Options) -> Outcome:
    return asyncio.run(_run(options))


async def _run(options: Options) -> Outcome:
    refs = register(options.scratch, options.model, MANY)
    counts = {f"{count} adapters": count for count in (FEW, MANY)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in counts}
    settings = {"max_running": STREAMS, "max_tenant_waiting": 1024}
    async with live_engine(options.model, options.scratch, **settings) as engine:
        warm_up = drawn(refs, f"{options.seed}/warm-up", WARM_UP, (16, 1))
        await engine.play([*warm_up, *drawn(refs[:FEW], "few", FEW, (16, 1))])
        for number in range(options.rounds or ROUNDS):
            for name in counts if number % 2 else reversed(counts):
                found[name].append(
                    await one_run(engine, refs[: counts[name]], f"{options.seed}/{number}")
                )
    return summarise(found, adapter_bytes(options.model, RANK, MODULES))


def drawn(
    refs: Sequence[AdapterRef], seed: str, count: int, tokens: tuple[int, int]
) -> list[LiveRequest]:
    """Requests that are there at once, their adapters by Zipf."""
    chosen = zipf_choice(default_rng(list(seed.encode())), count, len(refs), EXPONENT)
    return [
        Kind(*tokens, refs[adapter]).request(0.0, TENANT, f"{seed}/{len(refs)}/{number}")
        for number, adapter in enumerate(chosen)
    ]


async def one_run(engine: LiveEngine, refs: Sequence[AdapterRef], seed: str) -> dict[str, float]:
    requests = drawn(refs, seed, REQUESTS, (PROMPT_TOKENS, OUTPUT_TOKENS))
    before = (await engine.stats()).counters
    records = await engine.play(requests)
    after = (await engine.stats()).counters
    return {
        "output_tokens_per_s": tokens_per_s(records),
        "distinct_adapters": len({request.adapter for request in requests}),
        "device_hit_rate": fmean(record.residency == "device" for record in records),
        **{
            name: after.get(name, 0.0) - before.get(name, 0.0)
            for name in ("adapter_loads", "loader_store_loads")
        },
    }


def tokens_per_s(records: Sequence[RequestRecord]) -> float:
    """Raises BenchError when a request failed."""
    failed = [record.error for record in records if record.error]
    if failed:
        raise BenchError(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    end_s = max(record.finished_s or 0.0 for record in records)
    seconds = end_s - min(record.sent_s for record in records)
    return sum(record.output_tokens for record in records) / seconds


def distinct(count: int, rows: int = STREAMS) -> float:
    """Expected distinct adapters among so many rows that draw one of `count` by Zipf."""
    weights = [math.pow(rank + 1, -EXPONENT) for rank in range(count)]
    whole = sum(weights)
    return sum(1.0 - math.pow(1.0 - weight / whole, rows) for weight in weights)


def summarise(found: dict[str, list[dict[str, float]]], bytes_each: int) -> Outcome:
    few, many = found.values()
    figure = "output_tokens_per_s"
    kept = median_ratio([(b[figure], a[figure]) for a, b in zip(few, many, strict=True)])
    rows: list[tuple[str | float | None, ...]] = []
    details: dict[str, Any] = {"rank": RANK, "modules": MODULES, "adapter_bytes": bytes_each}
    for (name, runs), count in zip(found.items(), (FEW, MANY), strict=True):
        medians = {key: median(run[key] for run in runs) for key in runs[0]}
        read = distinct(count) * bytes_each / 1e6
        rows.append((name, *medians.values(), distinct(count), read))
        details[name] = {"runs": runs, "expected_distinct_in_a_step": distinct(count)}
    return Outcome(
        claims=[Claim(f"tokens/s with {MANY} adapters over {FEW}", kept, "at least", KEPT)],
        columns=(
            "",
            "output tokens/s",
            "adapters of a run",
            "on the device",
            "loads",
            "from the store",
            "distinct in a step, expected",
            "their MB",
        ),
        rows=rows,
        details=details,
    )


EXPERIMENT = Experiment(
    "many-adapters", f"tokens/s with {MANY} registered adapters (Zipf) against {FEW}", run
)
