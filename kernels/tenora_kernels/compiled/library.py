"""Where the compiled library lies. Its name holds a hash of all that goes into it, so another
torch, CPU or source is another file."""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path

import torch

SOURCE_DIR = Path(__file__).with_name("src")
# For the machine that compiles: its features are part of the name.
FLAGS = ("-O3", "-march=native", "-std=c++20", "-fPIC", "-fopenmp", "-Wno-psabi")


def default_dir() -> Path:
    """Where the library is kept unless told otherwise: beside its sources."""
    return Path(__file__).with_name("_build")


def library_path(target_dir: Path) -> Path:
    """Where the library for this source, torch and CPU is, or would be."""
    return target_dir / f"tenora_ops-{_fingerprint()}.so"


def seal(library: Path) -> None:
    """Put a hash of the file at its end, where whoever loads a shared library does not look."""
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    with library.open("ab") as file:
        file.write(digest.encode())


def is_whole(library: Path) -> bool:
    """Whether the file is there as it was sealed: a process that loads half of one dies of it."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content[:-64]).hexdigest().encode() == content[-64:]


def reason_path(target_dir: Path) -> Path:
    """Where the reason of a failed build is kept."""
    return target_dir / f"failed-{_fingerprint()}.txt"


@functools.cache
def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCE_DIR.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for part in (torch.__version__, *FLAGS, _cpu()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _cpu() -> str:
    """The CPU's model and features, as far as the system tells them."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    first = info.split("\n\n", 1)[0].splitlines()
    return "\n".join(line for line in first if line.startswith(wanted))
