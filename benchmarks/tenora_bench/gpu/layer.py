"""The ops at the sizes of one layer of Llama-3.1-8B, against torch's own: attention against
`scaled_dot_product_attention` over KV that lies together, adapters against `linear`. What is
compared shares no code with the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tenora_bench.gpu.measure import Machine, Report
from tenora_bench.gpu.sgmv import SHAPES
from tenora_kernels import KVLayout, build_attention_layout, build_segments
from tenora_kernels.gpu.tuning import decode_parts
from tenora_kernels.segments import AdapterTable
from tenora_kernels.synthetic import mix_rows, random_adapters, random_pages

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
RANKS = (8, 16, 32, 64, 128)
EPS = 1e-5


def check_layer(report: Report, machine: Machine) -> None:
    long = 40 if machine.smoke else 1500
    batches: dict[str, tuple[list[int], list[int]]] = {
        "decode": ([1] * 4, [1, 17, long // 2, long]),
        "prefill": ([long // 2, 3], [long // 2, long]),
        "decode and a prompt": ([1, 1, long // 2], [long, 33, long // 2]),
    }
    for name, (queries, contexts) in batches.items():
        case = partial(check_attention, report, machine, name, queries, contexts)
        report.attempt(f"attention, {name}", case)
    shapes = {"tiny": (32, (16, 48))} if machine.smoke else SHAPES
    for shape, (inputs, widths) in shapes.items():
        for rows in (5,) if machine.smoke else (1, 64, 300):
            case = partial(check_adapters, report, machine, shape, inputs, widths, rows)
            report.attempt(f"adapters of {shape}, {rows} rows", case)
    for rows in (3,) if machine.smoke else (1, 64, 300):
        report.attempt(f"norms, {rows} rows", partial(check_norms, report, machine, rows))
        report.attempt(f"linears, {rows} rows", partial(check_linears, report, machine, rows))


def check_attention(
    report: Report, machine: Machine, name: str, queries: Sequence[int], contexts: Sequence[int]
) -> None:
    kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    pages = random_pages(contexts, kv, machine.dtype, machine.device)
    parts = decode_parts(machine.device, KV_HEADS)
    layout = build_attention_layout(
        queries, contexts, pages.block_tables, machine.device, tiles=True, parts=parts
    )
    q = torch.randn(sum(queries), HEADS, HEAD_DIM, device=machine.device).to(machine.dtype)
    out = torch.full_like(q, torch.nan)
    machine.ops.paged_attention(q, pages.pool, kv, 1, layout, HEAD_DIM**-0.5, out)
    expected, first = [], 0
    for query, context, table in zip(queries, contexts, pages.block_tables, strict=True):
        keys, values = gathered(pages.pool, kv, table, context)
        mine = q[first : first + query].transpose(0, 1).float()
        seen = torch.ones(query, context, dtype=torch.bool, device=q.device).tril(context - query)
        theirs = functional.scaled_dot_product_attention(
            mine[None], keys[None], values[None], seen, enable_gqa=True
        )
        expected.append(theirs[0].transpose(0, 1))
        first += query
    report.compare(f"attention, {name}, and SDPA", out, torch.cat(expected), machine.dtype)


def gathered(
    pool: Tensor, kv: KVLayout, table: Sequence[int], context: int
) -> tuple[Tensor, Tensor]:  # each [kv_heads, context, head_dim] float32
    """Keys and values of layer 1 of one sequence."""
    shape = (-1, kv.num_layers, 2, kv.block_tokens, kv.kv_heads, kv.head_dim)
    pages = pool.view(shape)[torch.tensor(table, device=pool.device), 1].float()
    keys, values = (
        part.flatten(0, 1)[:context].transpose(0, 1) for part in pages.unbind(1)
    )  # [pages, block_tokens, kv_heads, head_dim] each
    return keys, values


def check_adapters(
    report: Report, machine: Machine, name: str, inputs: int, widths: Sequence[int], rows: int
) -> None:
    """Every rank side by side, and rows of the base model, beside two `linear` calls a slice."""
    shapes = [(inputs, width) for width in widths]
    made = random_adapters(RANKS, 2, shapes, machine.dtype, machine.device, max_rank=128)
    row_slot = mix_rows("distinct", rows, len(RANKS), base_rows=min(2, rows - 1)).sort().values
    segments = build_segments(row_slot, made.table, tiles=True, device=machine.device)
    x = torch.randn(rows, inputs, device=machine.device).to(machine.dtype)
    y = torch.randn(rows, sum(widths), device=machine.device).to(machine.dtype)
    expected = y.float()
    for slot in set(row_slot.tolist()) - {-1}:
        mine, column = (row_slot == slot).to(machine.device), 0
        for module, width in enumerate(widths):
            a, b = dense(made.pool, made.table, slot, module, inputs, width)
            hidden = functional.linear(x[mine].float(), a.float())
            scale = float(made.table.scale[slot, 1, module])
            change = functional.linear(hidden, b.float().T) * scale
            expected[mine, column : column + width] += change
            column += width
    modules = tuple(range(len(widths)))
    machine.ops.sgmv(y, x, made.pool, made.table, segments, 1, modules, widths)
    report.compare(f"adapters of {name}, {rows} rows, and linear", y, expected, machine.dtype)


def dense(
    pool: Tensor, table: AdapterTable, slot: int, module: int, inputs: int, width: int
) -> tuple[Tensor, Tensor]:
    """A [rank, inputs] and B^T [rank, width] of one module of layer 1, as the table says."""
    rank = int(table.rank[slot, 1, module])
    starts = table.granule_offset[slot, 1, :rank, None]
    a = starts + int(table.a_offset[slot, 1, module]) + torch.arange(inputs, device=pool.device)
    b = starts + int(table.b_offset[slot, 1, module]) + torch.arange(width, device=pool.device)
    return pool[a], pool[b]


def check_norms(report: Report, machine: Machine, rows: int) -> None:
    hidden = 64 if machine.smoke else 4096
    x, residual, weight = (
        torch.randn(*shape, device=machine.device).to(machine.dtype)
        for shape in ((rows, hidden), (rows, hidden), (hidden,))
    )
    normed = machine.ops.rms_norm(x, weight, EPS)
    expected = functional.rms_norm(x.float(), (hidden,), weight.float(), EPS)
    report.compare(f"rms_norm, {rows} rows, and torch", normed, expected, machine.dtype)
    normed, total = machine.ops.add_rms_norm(x, weight, EPS, residual)
    expected = functional.rms_norm((x + residual).float(), (hidden,), weight.float(), EPS)
    report.compare(f"add_rms_norm, {rows} rows, and torch", normed, expected, machine.dtype)
    report.compare(f"its sum, {rows} rows, and torch", total, x + residual, machine.dtype)
    gate, up = x.float(), residual.float()
    silu = machine.ops.silu_mul(torch.cat([x, residual], dim=1))
    expected = functional.silu(gate) * up
    report.compare(f"silu_mul, {rows} rows, and torch", silu, expected, machine.dtype)


def check_linears(report: Report, machine: Machine, rows: int) -> None:
    inputs, outputs = (32, 48) if machine.smoke else (4096, 28672)
    x = torch.randn(rows, inputs, device=machine.device).to(machine.dtype)
    weight = torch.randn(outputs, inputs, device=machine.device).div(inputs**0.5).to(machine.dtype)
    expected = functional.linear(x.float(), weight.float())
    got = machine.ops.fixed_linear(x, weight, None)
    report.compare(f"fixed_linear, {rows} rows, and linear", got, expected, machine.dtype)
