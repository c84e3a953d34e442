"""Measures what the processes of a platform use (Linux): memory now, processor time so far, and
the peak of a child that comes and goes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Parts:
    """Which process is which. `postgres` is the postmaster."""

    api: int
    worker: int
    postgres: int

    def memory_mb(self) -> dict[str, float]:
        """Return what is resident of API and worker; of PostgreSQL, whose processes share pages,
        each page once."""
        postgres = sum(_field(pid, "smaps_rollup", "Pss") for pid in family(self.postgres))
        found = {"api": resident_kb(self.api), "worker": resident_kb(self.worker)}
        return {name: kb / 1024 for name, kb in (*found.items(), ("postgres", postgres))}

    def cpu_s(self) -> dict[str, float]:
        """Return processor time; that of PostgreSQL includes what ended connections have used."""
        return {
            "api": _cpu_s(self.api),
            "worker": _cpu_s(self.worker),
            "postgres": sum(map(_cpu_s, family(self.postgres))),
        }


def parts_of(server: int, data_dir: Path) -> Parts:
    postmaster = int((data_dir / "postgres/data/postmaster.pid").read_text().split()[0])
    named = {_name(pid): pid for pid in family(server)}
    return Parts(named.get("tenora-api-1", server), named.get("tenora-worker", server), postmaster)


def family(pid: int) -> list[int]:
    """A process and all that come from it."""
    found, waiting = [], [pid]
    while waiting:
        found.append(one := waiting.pop())
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return found


def resident_kb(pid: int) -> int:
    return _field(pid, "status", "VmRSS")


@dataclass
class Peak:
    """In MB; 0 while nothing was seen."""

    mb: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def _look(self, root: int, module: str) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            for pid in family(root):
                if module in _command(pid):
                    self.mb = max(self.mb, _field(pid, "status", "VmHWM") / 1024)


@contextmanager
def peak_of(root: int, module: str) -> Iterator[Peak]:
    """The most memory that a child of `root` which runs this module has had meanwhile."""
    peak = Peak()
    looking = threading.Thread(target=peak._look, args=(root, module), daemon=True)
    looking.start()
    try:
        yield peak
    finally:
        peak._over.set()
        looking.join()


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def _field(pid: int, file: str, name: str) -> int:
    """In kB; 0 of a process that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS  # own and ended children's, user and system
    return 0.0
