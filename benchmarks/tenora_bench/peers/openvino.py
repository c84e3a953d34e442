"""OpenVINO GenAI's continuous batching, as two peers: 16-bit weights exported by optimum-intel with
adapters, of which a batch can have one, so that requests of different adapters run one after
another; and the 4-bit GGUF as it is, to which it applies no adapters."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tenora_bench.client import BenchError
from tenora_bench.peers.gguf_files import find_base
from tenora_bench.peers.interface import Setup
from tenora_bench.peers.processes import clean_environment
from tenora_bench.peers.worker import Worker, worker

SCRIPT = "openvino_worker.py"
STEP_TOKENS = 2048  # of its default 256, 16 prompts of 64 take four steps


def export(setup: Setup) -> Path:
    """`setup.model` in OpenVINO's own format."""
    exported = setup.scratch / "openvino"
    command = [str(setup.python.with_name("optimum-cli")), "export", "openvino"]
    command += ["--model", str(setup.model), "--task", "text-generation-with-past"]
    command += ["--weight-format", "fp16", str(exported)]
    environment = clean_environment(setup.threads, {})
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode != 0:
        raise BenchError(f"optimum-cli could not export the model:\n{run.stderr[-2000:]}")
    return exported


@asynccontextmanager
async def openvino(setup: Setup) -> AsyncIterator[Worker]:
    arguments = ["--model", str(export(setup)), "--step-tokens", str(STEP_TOKENS)]
    arguments += ["--adapters", *map(str, setup.adapters)]
    with worker(setup, SCRIPT, arguments) as process:
        yield process


@asynccontextmanager
async def openvino_q4(setup: Setup) -> AsyncIterator[Worker]:
    arguments = ["--model", str(find_base(setup.model)), "--step-tokens", str(STEP_TOKENS)]
    with worker(setup, SCRIPT, arguments, kinds=("base",)) as process:
        yield process
