"""Compiles the C++ ops into a shared library: `python -m tenora_kernels.compiled.build`, with
`--all` one for every variant that this machine runs. A failure leaves its reason beside the
library's place, for `tenora doctor`."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tenora_kernels.compiled.library import (
    FLAGS,
    SOURCE_DIR,
    current_files,
    default_dir,
    find_in,
    is_whole,
    library_path,
    reason_path,
    seal,
)
from tenora_kernels.compiled.variants import NATIVE, UnknownKernelsError, Variant, chosen, runnable

_log = logging.getLogger("tenora_engine")  # whose start it is
COMPILERS = ("c++", "g++", "clang++")
TIMEOUT_S = 600.0


class BuildError(RuntimeError):
    """The library could not be made; the message is one line that says why."""


def build_extension(
    target_dir: Path | None = None,
    *,
    variant: Variant = NATIVE,
    force: bool = False,
    jobs: int | None = None,
) -> Path:
    """The variant's library, made if it is not there or damaged, by `jobs` compilers at once or one
    for each processor. Several processes may do so at once: each compiles on its own and the last
    one to finish replaces the file in one step.

    Raises BuildError when there is no compiler or it fails.
    """
    target_dir = target_dir or default_dir()
    library = library_path(target_dir, variant)
    if is_whole(library) and not force:
        return library
    try:
        target_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target_dir, prefix="making-") as folder:
            made = Path(folder) / library.name
            _compile(made, variant, jobs or len(os.sched_getaffinity(0)))
            seal(made)
            os.replace(made, library)
    except OSError as error:
        raise BuildError(f"cannot write to {target_dir}: {error.strerror or error}") from error
    except BuildError as error:
        reason_path(target_dir, variant).write_text(f"{error}\n")
        raise
    reason_path(target_dir, variant).unlink(missing_ok=True)
    _remove_others(target_dir)
    return library


def build_where_missing(target_dir: Path, jobs: int | None = None) -> None:
    """For an installed package, whose folder may not be ours to write: the library that is to
    serve, made in `target_dir` unless it is there or beside its sources. What goes wrong is kept
    for whoever asks why plain torch serves."""
    try:
        variant = chosen()
    except UnknownKernelsError:
        return  # the engine refuses it, and says what there is
    if variant is None or is_whole(library_path(default_dir(), variant)):
        return
    find_in(target_dir)
    if is_whole(library_path(target_dir, variant)):
        return
    _log.info("compiling the kernels for this processor into %s: once, a minute or two", target_dir)
    try:
        build_extension(target_dir, variant=variant, jobs=jobs)
    except BuildError as error:
        _log.warning("the kernels could not be compiled: %s", error)


def _remove_others(target_dir: Path) -> None:
    """Libraries and reasons of other sources, torches or CPUs. Whoever has one loaded keeps it."""
    found = {*target_dir.glob("tenora_ops-*.so"), *target_dir.glob("failed-*.txt")}
    for old in found - current_files(target_dir):
        old.unlink(missing_ok=True)


def _compile(made: Path, variant: Variant, jobs: int) -> None:
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler on PATH (looked for {', '.join(COMPILERS)})")
    # The headers are found by path rather than by torch.utils.cpp_extension, whose import looks
    # for CUDA and ninja.
    torch_dir = Path(torch.__file__).parent
    flags = [
        *FLAGS,
        *variant.flags,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{torch_dir / 'include'}",
    ]
    sources = sorted(SOURCE_DIR.glob("*.cpp"))
    objects = [made.parent / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(jobs) as processes:
        commands = [
            [compiler, *flags, "-c", str(source), "-o", str(target)]
            for source, target in zip(sources, objects, strict=True)
        ]
        list(processes.map(_run, commands))
    libraries = [f"-L{torch_dir / 'lib'}", "-ltorch_cpu", "-lc10"]
    _run([compiler, *flags, "-shared", *map(str, objects), *libraries, "-o", str(made)])


def _run(command: list[str]) -> None:
    compiler = Path(command[0]).name
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler} did not run: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else "")
        raise BuildError(f"{compiler} failed ({done.returncode}): {first.strip()}")


def main() -> int:
    """Build, and say in a line what came of it. A failed build is no error: torch serves."""
    force = "--force" in sys.argv[1:]
    wanted = [NATIVE, *runnable()] if "--all" in sys.argv[1:] else [chosen() or NATIVE]
    for variant in wanted:
        try:
            print(f"kernels: {build_extension(variant=variant, force=force).name}")
        except BuildError as error:
            print(f"kernels: plain torch will be used: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
