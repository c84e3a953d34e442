"""Every Triton kernel compiles for a Hopper GPU, with the arguments its launcher gives it, on any
machine that has triton."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHARED_BYTES_MAX = 227 * 1024  # of one block, on Hopper
KERNELS = {"_shrink", "_expand", "_attend", "_combine", "_rotate_and_store", "_rms_norm"}
READING = ("_shrink", "_expand", "_attend", "_fixed_linear")


def run(program: str) -> Any:
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    command = [sys.executable, "-m", f"tests.kernels.{program}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_nothing_is_compiled_while_serving() -> None:
    """Steps of many shapes, prompts and decode, with and without adapters, ask for no kernel that
    preparing has not: what changes from step to step is neither a constant of a kernel nor a
    number whose value or alignment Triton compiles for."""
    found = run("triton_variants")
    assert found["after"] == {}
    assert set(found["prepared"]) == KERNELS | {"_silu_mul"}
    assert sum(found["prepared"].values()) <= 40


def test_kernels_compile_for_hopper() -> None:
    """At the sizes of Llama-3.1-8B, 16-bit and fp8 KV. Weights and KV are read in wide loads: where
    the compiler does not see that an offset is aligned, it reads two bytes at a time."""
    compiled = run("triton_offline")
    assert {kernel["kernel"] for kernel in compiled} >= KERNELS | {"_fixed_linear"}
    for kernel in compiled:
        assert kernel["shared_bytes"] <= SHARED_BYTES_MAX, kernel
        if kernel["kernel"] in READING:
            assert kernel["narrow_loads"] == 0, kernel
    assert any(kernel["waits_for_dependency"] for kernel in compiled)
