"""Calibration: a TimingModel from a short run of the engine on this machine. It times whole steps
from outside and fits the model's coefficients to them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from tenora_bench.adapters import publish_adapters
from tenora_bench.cache.timing import (
    StepCosts,
    StepFeatures,
    TierCosts,
    TimingModel,
    step_features,
)
from tenora_bench.machine import machine
from tenora_bench.step import Workload, build, requests
from tenora_engine.engine import Engine
from tenora_engine.machine import usable_cpus
from tenora_engine.request import AdapterRef
from tenora_engine.scheduling.loads import Loader

RANKS = (8, 64)  # two sizes: a latency and a bandwidth
ADAPTERS = 8
STREAMS = (1, 4, 12)
PROMPT_TOKENS = (16, 120, 480)
DECODE_STEPS = 10
ROUNDS = 3


@dataclass(frozen=True)
class TimedStep:
    features: StepFeatures
    seconds: float


def calibrate_engine(model: Path, threads: int | None = None) -> TimingModel:
    """Steps of one to sixteen sequences with short and long prompts, base only and with distinct
    adapters, and loads of adapters of two ranks; about a minute with a small model."""
    load = Workload(
        model=model,
        dtype="bfloat16",
        threads=threads or usable_cpus(),
        prompt_tokens=0,
        rounds=1,
        steps=DECODE_STEPS,
    )
    with tempfile.TemporaryDirectory(prefix="tenora-calibration-") as folder:
        store = Path(folder) / "store"
        store.mkdir()
        refs = publish_adapters(Path(folder) / "adapters", store, model, ADAPTERS, RANKS)
        engine = build(load, max(STREAMS), store)
        loads = _time_loads(engine._loader, refs)
        steps: list[TimedStep] = []
        for streams, tokens, adapters in product(STREAMS, PROMPT_TOKENS, ([], refs)):
            waves = [_time_wave(engine, load, streams, tokens, adapters) for _ in range(ROUNDS)]
            steps += least_disturbed(waves)
        host = _time_copy(engine, refs)
        engine.close()
    costs = fit_steps(steps)
    found = machine()
    return TimingModel(
        name=f"{model.name} on {found['cpu']}",
        source=f"measured {found['date']}, {load.threads} threads, {found['kernels']} kernels, "
        f"median error of a step {100 * median_error(costs, steps):.0f}%",
        model=engine.config.model,
        step=costs,
        host=host,
        store=fit_tier(loads, engine.config.engine.loader_threads),
        block_tokens=engine.config.engine.block_tokens,
    )


def least_disturbed(waves: Sequence[Sequence[TimedStep]]) -> list[TimedStep]:
    """Of each step of a wave that was run several times, the quickest."""
    return [min(same, key=lambda step: step.seconds) for same in zip(*waves, strict=True)]


def fit_steps(steps: Sequence[TimedStep]) -> StepCosts:
    """Least squares of the relative errors, no coefficient below zero."""
    rows = np.array([step.features.row() for step in steps])
    return StepCosts(*_fit(rows, np.array([step.seconds for step in steps])))


def fit_tier(loads: Sequence[tuple[int, float]], parallel: int) -> TierCosts:
    """`loads`: (bytes, seconds)."""
    rows = np.array([[1.0, float(num_bytes)] for num_bytes, _ in loads])
    latency_s, byte_s = _fit(rows, np.array([seconds for _, seconds in loads]))
    return TierCosts(latency_s, 1.0 / max(byte_s, 1e-15), parallel)


def median_error(costs: StepCosts, steps: Sequence[TimedStep]) -> float:
    """Of what the coefficients say, relative to what was measured."""
    rows = np.array([step.features.row() for step in steps])
    coefficients = np.array([getattr(costs, name) for name in StepCosts.__struct_fields__])
    seconds = np.array([step.seconds for step in steps])
    return float(np.median(np.abs(rows @ coefficients - seconds) / seconds))


def _fit(rows: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Non-negative coefficients: while one is negative, the most negative is left out."""
    scaled = rows / seconds[:, None]
    size = np.abs(scaled).max(axis=0)
    size[size == 0] = 1.0
    kept = list(range(rows.shape[1]))
    while kept:
        found = np.linalg.lstsq(scaled[:, kept] / size[kept], np.ones(len(seconds)), rcond=None)[0]
        if found.min() >= 0:
            break
        del kept[int(found.argmin())]
    result = np.zeros(rows.shape[1])
    if kept:
        result[kept] = found / size[kept]
    return [float(value) for value in result]


def _time_wave(
    engine: Engine, load: Workload, streams: int, tokens: int, adapters: Sequence[AdapterRef]
) -> list[TimedStep]:
    """Each step of so many requests from their prefill on."""
    load = Workload(load.model, load.dtype, load.threads, tokens, load.rounds, load.steps)
    name = f"{streams}/{tokens}/{len(adapters)}"
    submitted = requests(load, name, streams, engine.config.model.vocab, adapters)
    for request in submitted:
        engine.submit(request)
    _settle(engine, {r.adapter.digest for r in submitted if r.adapter is not None})
    timed: list[TimedStep] = []
    decoding = 0
    while decoding < DECODE_STEPS:
        started = time.perf_counter()
        plan = engine._scheduler.schedule()
        step = engine._scheduler.scheduled(plan)
        features = step_features(step, lambda ref: _adapter_bytes(engine, ref))
        result = engine._executor.execute(plan)
        assert result is not None, "nobody asks for a pause"
        engine._scheduler.commit(plan, result, time.perf_counter() - started)
        timed.append(TimedStep(features, time.perf_counter() - started))
        decoding += step.is_decode
    for request in submitted:
        engine.abort(request.request_id)
    engine.step()
    return timed[1:]  # the first step of a wave also installs adapters


def _settle(engine: Engine, waiting: set[str]) -> None:
    """Until the loads of these adapters have ended."""
    while waiting:
        engine._scheduler.requests.take_loads()
        ready = engine._scheduler.loads
        resident = engine._memory.adapters
        waiting = {d for d in waiting if ready.ready(d) is None and resident.get(d) is None}
        time.sleep(0.001)


def _adapter_bytes(engine: Engine, ref: AdapterRef) -> int:
    resident = engine._memory.adapters.get(ref.digest)
    return 0 if resident is None else len(resident.pages) * engine.config.page_bytes


def _time_loads(loader: Loader, refs: Sequence[AdapterRef]) -> list[tuple[int, float]]:
    """(bytes, seconds) of each adapter's load from the object store, one after another."""
    taken = []
    for ref in refs:
        loader.start(ref, "")
        while not (results := loader.take_completed()):
            time.sleep(0.0005)
        packed = results[0].packed
        if packed is not None:
            taken.append((packed.pages.nbytes, results[0].load_ms / 1e3))
    return taken


def _time_copy(engine: Engine, refs: Sequence[AdapterRef]) -> TierCosts:
    """Host memory to the arena, as an installation copies it."""
    resident = engine._memory.adapters.get(refs[-1].digest)
    count = 16 if resident is None else len(resident.pages)
    pages = engine._executor.memory.arena.adapters[:count]  # type: ignore[attr-defined]
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        pages.clone()
        taken.append(time.perf_counter() - started)
    return TierCosts(latency_s=0.0, bytes_per_s=pages.nbytes / statistics.median(taken))
