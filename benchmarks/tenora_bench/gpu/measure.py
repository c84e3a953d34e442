"""How things are measured on a GPU, what it was seen to do at best, and what was found."""

from __future__ import annotations

import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenora_kernels.backend import Implementation

# As in tests/kernels/cases.py: one rounding of an output of order 1, and of the intermediate.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
Call = Callable[[int], object]
"""One call of what is timed, on layer i of its weights."""


@dataclass(frozen=True)
class Machine:
    """Where things run. With `smoke` sizes are tiny and times mean nothing: it only proves that
    this script runs (on the CPU, through Triton's interpreter)."""

    device: torch.device
    ops: Implementation
    dtype: torch.dtype
    smoke: bool = False

    def seconds(self, call: Call, layers: int, rounds: int = 7) -> float:
        """Median seconds of one call, the layers in turn. On CUDA they are one captured graph, as
        in the engine: no launch from Python is timed."""
        if self.device.type == "cpu":
            start = time.perf_counter()
            call(0)
            return time.perf_counter() - start
        graph = _capture(call, layers)
        graph.replay()
        once = _elapsed(graph, 1)
        repeats = max(1, min(50, int(2e-3 / max(once, 1e-6))))
        samples = [_elapsed(graph, repeats) / repeats for _ in range(rounds)]
        return statistics.median(samples) / layers


def _capture(call: Call, layers: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch's own
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for layer in range(layers):
            call(layer)  # compiles, and libraries take their workspaces
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for layer in range(layers):
            call(layer)
    return graph


def _elapsed(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


@dataclass(frozen=True)
class Ceilings:
    """What this GPU was seen to do, in this run."""

    bytes_per_s: float
    flops_per_s: float

    def floor(self, moved_bytes: float, flops: float) -> float:
        """The least seconds for so many bytes and operations."""
        return max(moved_bytes / self.bytes_per_s, flops / self.flops_per_s)


def measure_ceilings(machine: Machine) -> Ceilings:
    """The better rate of a copy (read + written) and a sum (read) over 4 GiB, and bf16 products of
    8192 x 8192 random numbers."""
    size, side = (2**12, 64) if machine.smoke else (2**32, 8192)
    source = torch.randint(0, 2**31 - 1, (size // 4,), dtype=torch.int32, device=machine.device)
    target = torch.empty_like(source)
    numbers = source.view(torch.float32)
    copied = machine.seconds(lambda layer: torch.neg(source, out=target), 1)
    summed = machine.seconds(lambda layer: numbers.sum(), 1)
    copy = max(2 * size / copied, size / summed)
    a, b = torch.randn(2, side, side, device=machine.device).to(machine.dtype).unbind(0)
    matmul = 2 * side**3 / machine.seconds(lambda layer: a @ b, 4)
    print(f"ceilings: copy {copy / 1e12:.2f} TB/s, matmul {matmul / 1e12:.0f} TFLOP/s")
    return Ceilings(copy, matmul)


class DeadContextError(RuntimeError):
    """The process can do nothing more on its GPU."""


def is_alive() -> bool:
    """Whether the GPU still takes calls of this process."""
    try:
        torch.cuda.synchronize()
    except Exception:  # of several types, by what went wrong
        return False
    return True


@dataclass
class Report:
    """What was found; `failed` decides the exit code."""

    seconds_max: float
    rows: Path | None = None  # a line of JSON each, written before the next is begun
    started: float = field(default_factory=time.perf_counter)
    current: str = ""  # the section
    checks: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.errors) or any(not check["right"] for check in self.checks)

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    def keep(self, kind: str, row: dict[str, Any]) -> None:
        """Write a row where no later error can take it away."""
        if self.rows is not None:
            with self.rows.open("a") as file:
                file.write(json.dumps({"kind": kind, "section": self.current, **row}) + "\n")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """An error within costs the rest of this section only; it is kept and shown."""
        self.current = name
        print(f"\n== {name} ({self.elapsed_s:.0f} s)", flush=True)
        try:
            yield
        except Exception as error:
            self.note_error(name, error)
        finally:
            # After an illegal access every call raises, this one too.
            if torch.cuda.is_available() and is_alive():
                torch.cuda.empty_cache()

    def note_error(self, what: str, error: BaseException) -> None:
        traceback.print_exception(error)
        row = {"section": self.current or what, "what": what, "error": repr(error)[:2000]}
        self.errors.append(row)
        self.keep("error", row)

    def attempt(self, what: str, call: Callable[[], object]) -> None:
        """One case: left out once the section has taken its time, and an error in it costs no
        other. Raises DeadContextError where the GPU takes no more calls."""
        if not self.time_left(what):
            return
        try:
            call()
        except Exception as error:
            self.note_error(what, error)
            if torch.cuda.is_available() and not is_alive():
                raise DeadContextError(f"no call to the GPU works after {what}") from error

    def time_left(self, what: str) -> bool:
        """False, and remembered, once the run has taken its time."""
        if self.elapsed_s < self.seconds_max:
            return True
        self.left_out.append(what)
        self.keep("left out", {"case": what})
        return False

    def check(self, name: str, right: bool, kind: str, error: float = 0.0) -> None:
        """Record whether something is as it should be."""
        row = {"check": name, "dtype": kind, "right": right, "max_error": error}
        self.checks.append(row)
        self.keep("check", row)
        print(f"{'ok   ' if right else 'WRONG'} {name:<46} {kind:<9} max error {error:.2e}")

    def fact(self, name: str, **facts: Any) -> None:
        """Record something about the machine or the run."""
        self.facts[name] = facts
        self.keep("fact", {"fact": name, **facts})
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)

    def compare(self, name: str, actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
        """Record whether actual is expected within the dtype's tolerance, absolute + relative."""
        actual, expected = actual.float().cpu(), expected.float().cpu()
        error = (actual - expected).abs()
        right = bool((error <= TOLERANCE[dtype] * (1 + expected.abs())).all())  # not where a NaN is
        worst = float(error.max()) if error.numel() else 0.0
        self.check(name, right, str(dtype).removeprefix("torch."), worst)

    def hold(self, name: str, holds: bool, dtype: torch.dtype) -> None:
        """Record whether something is so."""
        self.check(name, holds, str(dtype).removeprefix("torch."))

    def add(self, name: str, seconds: float, floor: float, **facts: Any) -> None:
        """A timing beside the least time the ceilings allow for its bytes and operations."""
        row = {"case": name, "us": seconds * 1e6, "of_ceiling": floor / seconds, **facts}
        self.timings.append(row)
        self.keep("timing", row)
        extra = "  ".join(f"{k} {v:.3g}" for k, v in facts.items() if v is not None)
        print(
            f"{name:<44} {row['us']:>10.1f} us  {row['of_ceiling']:>6.1%} of ceiling  {extra}",
            flush=True,
        )
