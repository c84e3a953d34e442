"""Holds up a pretend engine as the supervisor holds up the real one, in a process of its own: run
as `python -m`, with a Boot on standard input, until that ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tenora_bench.client import BenchError
from tenora_engine.transport.engine_process import EngineProcess
from tenora_engine.transport.messages import Boot

_END_S = 30.0


@contextmanager
def held_engine(boot: Boot, log: Path) -> Iterator[int]:
    """The process id of the holder, whose child the engine is. It serves when the block begins.
    Raises BenchError."""
    with log.open("ab") as output:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tenora_bench.kills.pretend"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        )
    assert holder.stdin is not None  # asked for, like the other
    assert holder.stdout is not None
    try:
        holder.stdin.write(msgspec.json.encode(boot) + b"\n")
        holder.stdin.flush()
        if not holder.stdout.readline():
            raise BenchError(f"no pretend engine:\n{log.read_text()[-3000:]}")
        yield holder.pid
    finally:
        holder.stdin.close()
        holder.stdout.close()
        try:
            holder.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()


async def _hold(boot: Boot) -> None:
    engine = EngineProcess(boot.config, boot.address, boot.factory)
    await engine.start()
    try:
        print("serves", flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(_hold(msgspec.json.decode(sys.stdin.buffer.readline(), type=Boot)))
