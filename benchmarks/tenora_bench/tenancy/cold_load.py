"""A large adapter loaded beside decoding streams: what it adds to their inter-token latency. The
engine is stepped on the calling thread, so that the times are those of its steps."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tenora_bench.adapters import linear_shapes
from tenora_bench.client import BenchError
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome, median_ratio
from tenora_bench.tenancy.live import STORE, make_adapters, tenant_of
from tenora_bench.tenancy.traffic import quantile
from tenora_bench.trace import random_tokens
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent
from tenora_engine.machine import usable_cpus
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.threads import call_in_ending_thread

BYTES = 100e6
STREAMS, STREAM_RANK = 16, 16
PROMPT_TOKENS, NEWCOMER_TOKENS = 64, 16
STEPS = 200  # of a window
ROUNDS = 3
LESS_THAN = 1.1
WARM, HOST, COLD = "on the device", "in host memory", "in the object store"
IDLE_S = 0.0002


def rank_of(model: Path, num_bytes: float) -> int:
    """Of an adapter on all linears in bfloat16 that is so large."""
    layers, shapes = linear_shapes(model)
    row = sum(fan_in + fan_out for fan_in, fan_out in shapes.values())
    return max(round(num_bytes / (layers * row * 2)), 1)


class Streams:
    """Sequences that decode, and the times at which they, all in one step, got their tokens."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.step_s: list[float] = []
        self._ended_s: dict[str, float] = {}

    def submit(
        self,
        name: str,
        tenant: Tenant,
        prompt_tokens: int,
        output_tokens: int,
        adapter: AdapterRef,
    ) -> None:
        self.engine.submit(
            GenerationRequest(
                request_id=name,
                tenant=tenant,
                prompt_token_ids=random_tokens(prompt_tokens, name),
                sampling=SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True),
                adapter=adapter,
            )
        )

    def step(self) -> None:
        """One step, or a short sleep where there is nothing to do. Raises BenchError for a request
        that failed."""
        if not self.engine.has_work:
            time.sleep(IDLE_S)
            return
        events = self.engine.step()
        self.step_s.append(time.perf_counter())
        for event in events:
            if isinstance(event, FinishEvent):
                self._ended_s[event.request_id] = self.step_s[-1]
                if event.error:
                    raise BenchError(f"{event.request_id} failed: {event.error}")

    def step_until_ended(self, name: str) -> float:
        """Returns when it ended."""
        while name not in self._ended_s:
            self.step()
        return self._ended_s[name]


def run(options: Options) -> Outcome:
    rank = rank_of(options.model, BYTES)
    refs = make_adapters(options.scratch, options.model, [STREAM_RANK] * STREAMS + [rank] * 3)
    own, adapters = refs[:STREAMS], dict(zip((WARM, HOST, COLD), refs[STREAMS:], strict=True))
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in adapters}
    with stepped(options, rank) as engine:
        for kind in found:  # the first use of memory is not judged
            window(engine, own, f"{options.seed}/warm-up/{kind}", adapters, kind)
        for number in range(options.rounds or ROUNDS):
            order = list(found)
            random.Random(f"{options.seed}/{number}").shuffle(order)
            for kind in order:
                name = f"{options.seed}/{number}/{kind}"
                found[kind].append(window(engine, own, name, adapters, kind))
    return summarise(found, rank)


@contextmanager
def stepped(options: Options, rank: int) -> Iterator[Engine]:
    config = EngineConfig(
        model=str(options.model),
        served_name=options.model.name,
        memory_bytes=3 * 1024**3,
        max_context_tokens=4096,
        max_rank=max(rank, 128),
        max_running=STREAMS + 1,
        max_adapters=STREAMS + 3,
        host_adapter_bytes=1024**3,
        prefix_caching=False,  # each window writes to the pages of the one before
        object_store=str(options.scratch / STORE),
    )
    torch.set_num_threads(usable_cpus())
    engine = call_in_ending_thread(lambda: build_engine(config))
    try:
        yield engine
    finally:
        engine.close()


def start(engine: Engine, own: Sequence[AdapterRef], seed: str) -> Streams:
    """Streams that decode, each with its own adapter, until they are aborted. Their prompts differ
    in length, so that not all of them need a new page in the same step."""
    streams = Streams(engine)
    output_tokens = engine.config.model.context_tokens - PROMPT_TOKENS - len(own)
    for number, adapter in enumerate(own):
        tokens = PROMPT_TOKENS + number
        streams.submit(f"{seed}/{number}", tenant_of("streams"), tokens, output_tokens, adapter)
    running = engine._scheduler.running
    while len(running) < len(own) or any(s.num_output < 4 for s in running):
        streams.step()
    return streams


def window(
    engine: Engine, own: Sequence[AdapterRef], name: str, adapters: dict[str, AdapterRef], kind: str
) -> dict[str, float]:
    """STEPS steps of new streams, at the beginning of which a newcomer asks for one token. What is
    not answered within them is waited for, but not judged."""
    streams = start(engine, own, name)
    ask(streams, f"{name}/before", adapters[HOST if kind == HOST else WARM])
    streams.step_until_ended(f"{name}/before")
    if kind == HOST:
        engine._memory.drop_adapter(adapters[HOST].digest)
    streams.step_s = streams.step_s[-1:]
    ask(streams, f"{name}/newcomer", adapters[kind])
    while len(streams.step_s) <= STEPS:
        streams.step()
    judged_s = streams.step_s[: STEPS + 1]
    answered_s = streams.step_until_ended(f"{name}/newcomer")
    for number in range(STREAMS):
        engine.abort(f"{name}/{number}")
    engine.forget_adapter("newcomer", adapters[COLD].digest)
    engine.step()
    gaps_ms = [(after - before) * 1e3 for before, after in pairwise(judged_s)]
    return {
        "p50_gap_ms": median(gaps_ms),
        "p99_gap_ms": quantile(gaps_ms, 0.99),
        "max_gap_ms": max(gaps_ms),
        "newcomer_ms": (answered_s - judged_s[0]) * 1e3,
    }


def ask(streams: Streams, name: str, adapter: AdapterRef) -> None:
    """A request of another tenant for one token."""
    streams.submit(name, tenant_of("newcomer"), NEWCOMER_TOKENS, 1, adapter)


def summarise(found: dict[str, list[dict[str, float]]], rank: int) -> Outcome:
    """The claims are medians over the rounds of the ratio of two windows."""

    def ratio(kind: str, figure: str) -> float:
        pairs = zip(found[kind], found[WARM], strict=True)
        return median_ratio([(cold[figure], warm[figure]) for cold, warm in pairs])

    medians: dict[str, dict[str, float]] = {
        kind: {key: median(each[key] for each in windows) for key in windows[0]}
        for kind, windows in found.items()
    }
    details: dict[str, Any] = {"bytes": BYTES, "rank": rank, "windows": found}
    return Outcome(
        claims=[
            Claim(f"{name} inter-token latency, {kind}", ratio(kind, figure), "below", LESS_THAN)
            for kind in (HOST, COLD)
            for name, figure in (("P99", "p99_gap_ms"), ("median", "p50_gap_ms"))
        ],
        columns=(
            "the newcomer's adapter is",
            "gap p50 ms",
            "p99 ms",
            "longest ms",
            "newcomer waits ms",
        ),
        rows=[(kind, *figures.values()) for kind, figures in medians.items()],
        details=details,
    )


EXPERIMENT = Experiment(
    "cold-load",
    f"inter-token latency of {STREAMS} streams beside the load of {BYTES / 1e6:.0f} MB",
    run,
)
