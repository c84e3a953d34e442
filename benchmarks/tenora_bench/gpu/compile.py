"""Compiles what the other sections launch, many kernels at once, before any of them waits for it:
each job is a process that launches nothing (`offline`). `JOB CAPABILITY TABLE` as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tenora_bench.gpu.measure import Machine, Report

JOB_S = 120


def jobs() -> dict[str, Callable[[], None]]:
    """At the shapes of Llama-3.1-8B, in bfloat16."""
    from tenora_bench.gpu import offline

    shape = offline.SHAPES["llama-3-8b"]
    attention = partial(offline.launch_attention, shape)
    return {
        "adapters": partial(offline.launch_linears, shape),
        "decode": partial(attention, 1),
        "prefill": partial(attention, 64),
        "decode fp8": partial(attention, 1, offline.FP8),
        "prefill fp8": partial(attention, 64, offline.FP8),
        "fixed decode": partial(attention, 1, fixed=True),
        "fixed prefill": partial(attention, 64, fixed=True),
        "linears": partial(offline.launch_fixed_linear, shape),
        "kv_write": partial(offline.launch_kv_write, shape),
        "norms": partial(offline.launch_norms, shape),
    }


def compile_all(report: Report, machine: Machine) -> None:
    """A job that fails is an error of its own; what it would have made is compiled when used."""
    import torch

    from tenora_kernels.gpu.tuning import tuning_for

    capability = 90
    if machine.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(machine.device)
        capability = 10 * major + minor
    table = tuning_for(machine.device).to_json()
    names = [name for name in JOBS if capability >= 89 or "fp8" not in name]
    if machine.smoke:
        names = names[-1:]
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for name, error in zip(
            names, threads.map(partial(run, capability=capability, table=table), names), strict=True
        ):
            if error is not None:
                report.note_error(f"compiling {name}", RuntimeError(error))
    report.fact("compiled", jobs=len(names), seconds=round(report.elapsed_s, 1))


def run(job: str, capability: int, table: str) -> str | None:
    """Return the end of what a section printed, which says what went wrong."""
    command = [sys.executable, "-m", "tenora_bench.gpu.compile", job, str(capability), table]
    # Without a GPU to see, tensors are the CPU's and nothing takes the device's memory.
    away = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    away.pop("TRITON_INTERPRET", None)
    away["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        ended = subprocess.run(
            command, env=away, capture_output=True, text=True, check=False, timeout=JOB_S
        )
    except subprocess.TimeoutExpired:
        return f"not compiled in {JOB_S} s"
    return None if ended.returncode == 0 else ended.stderr[-2000:]


JOBS = (
    "adapters",
    "prefill",
    "prefill fp8",
    "decode",
    "decode fp8",
    "linears",
    "fixed decode",
    "fixed prefill",
    "kv_write",
    "norms",
)
"""The names of `jobs`, the longest first."""


def main() -> None:
    from unittest import mock

    from tenora_bench.gpu.offline import compile_only
    from tenora_kernels.gpu import tuning

    job, capability = sys.argv[1], int(sys.argv[2])
    compile_only(capability)
    own = (capability // 10, capability % 10)
    table = tuning.Tuning.from_json(sys.argv[3])
    with (
        mock.patch.object(tuning, "capability", return_value=own),
        mock.patch.object(tuning, "untuned", return_value=table),
    ):
        jobs()[job]()


if __name__ == "__main__":
    main()
