"""transformers + peft: one static batch at a time, its rows of different adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tenora_bench.peers.interface import Setup
from tenora_bench.peers.worker import Worker, worker


@asynccontextmanager
async def peft(setup: Setup) -> AsyncIterator[Worker]:
    arguments = ["--model", str(setup.model), "--dtype", setup.dtype]
    arguments += ["--adapters", *map(str, setup.adapters)]
    with worker(setup, "peft_worker.py", arguments) as process:
        yield process
