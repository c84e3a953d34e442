"""Compiles the Triton kernels for an NVIDIA GPU on a machine that has none.

A program of its own, because it must own triton's process-wide driver: `CAPABILITY [SHAPE...]`. It
prints, as JSON, Triton's version and what each launch of each op compiled to in bfloat16, through
the launchers and with the tuning that a device of that capability gets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import triton

from tenora_bench.gpu.offline import (
    FP8,
    SHAPES,
    Shape,
    compile_only,
    launch_all,
    launch_attention,
    launch_kv_write,
    launch_sgmv,
)
from tenora_kernels.checks import KernelInputError
from tenora_kernels.gpu import tuning
from tenora_kernels.gpu.tuning import AttentionTuning, SgmvTuning


def launch_tuned(shape: Shape) -> None:
    """What a table may ask of float32, whose blocks are a quarter as wide."""
    for context in (32, 64, 128):
        tuned = AttentionTuning(block_context=context)
        launch_attention(shape, 1, dtype=torch.float32, tuned=tuned)


def refusals(shape: Shape) -> list[str]:
    """What launchers say to what this capability has not."""
    asked: tuple[Callable[[], None], ...] = (
        lambda: launch_attention(shape, 1, FP8),
        lambda: launch_kv_write(shape, FP8),
        lambda: launch_sgmv(shape, 64, SgmvTuning(early_expand=True)),
    )
    said: list[str] = []
    for ask in asked:
        try:
            ask()
        except KernelInputError as error:
            said.append(str(error))
    return said


def describe(kernel: Any, shape: str) -> dict[str, Any]:
    ptx: str = kernel.asm["ptx"]
    used = resources(kernel.asm["cubin"])
    return {
        "shape": shape,
        "kernel": kernel.metadata.name,
        "shared_bytes": kernel.metadata.shared,
        "registers": used["REG"],
        "stack_bytes": used["STACK"],
        "narrow_loads": len(re.findall(r"ld\.global[\w.:]*\.[bu](8|16) ", ptx)),
        "waits_for_dependency": "griddepcontrol.wait" in ptx,
    }


def resources(cubin: bytes) -> dict[str, int]:
    """What a kernel takes of a multiprocessor; on its stack lie the registers that it spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", said)}


def main(capability: int, names: list[str]) -> None:
    compiled = compile_only(capability)
    found: list[dict[str, Any]] = []
    own = (capability // 10, capability % 10)
    table = tuning.LARGE_SHARED_MEMORY if capability >= 90 else tuning.Tuning()
    with (
        mock.patch.object(tuning, "capability", return_value=own),
        mock.patch.object(tuning, "untuned", return_value=table),
    ):
        for name in names or SHAPES:
            launch_all(SHAPES[name], capability)
            found += [describe(kernel, name) for kernel in compiled]
            compiled.clear()
        shape = SHAPES[names[0] if names else "llama-3-8b"]
        launch_tuned(shape)
        refused = refusals(shape)
    result = {"triton": triton.__version__, "kernels": found, "refused": refused}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
