"""What one step of the raw engine costs on this CPU, without HTTP, and where its time goes; behind
`tenora bench step`. All timing is put around the engine's parts from outside."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

import torch
import zmq

from tenora_bench.adapters import publish_adapters
from tenora_bench.client import BenchError
from tenora_bench.machine import machine
from tenora_engine.config import EngineConfig, ModelInfo
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import Event
from tenora_engine.executor import executor as model_executor
from tenora_engine.model import decoder as torch_decoder
from tenora_engine.model import linear
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling import plan
from tenora_engine.threads import call_in_ending_thread
from tenora_engine.transport import messages
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.serving import EngineServer
from tenora_engine.transport.wire import encode

P = ParamSpec("P")
T = TypeVar("T")

PHASES = (
    "gemm",
    "attention",
    "sgmv",
    "elementwise",
    "waiting",
    "lm head",
    "sampling",
    "batch building",
    "scheduling",
    "messaging",
    "rest",
)
"""`gemm` to `waiting` are the decoder's layers: `elementwise` is norms, rope, KV writes and
activations, `waiting` is for the other threads (compiled decoder only). `scheduling` includes the
commit. `rest` is what lies between them all."""

WARM_UP_STEPS = 3
READ_BYTES = 512 * 1024**2  # sixteen times a level-3 cache of 32 MB


@dataclass(frozen=True)
class Workload:
    """Decode steps to time: `rounds` turns of `steps` each, after a prefill."""

    model: Path
    dtype: str
    threads: int
    prompt_tokens: int
    rounds: int
    steps: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"model": self.model.name}


def build(load: Workload, streams: int, store: Path) -> Engine:
    """An engine for `streams` sequences in flight; steps run on the calling thread."""
    torch.set_num_threads(load.threads)
    config = EngineConfig(
        model=str(load.model),
        served_name=load.model.name,
        dtype="float32" if load.dtype == "float32" else "bfloat16",
        memory_bytes=6 * 1024**3,
        max_context_tokens=2048,
        max_running=streams,
        max_adapters=64,
        object_store=str(store),
        prefix_caching=False,
        max_draft_tokens=0,  # a step is a token of each sequence
    )
    return call_in_ending_thread(lambda: build_engine(config))


def measure_steps(
    load: Workload, folder: Path, streams: Sequence[int], adapters: int, ranks: Sequence[int]
) -> dict[str, Any]:
    """One cell for each number of streams, base only and (unless `adapters` is 0) with that many
    distinct adapters in turn; see `time_steps`."""
    store = folder / "store"
    store.mkdir()
    refs = publish_adapters(folder / "adapters", store, load.model, adapters, ranks)
    engine = build(load, max(streams), store)
    vocab = engine.config.model.vocab
    bandwidths = [read_bandwidth()]
    cells = []
    for count in streams:
        for name, chosen in (("base", []), ("adapters", refs)) if refs else (("base", []),):
            submitted = requests(load, name, count, vocab, chosen)
            cells.append({"name": name, **time_steps(engine, submitted, load)})
            bandwidths.append(read_bandwidth())
    engine.close()
    bandwidth = statistics.median(bandwidths)
    num_bytes = weight_bytes_read(engine.config.model)
    for cell in cells:
        if (cell["name"], cell["streams"]) == ("base", 1):
            cell["of_weight_floor"] = num_bytes / bandwidth * 1e3 / cell["step_ms"]
    return {
        "machine": machine(),
        "workload": load.as_dict() | {"adapters": adapters, "ranks": list(ranks)},
        "read_gb_per_s": bandwidth / 1e9,
        "weight_bytes": num_bytes,
        "cells": cells,
    }


def read_bandwidth() -> float:
    """Bytes a second at which torch's threads, as many as the engine's, sum up a buffer that no
    cache holds: the median of five."""
    buffer = torch.ones(READ_BYTES // 4)
    taken = []
    for _ in range(6):
        started = time.perf_counter()
        buffer.sum()
        taken.append(time.perf_counter() - started)
    return READ_BYTES / statistics.median(taken[1:])


def weight_bytes_read(model: ModelInfo) -> int:
    """Weights that a decode step reads once: all linears and the LM head."""
    layer = sum(inputs * outputs for inputs, outputs in model.modules.values())
    elements = model.num_layers * layer + model.vocab * model.hidden
    return elements * (2 if model.dtype == "bfloat16" else 4)


class PhaseClock:
    """Charges each moment to the innermost of the wrapped calls that run."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner_s = [0.0]  # by depth, time already charged to calls within

    def wrap(self, phase: str, call: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            self._inner_s.append(0.0)
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                taken = time.perf_counter() - started
                self.seconds[phase] += taken - self._inner_s.pop()
                self._inner_s[-1] += taken

        return timed

    def take(self) -> dict[str, float]:
        """What has been charged since the last call."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken


@contextmanager
def phases_timed(engine: Engine, clock: PhaseClock) -> Iterator[None]:
    """`clock` around the engine's parts. A decoder that runs all layers in one call has a clock of
    its own (`take_seconds`), read after each step."""
    scheduler, executor = engine._scheduler, engine._executor
    assert isinstance(executor, model_executor.ModelExecutor)
    decoder = executor._decoder
    wrapped: list[tuple[str, Any, str]] = [
        ("scheduling", scheduler, "schedule"),
        ("scheduling", scheduler, "commit"),
        ("batch building", executor._builder, "build"),
        ("sampling", plan, "plan_sampling"),
        ("sampling", model_executor, "sample"),
    ]
    if hasattr(decoder, "take_seconds"):
        decoder.take_seconds()
    else:
        wrapped += [
            ("lm head", decoder, "logits"),
            ("elementwise", decoder, "forward"),
            *(("gemm", form, "__call__") for form in linear.FORMS),
            ("sgmv", linear, "sgmv"),
            ("attention", torch_decoder, "paged_attention"),
        ]
    with ExitStack() as stack:
        for phase, owner, name in wrapped:
            timed = clock.wrap(phase, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, timed))
        yield


class Messaging:
    """The way of a step's events out of the engine process, by EngineServer's own code, to one
    client of which nothing but its socket is there."""

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._client = self._context.socket(zmq.DEALER)
        self._socket.bind(f"ipc://{folder}/step.sock")
        self._client.connect(f"ipc://{folder}/step.sock")
        self._client.send(encode(messages.Ping()))
        self._identity, _ = self._socket.recv_multipart()
        self._server = EngineServer(self._socket, "", UsageOutbox(None))
        self._server._clients.greet(self._identity)

    def add(self, request: GenerationRequest) -> None:
        self._server._active.add(request, self._identity)

    def send(self, events: list[Event]) -> None:
        self._server._hand_over(events)
        self._server._run_handed()
        self._server._clients.note_read(self._identity, None)

    def drain(self) -> int:
        """Read what has arrived; returns the number of messages."""
        count = 0
        while self._client.poll(1):
            self._client.recv()
            count += 1
        return count

    def close(self) -> None:
        self._context.destroy(linger=0)


def requests(
    load: Workload, name: str, streams: int, vocab: int, adapters: Sequence[AdapterRef] = ()
) -> list[GenerationRequest]:
    """Greedy requests with random prompts, the adapters in turn; they outlast all steps."""
    draw = random.Random(name)
    output_tokens = 2 * load.rounds * load.steps + load.prompt_tokens + 512
    return [
        GenerationRequest(
            request_id=f"{name}/{number}",
            tenant=Tenant(key="bench", namespace="bench"),
            prompt_token_ids=[draw.randrange(vocab) for _ in range(load.prompt_tokens)],
            sampling=SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True),
            adapter=adapters[number % len(adapters)] if adapters else None,
        )
        for number in range(streams)
    ]


def start_decoding(engine: Engine, submitted: Sequence[GenerationRequest]) -> None:
    """Submit, and step until every sequence decodes and the caches have seen a few steps. Raises
    BenchError when one has ended before all decode."""
    for request in submitted:
        engine.submit(request)
    running, requests = engine._scheduler.running, engine._scheduler.requests
    while len(running) < len(submitted) or any(not s.num_output for s in running):
        engine.step()
        if len(running) + requests.num_waiting < len(submitted):
            raise BenchError("a sequence has ended before all of them were decoding")
        if requests.num_waiting:
            time.sleep(0.005)  # adapters are being loaded, by a thread that needs the interpreter
    for _ in range(WARM_UP_STEPS):
        engine.step()


def end(engine: Engine, submitted: Sequence[GenerationRequest]) -> None:
    for request in submitted:
        engine.abort(request.request_id)
    engine.step()


def time_steps(
    engine: Engine, submitted: Sequence[GenerationRequest], load: Workload
) -> dict[str, Any]:
    """Decode steps of `submitted`, in each round some with the clock around the parts and as
    many without, in turns. Milliseconds, medians: `step_ms` of those without, `phases_ms` by
    PHASES, and `clock_ms`, what the clock itself adds to a step."""
    plain: list[float] = []
    timed: list[dict[str, float]] = []
    clock = PhaseClock()
    with tempfile.TemporaryDirectory(prefix="tenora-step-") as folder:
        out = Messaging(Path(folder))
        for request in submitted:
            out.add(request)
        start_decoding(engine, submitted)
        for _ in range(load.rounds):
            for _ in range(load.steps):
                started = time.perf_counter()
                out.send(engine.step())
                plain.append(time.perf_counter() - started)
                out.drain()
            with phases_timed(engine, clock):
                for _ in range(load.steps):
                    timed.append(_timed_step(engine, out, clock))
                    out.drain()
        end(engine, submitted)
        out.close()
    step_s = statistics.median(plain)
    phases = {name: statistics.median(step[name] for step in timed) for name in PHASES}
    clock_s = statistics.median(sum(step.values()) for step in timed) - step_s
    return {
        "streams": len(submitted),
        "step_ms": step_s * 1e3,
        "tokens_per_s": len(submitted) / step_s,
        "clock_ms": clock_s * 1e3,
        "phases_ms": {name: seconds * 1e3 for name, seconds in phases.items()},
    }


def _timed_step(engine: Engine, out: Messaging, clock: PhaseClock) -> dict[str, float]:
    """Seconds of one step by PHASES; they add up to the step."""
    clock.take()
    started = time.perf_counter()
    events = engine.step()
    clock.wrap("messaging", out.send)(events)
    whole_s = time.perf_counter() - started
    seconds = dict.fromkeys(PHASES, 0.0) | clock.take()
    executor: Any = engine._executor
    decoder = executor._decoder
    if hasattr(decoder, "take_seconds"):
        for part, taken_s in decoder.take_seconds().items():
            seconds[part] += taken_s
    seconds["rest"] = 0.0
    seconds["rest"] = whole_s - sum(seconds.values())
    return seconds
