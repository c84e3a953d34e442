"""Recorded steps run again, on an executor that has nothing but the recording: by `tenora bench
replay`."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from tenora_bench.client import BenchError
from tenora_bench.machine import machine
from tenora_engine.adapters.pack import deserialise
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import EngineError
from tenora_engine.executor.device_memory import DeviceMemory
from tenora_engine.executor.executor import ModelExecutor
from tenora_engine.executor.interface import Executor
from tenora_engine.executor.recording import Adapter, Done, Failed, Planned, Recording
from tenora_engine.machine import usable_cpus
from tenora_engine.model.loader import load_model
from tenora_engine.step import (
    CancelCopy,
    CopyAdapter,
    FetchKV,
    InstallAdapter,
    StepPlan,
    StepResult,
)
from tenora_engine.threads import call_in_ending_thread

MOST_SHOWN = 20
"""Differences that a report names."""


@dataclass(frozen=True)
class Difference:
    """What one row of a step sampled, then and now."""

    plan: int
    sequence: int  # the recorded engine's number of it
    position: int  # of the first new token in the sequence
    recorded: list[int]
    replayed: list[int]


@dataclass
class Report:
    """What came of a whole recording."""

    plans: int = 0
    failed_plans: int = 0  # whose execution raised when they were recorded: not compared
    rows: int = 0
    tokens: int = 0
    differing_rows: int = 0
    first: list[Difference] = field(default_factory=list)  # at most MOST_SHOWN
    recorded_ms: list[float] = field(default_factory=list)
    replayed_ms: list[float] = field(default_factory=list)

    def compare(self, plan: StepPlan, recorded: StepResult, replayed: StepResult) -> None:
        """Count a plan with rows."""
        if recorded.seconds is not None and replayed.seconds is not None:
            self.recorded_ms.append(recorded.seconds * 1e3)
            self.replayed_ms.append(replayed.seconds * 1e3)
        pairs = zip(recorded.token_ids, replayed.token_ids, strict=True)
        for row, (then, now) in enumerate(pairs):
            self.rows += 1
            self.tokens += len(then)
            if then == now:
                continue
            self.differing_rows += 1
            if len(self.first) < MOST_SHOWN:
                sequence, position = plan.rows.sequence[row], plan.rows.context_len[row]
                self.first.append(Difference(plan.number, sequence, position, then, now))

    def summary(self) -> dict[str, Any]:
        return {
            "machine": machine(),
            "plans": self.plans,
            "failed_plans": self.failed_plans,
            "rows": self.rows,
            "tokens": self.tokens,
            "differing_rows": self.differing_rows,
            "first_differences": [vars(each) for each in self.first],
            "recorded_p50_ms": statistics.median(self.recorded_ms or [0.0]),
            "replayed_p50_ms": statistics.median(self.replayed_ms or [0.0]),
        }


def replay(path: Path, model: Path | None = None) -> Report:
    """Run a recording on a fresh executor, with the model that it names or one of the same shape.

    A step that was preempted runs whole where it began: others between its parts touch nothing of
    its. Copies beside the steps end before the next plan. Raises BenchError when the file or the
    model cannot be used.
    """
    try:
        recording = Recording(path)
        executor = build_executor(recording.config, model)
        try:
            return _run(recording, executor)
        finally:
            executor.close()
    except EngineError as error:
        raise BenchError(str(error)) from error


def build_executor(config: ResolvedConfig, model: Path | None) -> Executor:
    """The recorded engine's, with all its sizes."""
    engine = config.engine
    if model is not None:
        engine = msgspec.structs.replace(engine, model=str(model))
    torch.set_num_threads(engine.threads or usable_cpus())
    loaded = call_in_ending_thread(lambda: load_model(engine))
    theirs, ours = config.model, loaded.info
    if (theirs.modules, theirs.num_layers, theirs.vocab) != (
        ours.modules,
        ours.num_layers,
        ours.vocab,
    ):
        raise BenchError(
            f"{engine.model} is not of the shape that was recorded ({theirs.id}); name the folder "
            "of that model with --model"
        )
    resolved = msgspec.structs.replace(config, engine=engine)
    return ModelExecutor(resolved, loaded, DeviceMemory(resolved))


def _run(recording: Recording, executor: Executor) -> Report:
    report = Report()
    adapters: dict[str, Adapter] = {}
    open_plans: dict[int, tuple[StepPlan, StepResult | Exception]] = {}
    for frame in recording.frames():
        match frame:
            case Adapter():
                adapters[frame.digest] = frame
            case Planned():
                plan = frame.plan
                report.plans += 1
                try:
                    open_plans[plan.number] = plan, _execute(executor, plan, adapters)
                except Exception as error:  # as it may have then; parts of it follow
                    open_plans[plan.number] = plan, error
            case Done(number):
                plan, replayed = open_plans.pop(number)
                if isinstance(replayed, Exception):
                    raise replayed
                if plan.rows:
                    report.compare(plan, frame.result, replayed)
            case Failed(number):
                report.failed_plans += 1
                del open_plans[number]
    return report


def _execute(executor: Executor, plan: StepPlan, adapters: dict[str, Adapter]) -> StepResult:
    named = {
        operation.digest
        for operation in plan.memory
        if isinstance(operation, InstallAdapter | CopyAdapter)
    }
    executor.stage(
        deserialise(adapters[digest].packed, adapters[digest].layout_key, digest)
        for digest in named
    )
    result = executor.execute(msgspec.structs.replace(plan, is_preemptible=False))
    assert result is not None
    copies = {op.copy for op in plan.memory if isinstance(op, FetchKV | CopyAdapter)}
    copies -= {op.copy for op in plan.memory if isinstance(op, CancelCopy)}
    while copies:
        copies -= {ended.copy for ended in executor.take_ended_copies()}
        time.sleep(0.0002)
    return result
