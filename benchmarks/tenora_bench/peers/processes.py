"""A peer's process and its descendants: started, paused, weighed and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tenora_bench.client import BenchError


def family(pid: int) -> list[int]:
    """`pid` and all its descendants that live."""
    found, waiting = [], [pid]
    while waiting:
        member = waiting.pop()
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for task in Path(f"/proc/{member}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
            found.append(member)
    return found


def peak_memory(pid: int) -> dict[str, int]:
    """Peak resident bytes of `pid` and its descendants, by "pid name"."""
    peaks = {}
    for member in family(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{member}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            if "VmHWM" in fields:
                name = f"{member} {fields['Name'].strip()}"
                peaks[name] = int(fields["VmHWM"].split()[0]) * 1024
    return peaks


def signal_family(pid: int, number: signal.Signals) -> None:
    for member in family(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)


def clean_environment(threads: int, more: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what would lead another interpreter to our packages."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", **more}


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str], piped: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """The process of `command`, its descendants ended with it. Its errors go to `log`, and its
    output too unless it is `piped`."""
    pipe = subprocess.PIPE if piped else None
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe or output,
            stderr=output,
            env=environment,
            text=True,
            cwd=log.parent,
        )
    try:
        yield process
    finally:
        members = family(process.pid)
        signal_family(process.pid, signal.SIGCONT)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        process.wait()


def wait_ready(process: subprocess.Popen[str], url: str, log: Path, timeout_s: float) -> None:
    """Until GET `url` answers 200. Raises BenchError with the end of `log`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"the peer ended before it was ready:\n{log.read_text()[-3000:]}")
        with contextlib.suppress(httpx.HTTPError):  # not listening yet
            if httpx.get(url, timeout=2).status_code == 200:
                return
        time.sleep(0.3)
    raise BenchError(f"the peer was not ready in {timeout_s:.0f} s:\n{log.read_text()[-3000:]}")


class ProcessTree:
    """The part of a System that its processes give it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def pause(self) -> None:
        signal_family(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        signal_family(self.pid, signal.SIGCONT)

    def peak_memory(self) -> dict[str, int]:
        return peak_memory(self.pid)
