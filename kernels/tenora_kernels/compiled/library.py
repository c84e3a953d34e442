"""Where the compiled library of a variant lies. Its name holds a hash of all that goes into it, so
another torch, CPU or source is another file."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import torch

from tenora_kernels.compiled.variants import NATIVE, Variant, cpu, runnable

DIR_VARIABLE = "TENORA_KERNELS_DIR"
SOURCE_DIR = Path(__file__).with_name("src")
FLAGS = ("-O3", "-std=c++20", "-fPIC", "-fopenmp", "-Wno-psabi")
"""Of every variant; the machine that compiles is the one that runs it, and part of the name."""


def default_dir() -> Path:
    """Where the library is kept: as TENORA_KERNELS_DIR says, else beside its sources."""
    chosen = os.environ.get(DIR_VARIABLE)
    return Path(chosen) if chosen else Path(__file__).with_name("_build")


def find_in(folder: Path) -> None:
    """Have this process, and those it starts, look there, unless told otherwise already."""
    os.environ.setdefault(DIR_VARIABLE, str(folder))


def library_path(target_dir: Path, variant: Variant = NATIVE) -> Path:
    """Where the library for this source, torch and CPU is, or would be."""
    return target_dir / f"tenora_ops-{variant.name}-{_fingerprint(variant)}.so"


def current_files(target_dir: Path) -> set[Path]:
    """Of all variants, what belongs to this source, torch and CPU."""
    made = (NATIVE, *runnable())
    return {path(target_dir, v) for v in made for path in (library_path, reason_path)}


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


def reason_path(target_dir: Path, variant: Variant = NATIVE) -> Path:
    """Where the reason of a failed build is kept."""
    return target_dir / f"failed-{variant.name}-{_fingerprint(variant)}.txt"


@functools.cache
def _fingerprint(variant: Variant) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCE_DIR.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for part in (torch.__version__, *FLAGS, *variant.flags, cpu()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]
