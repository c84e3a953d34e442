"""Runs a task in a process of its own, which costs the worker's loop nothing and leaves no memory
behind. It knows the process, not what is compared."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import msgspec

from tenora_platform.reconciliation.task import Result, Task

_MODULE = "tenora_platform.reconciliation.proof"


class ReconciliationFailedError(Exception):
    """The process ended without an answer; the message is its last line."""


async def run_task(task: Task) -> Result:
    """Raises ReconciliationFailedError. When cancelled, the process is ended first."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", _MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None  # asked for, like the others
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        # Its input stays open: should it end, so does the child, for we are gone.
        child.stdin.write(msgspec.json.encode(task) + b"\n")
        answer, said = await asyncio.gather(child.stdout.read(), child.stderr.read())
        status = await child.wait()
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if status != 0:
        lines = said.decode(errors="replace").strip().splitlines()
        raise ReconciliationFailedError(
            lines[-1] if lines else f"its process ended with status {status}"
        )
    return msgspec.json.decode(answer, type=Result)
