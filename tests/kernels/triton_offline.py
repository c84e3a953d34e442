"""Compiles the Triton kernels for an NVIDIA GPU on a machine that has none: a driver that only says
which GPU is meant, and launches that stop after compiling.

A program of its own, because it must own triton's process-wide driver: it prints, as JSON, what
each launch of each op compiled to for Llama-3.1-8B's sizes in bfloat16."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from tenora_kernels import KVLayout, build_attention_layout, build_segments
from tenora_kernels.backend import triton_implementation
from tenora_kernels.gpu import paged_attention, sgmv
from tenora_kernels.gpu.tuning import Tuning
from tenora_kernels.synthetic import mix_rows, random_adapters, random_pages

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 4096, 32, 8, 128
CPU, DTYPE = torch.device("cpu"), torch.bfloat16


class OfflineDriver:
    """What triton asks its driver while it compiles."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CPU


def compile_only(capability: int = 90) -> list[Any]:
    """From now on `kernel[grid](...)` compiles for the capability and launches nothing; the list
    receives each launch's compiled kernel."""
    compiled: list[Any] = []

    def launch(self: Any, grid: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> None:
            compiled.append(self.run(*arguments, grid=grid, warmup=True, **options))

        return run

    triton.runtime.driver.set_active(OfflineDriver(capability))
    JITFunction.__getitem__ = launch
    return compiled


def launch_sgmv(rows: int, dtype: torch.dtype = DTYPE, *, early: bool = False) -> None:
    widths = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
    made = random_adapters([16, 64], 2, [(HIDDEN, width) for width in widths], dtype, CPU)
    segments = build_segments(mix_rows("distinct", rows, 2), made.table, tiles=True)
    x = torch.zeros(rows, HIDDEN, dtype=dtype)
    y = torch.zeros(rows, sum(widths), dtype=dtype)
    defaults = Tuning()
    tuning = defaults.sgmv_decode if rows <= 256 else defaults.sgmv_prefill
    tuning = replace(tuning, early_expand=early)
    sgmv.sgmv(y, x, made.pool, made.table, segments, 1, (0, 1), widths, tuning)


def launch_attention(query: int, kv_dtype: torch.dtype, dtype: torch.dtype = DTYPE) -> None:
    kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    pages = random_pages([600, 600], kv, dtype, CPU)
    layout = build_attention_layout([query] * 2, [600] * 2, pages.block_tables, CPU, tiles=True)
    q = torch.zeros(2 * query, HEADS, HEAD_DIM, dtype=dtype)
    pool = pages.pool.to(kv_dtype)
    paged_attention.paged_attention(q, pool, kv, 1, layout, 0.1, torch.empty_like(q))


def launch_rest(kv_dtype: torch.dtype) -> None:
    ops = triton_implementation()
    kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    pool = torch.zeros(4, kv.page_elements, dtype=kv_dtype)
    qkv = torch.zeros(4, HEADS + 2 * KV_HEADS, HEAD_DIM, dtype=DTYPE)
    q, k, v = torch.split(qkv, [HEADS, KV_HEADS, KV_HEADS], dim=1)
    table, rows = torch.zeros(64, HEAD_DIM // 2), torch.arange(4)
    ops.kv_write(q, k, v, table, table, rows, pool, kv, 1, rows)
    x = torch.zeros(4, HIDDEN, dtype=DTYPE)
    ops.rms_norm(x, x[0], 1e-5)
    ops.add_rms_norm(x, x[0], 1e-5, x)
    ops.silu_mul(x)


def launch_fixed() -> None:
    """In a fixed order: linears of few rows and of many, adapters, decode and prompts."""
    ops = triton_implementation()
    for rows in (64, 512):
        ops.fixed_linear(
            torch.zeros(rows, HIDDEN, dtype=DTYPE), torch.zeros(512, HIDDEN, dtype=DTYPE), None
        )


def describe(kernel: Any) -> dict[str, Any]:
    ptx: str = kernel.asm["ptx"]
    return {
        "kernel": kernel.metadata.name,
        "shared_bytes": kernel.metadata.shared,
        "narrow_loads": len(re.findall(r"ld\.global[\w.:]*\.[bu](8|16) ", ptx)),
        "waits_for_dependency": "griddepcontrol.wait" in ptx,
    }


def main() -> None:
    launched = compile_only()
    for rows in (64, 512):
        launch_sgmv(rows)
    launch_sgmv(64, early=True)
    launch_fixed()
    for kv_dtype in (torch.bfloat16, torch.float8_e4m3fn):
        launch_attention(1, kv_dtype)
        launch_attention(64, kv_dtype)
        launch_rest(kv_dtype)
    json.dump([describe(kernel) for kernel in launched], sys.stdout)


if __name__ == "__main__":
    main()
