"""llama.cpp's server out of the package xllamacpp, base and adapters as GGUF. It does not batch
requests of different adapters: it takes them in groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tenora_bench.client import Completion
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.gguf_files import find_base, write_adapter, write_base
from tenora_bench.peers.interface import KINDS, Request, Setup
from tenora_bench.peers.openai_server import closed_loop
from tenora_bench.peers.worker import Worker, worker


class LlamaCpp:
    kinds = KINDS

    def __init__(self, process: Worker, url: str, adapters: Sequence[str]) -> None:
        self._url = url
        self._numbers = {name: number for number, name in enumerate(adapters)}
        self.pause, self.resume = process.pause, process.resume
        self.peak_memory = process.peak_memory

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
async def llamacpp(setup: Setup) -> AsyncIterator[LlamaCpp]:
    base = setup.scratch / "base.gguf"
    write_base(find_base(setup.model), base)
    arguments = ["--model", str(base)]
    for folder in setup.adapters:
        adapter = setup.scratch / f"{folder.name}.gguf"
        write_adapter(folder, setup.model, adapter)
        arguments += ["--adapter", str(adapter)]
    arguments += ["--slots", str(setup.streams_max), "--context", str(setup.tokens_max)]
    with worker(setup, "llamacpp_worker.py", arguments) as process:
        yield LlamaCpp(process, process.ready["url"], [f.name for f in setup.adapters])
