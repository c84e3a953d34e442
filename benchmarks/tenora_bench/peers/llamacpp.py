"""llama.cpp's server out of the package xllamacpp, as two peers: the base in bfloat16 and in the
4-bit GGUF that those weights come from. Requests of different adapters do not share a batch in
it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tenora_bench.client import Completion
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.gguf_files import find_base, write_adapter, write_base
from tenora_bench.peers.interface import KINDS, Request, Setup
from tenora_bench.peers.openai_server import closed_loop
from tenora_bench.peers.processes import ProcessTree
from tenora_bench.peers.worker import worker


class LlamaCpp(ProcessTree):
    kinds = KINDS

    def __init__(self, pid: int, url: str, adapters: Sequence[Path]) -> None:
        super().__init__(pid)
        self._url = url
        self._numbers = {folder.name: number for number, folder in enumerate(adapters)}

    def _spell(self, request: Request) -> Completion:
        own = [] if request.adapter is None else [self._numbers[request.adapter]]
        more = {
            "lora": [{"id": number, "scale": 1.0} for number in own],
            "cache_prompt": False,
        }
        return Completion(
            "bench", "none", "base", request.adapter, request.prompt, request.output_tokens, more
        )

    async def run(self, requests: Sequence[Request], streams: int) -> list[RequestRecord]:
        return await closed_loop(self._url, requests, streams, self._spell)


@asynccontextmanager
async def serve(setup: Setup, base: Path) -> AsyncIterator[LlamaCpp]:
    arguments = ["--model", str(base), "--slots", str(setup.streams_max)]
    arguments += ["--context", str(setup.tokens_max), "--adapters"]
    for folder in setup.adapters:
        file = setup.scratch / f"{folder.name}.gguf"
        write_adapter(folder, setup.model, file)
        arguments.append(str(file))
    with worker(setup, "llamacpp_worker.py", arguments) as process:
        yield LlamaCpp(process.pid, process.ready["url"], setup.adapters)


@asynccontextmanager
async def llamacpp(setup: Setup) -> AsyncIterator[LlamaCpp]:
    base = setup.scratch / "base.gguf"
    write_base(find_base(setup.model), base)
    async with serve(setup, base) as system:
        yield system


@asynccontextmanager
async def llamacpp_q4(setup: Setup) -> AsyncIterator[LlamaCpp]:
    async with serve(setup, find_base(setup.model)) as system:
        yield system
