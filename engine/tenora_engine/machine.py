"""What this process may use of its machine: processors and memory, by its CPU affinity and by what
its control groups of both versions allow. Reads small files anew at each call and never fails: one
that is missing or means nothing is no limit."""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tenora_engine.config import CPU_MEMORY_BYTES

ROOT = Path("/")
OPEN_FILES_MAX = 65_536
_OCTAL = re.compile(r"\\([0-7]{3})")  # how mountinfo writes spaces


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is, what each limit leaves, and what follows."""

    installed_cpus: int
    affinity: int  # CPUs that the process may run on
    quota: float | None  # CPUs' worth of time, the least of its groups; None: no limit
    installed_bytes: int
    memory_limit: int | None  # bytes, the least of its groups; None: none below what is installed

    @property
    def cpus(self) -> int:
        """Threads that can compute at once. A group is stopped for the rest of its period once its
        quota is used up, so that more threads only stop sooner, all at once."""
        quota = self.affinity if self.quota is None else math.ceil(self.quota)
        return max(min(self.affinity, quota), 1)

    @property
    def memory_bytes(self) -> int:
        return self.installed_bytes if self.memory_limit is None else self.memory_limit

    def describe_cpus(self) -> str:
        quota = "no quota" if self.quota is None else f"a quota of {self.quota:g}"
        return (
            f"{self.cpus} to be used: {self.installed_cpus} installed, "
            f"affinity to {self.affinity}, {quota}"
        )

    def describe_memory(self) -> str:
        text = f"{self.installed_bytes / 2**30:.1f} GiB installed"
        if self.memory_limit is None:
            return f"{text}, no limit"
        return f"{text}, limited to {self.memory_limit / 2**30:.2f} GiB"


def this_machine(root: Path = ROOT) -> Machine:
    """`root`: where /proc and the control groups are."""
    installed = _installed_bytes(root)
    groups = list(_group_folders(root))
    quotas = [quota for folder in groups for quota in _quotas(folder)]
    limits = [limit for folder in groups for limit in _memory_limits(folder)]
    # Version 1 writes "no limit" as a number near 2^63.
    limits = [limit for limit in limits if limit < installed]
    return Machine(
        installed_cpus=os.cpu_count() or 1,
        affinity=_affinity(),
        quota=min(quotas, default=None),
        installed_bytes=installed,
        memory_limit=min(limits, default=None),
    )


def usable_cpus() -> int:
    """Threads that this process should compute with."""
    return this_machine().cpus


def raise_open_files() -> int:
    """Raise this process's soft limit of open files to the hard one, OPEN_FILES_MAX at most;
    returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft


def default_memory_bytes(machine: Machine) -> int:
    """An engine's budget on the CPU where none is given. In a container that has less than the
    usual, three quarters: the platform's processes live there as well."""
    return min(CPU_MEMORY_BYTES, machine.memory_bytes * 3 // 4)


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on every system
        return os.cpu_count() or 1


def _installed_bytes(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        kib = _whole(value.removesuffix("kB")) if name == "MemTotal" else None
        if kib:
            return kib * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_folders(root: Path) -> Iterator[Path]:
    """The folders of the process's groups and of those they lie in, as far as they are mounted."""
    paths = _group_paths(root)
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = kind[2].split(",") if kind[0] == "cgroup" else [""]
        path = next((paths[name] for name in controllers if name in paths), None)
        if path is None or (kind[0] == "cgroup" and not {"cpu", "memory"} & set(controllers)):
            continue
        mount = root / _unescaped(fields[4]).lstrip("/")
        yield from _from_the_mount(mount, _below(path, _unescaped(fields[3])))


def _group_paths(root: Path) -> dict[str, str]:
    """The process's group of each controller of version 1; of version 2 under no name."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, colon, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if colon and second:
            paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _below(path: str, mounted: str) -> list[str]:
    """The group's path from the folder that is mounted on. In a container the mount may show a part
    of the hierarchy of which the path, which is the host's or the namespace's, says nothing: then
    what is mounted is the group."""
    parts = [part for part in path.split("/") if part]
    top = [part for part in mounted.split("/") if part]
    if parts[: len(top)] != top or ".." in parts:
        return []
    return parts[len(top) :]


def _from_the_mount(mount: Path, parts: list[str]) -> Iterator[Path]:
    """The mount's folder and those within, down to the group's own."""
    yield mount
    for part in parts:
        mount = mount / part
        yield mount


def _quotas(folder: Path) -> Iterator[float]:
    """CPUs."""
    words = _first_line(folder / "cpu.max").split()
    pairs = [(_whole(words[0]), _whole(words[1]) if len(words) > 1 else 100_000)] if words else []
    quota_us = _whole(_first_line(folder / "cpu.cfs_quota_us"))
    pairs.append((quota_us, _whole(_first_line(folder / "cpu.cfs_period_us"))))
    for quota, period in pairs:
        if quota and period:
            yield quota / period


def _memory_limits(folder: Path) -> Iterator[int]:
    """Bytes. Beyond `memory.high` a group is slowed down until it is of no use."""
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        limit = _whole(_first_line(folder / name))
        if limit:
            yield limit


def _whole(text: str) -> int | None:
    """A positive number, else None: `max`, -1, and whatever is none."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 30 else None


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
