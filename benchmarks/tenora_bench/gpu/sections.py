"""The sections of `make gpu`, in the order of what they tell per second, and how each is run: in a
process of its own under a time limit, its rows in one file as they are found. What one of them does
to its GPU context is no other's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tenora_bench.gpu.attention import time_attention
from tenora_bench.gpu.checks import check_all, check_attention, check_kv_write, check_sgmv
from tenora_bench.gpu.compile import compile_all
from tenora_bench.gpu.decode import profile_step, time_decode, time_host
from tenora_bench.gpu.layer import check_layer
from tenora_bench.gpu.linear import time_linear
from tenora_bench.gpu.measure import Ceilings, Machine, Report, measure_ceilings
from tenora_bench.gpu.peers import Peer
from tenora_bench.gpu.sgmv import time_sgmv
from tenora_engine.executor.graphs import Capture, again

END_S = 5.0  # between a section's last case and its limit


@dataclass(frozen=True)
class Context:
    """Arguments that every section is given."""

    report: Report
    machine: Machine
    ceilings: Ceilings
    peers: Sequence[Peer] = ()


@dataclass(frozen=True)
class Section:
    name: str
    limit_s: float
    run: Callable[[Context], None]
    is_check: bool = False  # proves, and times nothing


def environment(given: Context) -> None:
    """What this machine is, and what it was seen to do at best."""
    import triton

    facts = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    if given.machine.device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        major, minor = torch.cuda.get_device_capability()
        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "capability": f"{major}.{minor}",
            "free": f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB",
            "clocks": nvidia_smi("clocks.sm,clocks.mem,power.limit,driver_version"),
        }
    given.report.fact("environment", **facts)
    found = measure_ceilings(given.machine)
    given.report.fact("ceilings", bytes_per_s=found.bytes_per_s, flops_per_s=found.flops_per_s)


def nvidia_smi(query: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return repr(error)
    return ended.stdout.strip()


def capture_of(given: Context) -> Capture | None:
    """None: CUDA graphs."""
    return again if given.machine.smoke else None


def engine(given: Context) -> None:
    from tenora_bench.gpu.engine import check_engine  # msgspec comes with it

    check_engine(given.report, given.machine)


def sanitizer(given: Context) -> None:
    """A few checks again, every access of memory looked at."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        given.report.fact("sanitizer", found="no compute-sanitizer here")
        return
    command = [tool, "--error-exitcode", "9", sys.executable, sys.argv[0], "--section", "small"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    print(ended.stdout[-4000:])
    given.report.check("compute-sanitizer", ended.returncode == 0, f"exit {ended.returncode}")


def small(given: Context) -> None:
    """What the sanitizer looks at."""
    for check in (check_sgmv, check_attention, check_kv_write):
        check(given.report, given.machine, given.machine.dtype)


SECTIONS = (
    Section("compile", 110, lambda c: compile_all(c.report, c.machine), is_check=True),
    Section("environment", 40, environment, is_check=True),
    Section("layer", 60, lambda c: check_layer(c.report, c.machine), is_check=True),
    Section("decode", 120, lambda c: time_decode(c.report, c.machine, c.ceilings, capture_of(c))),
    Section("engine", 90, engine, is_check=True),
    Section("profile", 60, lambda c: profile_step(c.report, c.machine, capture_of(c))),
    Section("host", 70, lambda c: time_host(c.report, c.machine, capture_of(c))),
    Section("attention", 60, lambda c: time_attention(c.report, c.machine, c.ceilings)),
    Section("sgmv", 100, lambda c: time_sgmv(c.report, c.machine, c.ceilings, c.peers)),
    Section("linear", 40, lambda c: time_linear(c.report, c.machine, c.ceilings)),
    Section("dtypes", 90, lambda c: check_all(c.report, c.machine), is_check=True),
    Section("sanitizer", 60, sanitizer, is_check=True),
)
"""Together at most 15 minutes, and the third ends within 3 as a rule."""

INNER = (Section("small", 55, small),)
"""Run by others."""


def by_name(name: str) -> Section:
    return next(section for section in (*SECTIONS, *INNER) if section.name == name)


def run_here(section: Section, given: Context) -> None:
    """In this process. An error in it is a row."""
    with given.report.section(section.name):
        section.run(given)


def run_apart(name: str, command: Sequence[str], limit_s: float, rows: Path) -> None:
    """In a process of its own, which is killed at its limit. That it has failed is a row, too."""
    print(f"\n== {name}, at most {limit_s:.0f} s", flush=True)
    try:
        ended = subprocess.run(command, check=False, timeout=limit_s, env=dict(os.environ))
    except subprocess.TimeoutExpired:
        error = f"killed after {limit_s:.0f} s"
    else:
        if ended.returncode in (0, 1):  # 1: it has said what was wrong
            return
        error = f"ended with {ended.returncode}"
    row = {"kind": "error", "section": name, "what": name, "error": error}
    with rows.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(f"ERROR {name}: {error}", flush=True)


def read_rows(file: Path) -> list[dict[str, object]]:
    """Whole ones: a process may have been killed while it wrote its last."""
    found = []
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def ceilings_in(rows: Sequence[dict[str, object]]) -> Ceilings:
    """Those that were measured, else such as make every share of them 0."""
    for row in reversed(rows):
        if row.get("fact") == "ceilings":
            return Ceilings(float(str(row["bytes_per_s"])), float(str(row["flops_per_s"])))
    return Ceilings(float("inf"), float("inf"))
