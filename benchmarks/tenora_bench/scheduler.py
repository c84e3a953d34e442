"""What `schedule` and `commit` themselves take with a full batch and a long queue, without a model;
behind `tenora bench scheduler`."""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tenora_bench.machine import machine
from tenora_engine.adapters.occupancy import Occupied
from tenora_engine.config import LORA_MODULES, EngineConfig, ModelInfo, ResolvedConfig
from tenora_engine.events import AdapterResidency, Residency
from tenora_engine.garbage import seldom_collect
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.memory.policies import make_policy
from tenora_engine.memory.pool import LIVE_KV, PagePool
from tenora_engine.memory.prefix import BASE, PrefixNode, PrefixTree, encode_tokens, num_blocks
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling.class_queue import CLASS_WEIGHTS
from tenora_engine.scheduling.plan import PlanWriter
from tenora_engine.scheduling.scheduler import Scheduler
from tenora_engine.step import StepPlan, StepResult

if TYPE_CHECKING:
    from tenora_engine.adapters.loader import LoadResult

TENANTS = 200
STEP_S = 0.005  # of the clock that the scheduler sees
_PAGES_A_SEQUENCE = 78
_VOCAB = 1000
_BLOCK_TOKENS = 16


class NeverLoads:
    """A loader whose loads never end: who needs an adapter is looked at and passed over in every
    step."""

    on_complete: Callable[[], None] | None = None
    shared_prefix = ""

    def start(self, ref: AdapterRef, tenant_key: str) -> None:
        pass

    def cancel(self, digest: str) -> bool:
        return False

    def used(self, digest: str, tenant_key: str) -> None:
        """Nobody else is told."""

    def take_occupancy(self) -> Occupied:
        return {}

    def take_completed(self) -> list[LoadResult]:
        return []

    def residency(self, ref: AdapterRef) -> Residency:
        return "store"

    def tier(self, digest: str) -> Residency:
        return "store"

    def take_moved(self) -> set[str]:
        return set()

    def residencies(self) -> list[AdapterResidency]:
        return []

    def forget(self, digest: str) -> None:
        pass

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class Load:
    """Requests of TENANTS tenants in all classes; the first `num_blocked` are for adapters that
    never come. With `shares` every tenant has a memory share of its own."""

    def __init__(self, num_blocked: int, shares: bool, seed: int) -> None:
        self._draw = random.Random(seed)
        self._num_blocked = num_blocked
        self._share = 0.5 / TENANTS if shares else 0.0
        self._number = 0

    def request(self, now_s: float) -> GenerationRequest:
        draw = self._draw
        self._number += 1
        name = f"t{draw.randrange(TENANTS)}"
        adapter = None
        if self._number <= self._num_blocked:
            adapter = AdapterRef(f"sha256:{draw.randrange(1000)}", 8)
        return GenerationRequest(
            request_id=str(self._number),
            tenant=Tenant(
                key=name,
                namespace=name,
                tier=draw.choice(list(CLASS_WEIGHTS)),
                ttft_ms=draw.choice([None, 500.0, 2000.0]),
                tpot_ms=draw.choice([None, 50.0]),
                min_memory_share=self._share,
            ),
            prompt_token_ids=[draw.randrange(_VOCAB) for _ in range(draw.randrange(50, 500))],
            sampling=SamplingParams(max_tokens=draw.randrange(1, 128)),
            adapter=adapter,
            arrival_s=now_s,
        )


