"""Every Triton kernel compiles for Ampere, Hopper and Blackwell, with the arguments its launcher
gives it, on any machine that has triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("TENORA_TEST_DATA", ROOT / ".data/test")) / "triton"
SHARED_BYTES_MAX = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # of one block
SPILLED_BYTES_MAX = 64
KERNELS = {"_shrink", "_expand", "_attend", "_combine", "_rotate_and_store", "_rms_norm"}
READING = ("_shrink", "_expand", "_attend", "_fixed_linear")


def run(program: str, *arguments: str) -> Any:
    pytest.importorskip("triton", reason="triton is not installed on this machine")
    command = [sys.executable, "-m", f"tests.kernels.{program}", *arguments]
    cached = {**os.environ, "TRITON_CACHE_DIR": str(CACHE)}
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=cached)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def compiled() -> dict[int, Any]:
    """By capability; two at a time, about 75 s where nothing is in the cache."""
    with ThreadPoolExecutor(2) as threads:
        runs = {each: threads.submit(run, "triton_offline", str(each)) for each in SHARED_BYTES_MAX}
        return {capability: future.result() for capability, future in runs.items()}


def test_nothing_is_compiled_while_serving() -> None:
    """Steps of many shapes, prompts and decode, with and without adapters, ask for no kernel that
    preparing has not: what changes from step to step is neither a constant of a kernel nor a
    number whose value or alignment Triton compiles for."""
    found = run("triton_variants")
    assert found["after"] == {}
    assert set(found["prepared"]) == KERNELS | {"_silu_mul"}
    assert sum(found["prepared"].values()) <= 40


@pytest.mark.parametrize("capability", SHARED_BYTES_MAX)
def test_kernels_compile(compiled: dict[int, Any], capability: int) -> None:
    """At the sizes of Llama-3 8B and 70B, Qwen2.5-7B and heads of 256, 16-bit and fp8 KV, with the
    tuning of a device that nobody has tuned: they fit, and keep their sums in registers. Weights
    and KV are read in wide loads: where the compiler does not see that an offset is aligned, it
    reads two bytes at a time."""
    found = compiled[capability]
    print(f"triton {found['triton']}, sm_{capability}, {len(found['kernels'])} launches")
    kernels = found["kernels"]
    assert {kernel["kernel"] for kernel in kernels} >= KERNELS | {"_silu_mul", "_fixed_linear"}
    assert len({kernel["shape"] for kernel in kernels}) == 4
    for kernel in kernels:
        assert kernel["shared_bytes"] <= SHARED_BYTES_MAX[capability], kernel
        assert kernel["stack_bytes"] <= SPILLED_BYTES_MAX, kernel
        if kernel["kernel"] in READING:
            assert kernel["narrow_loads"] == 0, kernel
    assert any(kernel["waits_for_dependency"] for kernel in kernels) == (capability >= 90)


def test_five_programs_of_decode_share_a_multiprocessor(compiled: dict[int, Any]) -> None:
    """Of a Hopper GPU: 512 programs of attention then run at once on 132 of them."""
    kernels = compiled[90]["kernels"]
    of_8b = [kernel for kernel in kernels if kernel["shape"] == "llama-3-8b"]
    decode = next(kernel for kernel in of_8b if kernel["kernel"] == "_attend")
    assert 5 * decode["shared_bytes"] <= SHARED_BYTES_MAX[90]
    assert 5 * 128 * decode["registers"] <= 65536


def test_what_a_gpu_has_not_is_refused_by_name(compiled: dict[int, Any]) -> None:
    """fp8 from Ada on, dependent launches from Hopper on."""
    attention, kv_write, sgmv = compiled[80]["refused"]
    for said in (attention, kv_write):
        assert said.startswith("fp8 KV needs compute capability 8.9")
        assert said.endswith("this GPU has 8.0; set kv_dtype to auto")
    assert sgmv.startswith("early_expand needs compute capability 9.0")
    assert not compiled[90]["refused"]
    assert not compiled[100]["refused"]
