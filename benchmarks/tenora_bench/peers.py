"""Peers measured beside our server, each in a process of its own behind one small interface."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenora_bench.client import BenchError


class PeftPeer:
    """The process of `peft_baseline.py`; `generate` blocks until its batch is done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the peft process ended; its error is printed above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_ready(self) -> None:
        self._read()

    def generate(
        self, prompts: list[list[int]], adapters: list[str], output_tokens: int
    ) -> dict[str, Any]:
        assert self._process.stdin is not None
        request = {"prompts": prompts, "adapters": adapters, "output_tokens": output_tokens}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()


@contextmanager
def peft_peer(
    model: Path, adapters: Sequence[Path], dtype: str, threads: int
) -> Iterator[PeftPeer]:
    command = [sys.executable, "-m", "tenora_bench.peft_baseline", "--model", str(model)]
    command += ["--dtype", dtype, "--threads", str(threads)]
    for folder in adapters:
        command += ["--adapter", str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        peer = PeftPeer(process)
        peer.wait_ready()
        yield peer
    finally:
        process.kill()
        process.wait()
