"""Compiles Triton kernels for an NVIDIA GPU without one, or beside one that is at work: a driver
that only says which GPU is meant, and launches that stop after compiling. What is compiled lies in
Triton's cache, where a process that launches the same finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from tenora_kernels import KVLayout, build_attention_layout, build_segments
from tenora_kernels.backend import triton_implementation
from tenora_kernels.gpu import paged_attention, sgmv
from tenora_kernels.gpu.tuning import AttentionTuning, SgmvTuning
from tenora_kernels.segments import fixed_tile_queries
from tenora_kernels.synthetic import mix_rows, random_adapters, random_pages

CPU, DTYPE, FP8 = torch.device("cpu"), torch.bfloat16, torch.float8_e4m3fn


@dataclass(frozen=True)
class Shape:
    """Shapes of a model's layers."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 128

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        key = self.kv_heads * self.head_dim
        return self.heads * self.head_dim, key, key


SHAPES = {
    "llama-3-8b": Shape(4096, 14336, 32, 8),
    "llama-3-70b": Shape(8192, 28672, 64, 8),
    "qwen2.5-7b": Shape(3584, 18944, 28, 4),
    "head-dim-256": Shape(2048, 16384, 16, 1, 256),
}


class OfflineDriver:
    """Answer what triton asks its driver while it compiles."""

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


def launch_sgmv(shape: Shape, rows: int, tuned: SgmvTuning | None = None) -> None:
    launch_adapters(shape.hidden, shape.qkv_widths, rows, tuned)


def launch_adapters(
    inputs: int, widths: Sequence[int], rows: int, tuned: SgmvTuning | None = None
) -> None:
    shapes = [(inputs, width) for width in widths]
    made = random_adapters([16, 64], 2, shapes, DTYPE, CPU, max_rank=128)
    segments = build_segments(mix_rows("distinct", rows, 2), made.table, tiles=True)
    x, y = torch.empty(rows, inputs, dtype=DTYPE), torch.empty(rows, sum(widths), dtype=DTYPE)
    modules = tuple(range(len(widths)))
    sgmv.sgmv(y, x, made.pool, made.table, segments, 1, modules, widths, tuned)


def launch_attention(
    shape: Shape,
    query: int,
    kv_dtype: torch.dtype = DTYPE,
    dtype: torch.dtype = DTYPE,
    tuned: AttentionTuning | None = None,
    *,
    fixed: bool = False,
) -> None:
    kv = kv_layout(shape)
    pages = random_pages([600, 600], kv, dtype, CPU)
    tile = fixed_tile_queries(shape.heads, shape.kv_heads) if fixed else None
    layout = build_attention_layout(
        [query] * 2, [600] * 2, pages.block_tables, CPU, tiles=True, fixed_tile=tile
    )
    q = torch.zeros(2 * query, shape.heads, shape.head_dim, dtype=dtype)
    pool = pages.pool.to(kv_dtype if dtype == DTYPE else dtype)
    paged_attention.paged_attention(q, pool, kv, 1, layout, 0.1, torch.empty_like(q), tuned)


def launch_kv_write(shape: Shape, kv_dtype: torch.dtype = DTYPE) -> None:
    kv = kv_layout(shape)
    pool = torch.zeros(4, kv.page_elements, dtype=kv_dtype)
    qkv = torch.zeros(4, shape.heads + 2 * shape.kv_heads, shape.head_dim, dtype=DTYPE)
    q, k, v = torch.split(qkv, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    table, rows = torch.zeros(64, shape.head_dim // 2), torch.arange(4)
    triton_implementation().kv_write(q, k, v, table, table, rows, pool, kv, 1, rows)


def launch_norms(shape: Shape) -> None:
    ops, weight = triton_implementation(), torch.zeros(shape.hidden, dtype=DTYPE)
    x = torch.zeros(4, shape.hidden, dtype=DTYPE)
    heads = torch.zeros(4, shape.heads + 2, shape.head_dim, dtype=DTYPE)[:, :-2]
    ops.rms_norm(x, weight, 1e-5)
    ops.rms_norm(heads, weight[: shape.head_dim], 1e-5)
    ops.add_rms_norm(x, weight, 1e-5, x)
    ops.silu_mul(torch.zeros(4, 2 * shape.intermediate, dtype=DTYPE))


def launch_fixed_linear(shape: Shape) -> None:
    """In a fixed order: linears of few rows and of many, of few outputs and of many."""
    fixed_linear = triton_implementation().fixed_linear
    for rows, outputs in ((64, 512), (64, 2 * shape.intermediate), (512, 512)):
        weight = torch.empty(outputs, shape.hidden, dtype=DTYPE)
        fixed_linear(torch.empty(rows, shape.hidden, dtype=DTYPE), weight, None)


def kv_layout(shape: Shape) -> KVLayout:
    return KVLayout(num_layers=2, block_tokens=16, kv_heads=shape.kv_heads, head_dim=shape.head_dim)


def launch_all(shape: Shape, capability: int) -> None:
    for rows in (64, 512):
        launch_sgmv(shape, rows)
    for query in (1, 64):
        launch_attention(shape, query)
        launch_attention(shape, query, fixed=True)
    launch_fixed_linear(shape)
    launch_kv_write(shape)
    launch_norms(shape)
    if capability >= 89:
        launch_attention(shape, 1, FP8)
        launch_attention(shape, 64, FP8)
        launch_kv_write(shape, FP8)
    if capability >= 90:
        launch_sgmv(shape, 64, SgmvTuning(early_expand=True))


def launch_linears(shape: Shape) -> None:
    """Adapters of all four products of a layer, of a decode step and of a prompt."""
    out = (shape.heads * shape.head_dim, (shape.hidden,))
    calls = ((shape.hidden, shape.qkv_widths), out, (shape.hidden, (shape.intermediate,) * 2))
    for inputs, widths in (*calls, (shape.intermediate, (shape.hidden,))):
        for rows in (64, 512):
            launch_adapters(inputs, widths, rows)
