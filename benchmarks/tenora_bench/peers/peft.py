"""transformers + peft: one static batch at a time, its rows of different adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tenora_bench.peers.interface import Setup
from tenora_bench.peers.worker import Worker, worker


@asynccontextmanager
async def peft(setup: Setup) -> AsyncIterator[Worker]:
    arguments = ["--model", str(setup.model), "--dtype", setup.dtype]
    for folder in setup.adapters:
        arguments += ["--adapter", str(folder)]
    with worker(setup, "peft_worker.py", arguments) as process:
        yield process
