"""benchmarks/builds, which compares builds of the C++ kernels, still fits their headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tenora_kernels.compiled.build import COMPILERS
from tenora_kernels.compiled.library import FLAGS, SOURCE_DIR
from tenora_kernels.compiled.variants import NATIVE

BUILDS = Path(__file__).parents[2] / "benchmarks" / "builds"


@pytest.mark.parametrize("source", ["step_driver.cpp", "compare.cpp"])
def test_it_compiles(source: str) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        pytest.skip("this machine has no C++ compiler")
    command = [
        compiler,
        *FLAGS,
        *NATIVE.flags,
        "-fsyntax-only",
        f"-I{SOURCE_DIR}",
        str(BUILDS / source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