def measure_scheduler(
    running: int, waiting: int, steps: int, policy: str, step_mb: int = 0
) -> dict[str, Any]:
    """Milliseconds of processor time of a step, of which are deciding on it and writing it as a
    plan, with `running` sequences (about one in 64 ends in each step and another starts) and
    `waiting` in the queue, by what the queue waits for. The memory is full: each page is another's
    before. So much as `step_mb` is read between `schedule` and `commit`, as a model reads its
    weights: without it both find in the caches what they had left there."""
    loads = {
        "nothing but its turn": Load(0, shares=False, seed=0),
        "one in 32 for adapters": Load(waiting // 32, shares=False, seed=0),
        "one in 10 for adapters": Load(waiting // 10, shares=False, seed=0),
        "one in 32 for adapters, memory shared out": Load(waiting // 32, shares=True, seed=0),
    }
    queues = {
        name: _measure(load, running, waiting, steps, policy, step_mb)
        for name, load in loads.items()
    }
    return {
        "machine": machine(),
        "running": running,
        "waiting": waiting,
        "steps": steps,
        "policy": policy,
        "step_mb": step_mb,
        "queue_waits_for": queues,
        "prefix_match": measure_match(),
    }


class TimedWriter(PlanWriter):
    """Knows what its last plan took to write."""

    last_ms = 0.0

    def write(self, *args: Any, **kwargs: Any) -> StepPlan:
        started = time.thread_time()
        plan = super().write(*args, **kwargs)
        self.last_ms = (time.thread_time() - started) * 1000
        return plan


class _NoCandidates:
    """Of a tree of which nothing is evicted."""

    def offer(self, item: PrefixNode) -> None: ...

    def withdraw(self, item: PrefixNode) -> None: ...


def measure_match(num_tokens: int = 32768, rounds: int = 100) -> dict[str, float]:
    """Milliseconds to find a cached prefix of `num_tokens`, and before it to encode them, which
    is done once a request."""
    draw = random.Random(0)
    tokens = [draw.randrange(_VOCAB) for _ in range(num_tokens + 1)]
    blocks = num_tokens // _BLOCK_TOKENS
    pool = PagePool(blocks)
    tree = PrefixTree(pool, _BLOCK_TOKENS, _NoCandidates())
    root = tree.enter("t0", BASE)
    pages = array("i", pool.try_allocate(blocks, LIVE_KV) or ())
    tree.insert(root, None, encode_tokens(tokens[:-1]), pages, 0.0)
    encode_ms, match_ms = [], []
    for _ in range(rounds):
        started = time.thread_time()
        encoded = encode_tokens(tokens)
        ready = time.thread_time()
        assert num_blocks(tree.match(root, encoded)) == blocks
        encode_ms.append((ready - started) * 1000)
        match_ms.append((time.thread_time() - ready) * 1000)
    return {
        "tokens": num_tokens,
        "encode_p50_ms": statistics.median(encode_ms),
        "match_p50_ms": statistics.median(match_ms),
    }


def _measure(
    load: Load, running: int, waiting: int, steps: int, policy: str, step_mb: int = 0
) -> dict[str, float]:
    config, weights = _config(running, waiting), np.ones(step_mb * 1_000_000, np.int8)
    now_s = 1000.0
    memory = MemoryManager(config, make_policy(policy), clock=lambda: now_s)
    scheduler = Scheduler(config, memory, NeverLoads(), lambda: now_s, is_exact=True)
    writer = TimedWriter(config.engine.block_tokens, config.model.vocab, config.engine.seed)
    scheduler.plans = writer
    for _ in range(200):  # an engine that has run for a while knows what a token takes
        memory.costs.observe_step(config.engine.max_step_tokens, 1, STEP_S)
    seldom_collect()  # as the engine's process does
    schedule_ms: list[float] = []
    decide_ms: list[float] = []
    write_ms: list[float] = []
    commit_ms: list[float] = []
    while len(schedule_ms) < steps:
        _fill(scheduler, load, running, waiting, now_s)
        started = time.thread_time()
        plan = scheduler.schedule()
        schedule_s = time.thread_time() - started
        result = _result(plan)
        weights.max(initial=0)
        started = time.thread_time()
        scheduler.commit(plan, result, STEP_S)
        commit_s = time.thread_time() - started
        now_s += STEP_S
        if memory.allocator.kv_evictions and len(plan.rows) >= running - running // 32:
            schedule_ms.append(schedule_s * 1000)
            decide_ms.append(schedule_ms[-1] - writer.last_ms)
            write_ms.append(writer.last_ms)
            commit_ms.append(commit_s * 1000)
    return {
        "schedule_p50_ms": statistics.median(schedule_ms),
        "of_it_deciding_p50_ms": statistics.median(decide_ms),
        "of_it_writing_p50_ms": statistics.median(write_ms),
        "schedule_p99_ms": statistics.quantiles(schedule_ms, n=100)[98],
        "commit_p50_ms": statistics.median(commit_ms),
        "commit_p99_ms": statistics.quantiles(commit_ms, n=100)[98],
    }


def _fill(scheduler: Scheduler, load: Load, running: int, waiting: int, now_s: float) -> None:
    """The queue as long as it is to be, beside who can start at once."""
    free = running - len(scheduler.running)
    while scheduler.requests.num_waiting < waiting + free:
        scheduler.submit(load.request(now_s))


def _config(running: int, waiting: int) -> ResolvedConfig:
    engine = EngineConfig(
        model="none",
        served_name="none",
        dtype="float32",
        max_running=running,
        max_step_tokens=8 * running,
        max_prefill_chunk=2 * running,
        max_waiting=2 * waiting,
        max_tenant_waiting=2 * waiting,
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
        num_pages=_PAGES_A_SEQUENCE * running,
        workspace_bytes=0,
    )


def _result(plan: StepPlan) -> StepResult:
    tokens = [[1] * count for count in plan.rows.num_samples]
    return StepResult(tokens, [None] * len(tokens))
