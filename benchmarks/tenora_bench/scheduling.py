"""What `schedule()` and `commit()` cost with a full batch and a long queue, without a model; run
with `python -m tenora_bench.scheduling [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenora_bench.machine import machine
from tenora_engine.config import LORA_MODULES, EngineConfig, ModelInfo, ResolvedConfig
from tenora_engine.events import Residency
from tenora_engine.memory.arena import Arena
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling.classes import CLASS_WEIGHTS
from tenora_engine.scheduling.plan import StepPlan, StepResult
from tenora_engine.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from tenora_engine.adapters.loader import LoadResult

RUNNING = 256
WAITING = 2000
TENANTS = 200
STEP_S = 0.005  # of the clock that the scheduler sees
STEPS = 300
_VOCAB = 1000


class NeverLoads:
    """A loader whose loads never end: who needs an adapter is looked at and passed over in every
    step."""

    on_complete: Callable[[], None] | None = None

    def start(self, ref: AdapterRef) -> None:
        pass

    def take_completed(self) -> list[LoadResult]:
        return []

    def residency(self, ref: AdapterRef) -> Residency:
        return "store"

    def forget(self, digest: str) -> None:
        pass

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def measure(adapter_part: float, seed: int = 0) -> dict[str, float]:
    """Milliseconds of a step, with RUNNING running (about one in 64 ends in each step and another
    starts) and WAITING waiting, `adapter_part` of these for adapters that do not come."""
    draw = random.Random(seed)
    config = _config()
    now_s = 1000.0
    memory = MemoryManager(config, Arena.allocate(config), clock=lambda: now_s)
    scheduler = Scheduler(config, memory, NeverLoads(), lambda: now_s)
    number = 0
    schedule_ms: list[float] = []
    commit_ms: list[float] = []
    while len(schedule_ms) < STEPS:
        while scheduler.book.num_waiting < WAITING:
            part = adapter_part if len(scheduler.book.running) >= RUNNING else 0.0
            scheduler.submit(_request(draw, number, now_s, part))
            number += 1
        started = time.thread_time()
        plan = scheduler.schedule()
        scheduled = time.thread_time()
        scheduler.commit(plan, _result(plan), STEP_S)
        committed = time.thread_time()
        now_s += STEP_S
        if len(plan.scheduled) >= RUNNING - 8:
            schedule_ms.append((scheduled - started) * 1000)
            commit_ms.append((committed - scheduled) * 1000)
    return {
        "schedule_p50_ms": statistics.median(schedule_ms),
        "schedule_p99_ms": statistics.quantiles(schedule_ms, n=100)[98],
        "commit_p50_ms": statistics.median(commit_ms),
        "commit_p99_ms": statistics.quantiles(commit_ms, n=100)[98],
    }


def _config() -> ResolvedConfig:
    engine = EngineConfig(
        model="none",
        served_name="none",
        dtype="float32",
        max_running=RUNNING,
        max_step_tokens=2048,
        max_prefill_chunk=512,
        max_waiting=4 * WAITING,
        max_tenant_waiting=4 * WAITING,
        max_adapters=4,
        max_rank=8,
    )
    model = ModelInfo(
        id="none",
        architecture="LlamaForCausalLM",
        num_layers=1,
        hidden=4,
        intermediate=8,
        heads=1,
        kv_heads=1,
        head_dim=4,
        vocab=_VOCAB,
        context_tokens=4096,
        dtype="float32",
        weight_bytes=4000,
        modules=dict.fromkeys(LORA_MODULES, (4, 4)),
        eos_token_ids=(),
    )
    page_elements = 8 * engine.block_tokens
    return ResolvedConfig(
        engine=engine,
        model=model,
        page_elements=page_elements,
        page_bytes=4 * page_elements,
        num_pages=20_000,
        workspace_bytes=0,
    )


def _request(
    draw: random.Random, number: int, now_s: float, adapter_part: float
) -> GenerationRequest:
    name = f"t{draw.randrange(TENANTS)}"
    adapter = None
    if draw.random() < adapter_part:
        adapter = AdapterRef(f"sha256:{draw.randrange(1000)}", 8)
    return GenerationRequest(
        request_id=str(number),
        tenant=Tenant(
            key=name,
            namespace=name,
            tier=draw.choice(list(CLASS_WEIGHTS)),
            ttft_ms=draw.choice([None, 500.0, 2000.0]),
            tpot_ms=draw.choice([None, 50.0]),
        ),
        prompt_token_ids=[draw.randrange(_VOCAB) for _ in range(draw.randrange(50, 500))],
        sampling=SamplingParams(max_tokens=draw.randrange(1, 128)),
        adapter=adapter,
        arrival_s=now_s,
    )


def _result(plan: StepPlan) -> StepResult:
    tokens = [[1] if item.samples else [] for item in plan.scheduled]
    return StepResult(tokens, [None] * len(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    results: dict[str, Any] = {
        f"{part:.0%} of the queue waits for adapters": measure(part) for part in (0.0, 0.5, 0.9)
    }
    for name, figures in results.items():
        print(name, {key: round(value, 3) for key, value in figures.items()})
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), "scheduling": results}, indent=2))


if __name__ == "__main__":
    main()
