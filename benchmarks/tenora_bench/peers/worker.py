"""A peer without a server: a script run by the peer's own interpreter, which reads a round as one
line of JSON and answers one line with the times of each request."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenora_bench.client import BenchError
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.interface import KINDS, Request, Setup
from tenora_bench.peers.processes import ProcessTree, clean_environment, running


class Worker(ProcessTree):
    def __init__(self, process: subprocess.Popen[str], log: Path, kinds: Sequence[str]) -> None:
        super().__init__(process.pid)
        self._process, self._log, self.kinds = process, log, kinds
        self.ready = self._read()  # what it says when it has loaded

    def _read(self) -> Any:
        """The next answer. Raises BenchError with the end of its log when there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the peer ended:\n{self._log.read_text()[-3000:]}")
        return json.loads(line)

    def _exchange(self, message: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return self._read()

    async def run(self, requests: Sequence[Request], streams: int) -> list[RequestRecord]:
        message = {
            "prompts": [r.prompt for r in requests],
            "adapters": [r.adapter for r in requests],
            "output_tokens": [r.output_tokens for r in requests],
            "streams": streams,
        }
        answers = await asyncio.to_thread(self._exchange, message)
        return [
            RequestRecord("bench", r.adapter, prompt_tokens=len(r.prompt), **answer)
            for r, answer in zip(requests, answers, strict=True)
        ]


@contextmanager
def worker(
    setup: Setup, script: str, arguments: Sequence[str], kinds: Sequence[str] = KINDS
) -> Iterator[Worker]:
    """`script`, a file beside this one, when it has said that it is ready."""
    path = Path(__file__).with_name(script)
    log = setup.scratch / f"{path.stem}.log"
    # -I: or this folder's peft.py and openvino.py would hide the packages of that name.
    command = [str(setup.python), "-I", str(path), *arguments, "--threads", str(setup.threads)]
    environment = clean_environment(setup.threads, {})
    with running(command, log, environment, piped=True) as process:
        yield Worker(process, log, kinds)
