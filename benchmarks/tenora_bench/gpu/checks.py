"""Every Triton kernel against its float32 reference, in every dtype, on the device itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tenora_bench.gpu.measure import Machine, Report
from tenora_kernels import KVLayout, build_attention_layout, build_segments, reference
from tenora_kernels.gpu import sgmv
from tenora_kernels.gpu.tuning import Tuning
from tenora_kernels.segments import AdapterTable, fixed_tile_queries
from tenora_kernels.synthetic import MIXES, mix_rows, random_adapters, random_pages

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8 = torch.float8_e4m3fn
CPU = torch.device("cpu")


def check_all(report: Report, machine: Machine) -> None:
    """A section a kernel and dtype, so that one failure hides no other."""
    dtypes = DTYPES[:2] if machine.smoke else DTYPES  # the interpreter's bfloat16 dot is wrong
    for dtype in dtypes:
        for check in (check_sgmv, check_attention, check_kv_write, check_norms, check_fixed_order):
            with report.section(f"{check.__name__} {dtype}"):
                check(report, machine, dtype)
    if machine.smoke:
        return
    for far in (check_far_adapters, check_far_pages, check_early_expand, check_fp8):
        with report.section(far.__name__):
            far(report, machine)


def check_sgmv(report: Report, machine: Machine, dtype: torch.dtype) -> None:
    """The five mixes over ranks 1 to 128, with base rows and sizes that are no multiples of 16."""
    inputs = 48 if machine.smoke else 576
    shapes = [(inputs, 576), (inputs, 192), (inputs, 200)]
    cases = [("distinct", 1), ("distinct", 13)]
    if not machine.smoke:
        cases += [*((mix, 23) for mix in MIXES), ("identical", 300), ("uniform", 300)]
    widths = [width for _, width in shapes]
    made = random_adapters((1, 2, 3, 5, 8, 16, 33, 64, 128), 2, shapes, dtype, CPU)
    here = random_adapters((1, 2, 3, 5, 8, 16, 33, 64, 128), 2, shapes, dtype, machine.device)
    pool = made.pool.to(machine.device)
    for mix, rows in cases:
        row_slot = mix_rows(mix, rows, 9, base_rows=min(4, rows - 1))
        segments = build_segments(row_slot, here.table, tiles=True)
        x, y = torch.randn(rows, inputs).to(dtype), torch.randn(rows, sum(widths)).to(dtype)
        expected = reference.sgmv(y, x, made.pool, made.table, row_slot, 1, (0, 1, 2), widths)
        got = y.to(machine.device, copy=True)
        machine.ops.sgmv(
            got, x.to(machine.device), pool, here.table, segments, 1, (0, 1, 2), widths
        )
        report.compare(f"sgmv {mix}, {rows} rows", got, expected, dtype)


def check_attention(report: Report, machine: Machine, dtype: torch.dtype) -> None:
    long = 70 if machine.smoke else 600
    batches = {
        "decode": ([1, 1, 1], [1, 17, long]),
        "prefill": ([40, 3], [40, 90]),
        "ragged": ([1, 33, 1], [70, 50, 4]),
    }
    for (heads, kv_heads, head_dim), (name, (query, context)) in (
        (shape, batch)
        for shape in ((9, 3, 64), (8, 1, 128), (4, 4, 80))
        for batch in batches.items()
    ):
        kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=kv_heads, head_dim=head_dim)
        pages = random_pages(context, kv, dtype, CPU)
        layout = build_attention_layout(
            query, context, pages.block_tables, machine.device, tiles=True
        )
        q = torch.randn(sum(query), heads, head_dim).to(dtype)
        scale = head_dim**-0.5
        expected = reference.paged_attention(
            q, pages.pool, kv, 1, query, context, pages.block_tables, scale
        )
        out = torch.full(q.shape, torch.nan, dtype=dtype, device=machine.device)
        machine.ops.paged_attention(
            q.to(machine.device), pages.pool.to(machine.device), kv, 1, layout, scale, out
        )
        report.compare(
            f"paged_attention {name} {heads}/{kv_heads}x{head_dim}", out, expected, dtype
        )


def check_kv_write(report: Report, machine: Machine, dtype: torch.dtype) -> None:
    for heads, kv_heads, head_dim, half in ((9, 3, 64, 32), (2, 2, 80, 20)):
        kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=kv_heads, head_dim=head_dim)
        qkv = torch.randn(11, heads + 2 * kv_heads, head_dim).to(dtype)
        q, k, v = (
            qkv[:, :heads],
            qkv[:, heads : heads + kv_heads],
            qkv[:, heads + kv_heads :],
        )
        angle = torch.rand(99, half) * 6
        cos, sin = angle.cos(), angle.sin()
        positions, slots = torch.randint(0, 99, (11,)), torch.randperm(64)[:11]
        pool = torch.randn(4, kv.page_elements).to(dtype)
        lookup = (cos.to(dtype).float(), sin.to(dtype).float())
        expected_q = reference.rotate(q, *lookup, positions)
        rotated_k = reference.rotate(k, *lookup, positions)
        expected = reference.kv_write(rotated_k, v, pool, kv, 1, slots)
        packed, arena = qkv.to(machine.device, copy=True), pool.to(machine.device, copy=True)
        first_v = heads + kv_heads
        q, k, v = packed[:, :heads], packed[:, heads:first_v], packed[:, first_v:]
        rest = (cos.to(machine.device), sin.to(machine.device), positions.to(machine.device))
        machine.ops.kv_write(q, k, v, *rest, arena, kv, 1, slots.to(machine.device))
        report.compare(f"kv_write q, head_dim {head_dim}", q, expected_q, dtype)
        report.compare(f"kv_write arena, head_dim {head_dim}", arena, expected, dtype)


def check_norms(report: Report, machine: Machine, dtype: torch.dtype) -> None:
    for rows, hidden in ((1, 576), (7, 4096), (3, 37)):
        x, residual = torch.randn(rows, hidden).to(dtype), torch.randn(rows, hidden).to(dtype)
        weight = torch.randn(hidden).to(dtype)
        there = [t.to(machine.device) for t in (x, weight, residual)]
        plain = machine.ops.rms_norm(there[0], there[1], 1e-5)
        report.compare(f"rms_norm {hidden}", plain, reference.rms_norm(x, weight, 1e-5), dtype)
        normed, total = machine.ops.add_rms_norm(there[0], there[1], 1e-5, there[2])
        expected = reference.rms_norm(x + residual, weight, 1e-5)
        report.compare(f"add_rms_norm {hidden}", normed, expected, dtype)
        report.compare(f"add_rms_norm sum {hidden}", total, x + residual, dtype)
        gate_up = torch.randn(rows, 2 * hidden).to(dtype)
        silu = machine.ops.silu_mul(gate_up.to(machine.device))
        report.compare(f"silu_mul {hidden}", silu, reference.silu_mul(gate_up), dtype)


def check_fixed_order(report: Report, machine: Machine, dtype: torch.dtype) -> None:
    """Linears against the reference; then that a row has the same bits alone and among others, and
    as a decode row and within a prompt: what drafts on a GPU rest on."""
    inputs, most = (48, 20) if machine.smoke else (576, 300)
    x, weight = torch.randn(most, inputs).to(dtype), torch.randn(200, inputs).to(dtype)
    x, weight = x / inputs**0.25, weight / inputs**0.25
    here = x.to(machine.device), weight.to(machine.device)
    whole = machine.ops.fixed_linear(*here, None)
    report.compare("fixed_linear", whole, reference.linear(x, weight, None), dtype)
    parts = [machine.ops.fixed_linear(here[0][:rows], here[1], None) for rows in (1, 17)]
    same = all(torch.equal(part, whole[: len(part)]) for part in parts)
    report.hold("fixed_linear, any number of rows", same, dtype)

    made = random_adapters((3, 16, 64), 1, [(inputs, 200)], dtype, machine.device)
    row_slot = mix_rows("uniform", most, 3)
    ends: list[Tensor] = []
    for rows in (slice(0, most), slice(most - 1, most)):
        segments = build_segments(row_slot[rows], made.table, tiles=True, fixed_order=True)
        y = torch.zeros(rows.stop - rows.start, 200, dtype=dtype, device=machine.device)
        machine.ops.sgmv(y, here[0][rows], made.pool, made.table, segments, 0, (0,), (200,))
        ends.append(y[-1])
    report.hold("sgmv in fixed order", torch.equal(*ends), dtype)

    for heads, kv_heads, head_dim in ((9, 3, 64), (32, 8, 128)):
        kv = KVLayout(num_layers=1, block_tokens=16, kv_heads=kv_heads, head_dim=head_dim)
        context, count = (40, 5) if machine.smoke else (900, 40)
        pages = random_pages([context], kv, dtype, CPU)
        q = torch.randn(count, heads, head_dim).to(dtype).to(machine.device)
        outs: list[Tensor] = []
        contexts = list(range(context - count + 1, context + 1))
        for queries, seen in (([count], [context]), ([1] * count, contexts)):
            layout = build_attention_layout(
                queries,
                seen,
                pages.block_tables * len(queries),
                machine.device,
                tiles=True,
                fixed_tile=fixed_tile_queries(heads, kv_heads),
            )
            out = torch.zeros_like(q)
            pool = pages.pool.to(machine.device)
            machine.ops.paged_attention(q, pool, kv, 0, layout, 0.1, out)
            outs.append(out)
        report.hold(f"attention in fixed order {heads}/{kv_heads}", torch.equal(*outs), dtype)


def check_far_adapters(report: Report, machine: Machine) -> None:
    """Granules beyond the 2^31st element of the arena."""
    shapes, dtype, far = [(512, 512)], torch.bfloat16, 2**31 + 4096
    made = random_adapters((8, 16), 1, shapes, dtype, machine.device)
    pool = torch.zeros(far + made.pool.shape[0], dtype=dtype, device=machine.device)
    pool[far:] = made.pool
    table = replace(made.table, granule_offset=made.table.granule_offset + far)
    row_slot = mix_rows("distinct", 20, 2)
    x, y = torch.randn(20, 512).to(dtype), torch.zeros(20, 512, dtype=dtype)
    near = on_cpu(made.table)
    expected = reference.sgmv(y, x, made.pool.cpu(), near, row_slot, 0, (0,), (512,))
    got = y.to(machine.device)
    segments = build_segments(row_slot, table, tiles=True)
    machine.ops.sgmv(got, x.to(machine.device), pool, table, segments, 0, (0,), (512,))
    report.compare("sgmv beyond 2^31 elements", got, expected, dtype)


def check_far_pages(report: Report, machine: Machine) -> None:
    """Pages beyond the 2^31st element of the arena, written and read."""
    dtype, device = torch.bfloat16, machine.device
    kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=8, head_dim=128)
    first = 2**31 // kv.page_elements + 3
    pool = torch.zeros(first + 4, kv.page_elements, dtype=dtype, device=device)
    small = torch.zeros(4, kv.page_elements, dtype=dtype)
    query, context, blocks = [24], [60], [2, 0, 3, 1]
    q = torch.randn(60, 16, 128).to(dtype)
    k, v = torch.randn(2, 60, 8, 128).to(dtype).unbind(0)
    slots = torch.tensor([blocks[t // 16] * 16 + t % 16 for t in range(60)])
    written = reference.kv_write(k, v, small, kv, 1, slots).to(dtype)
    write_unturned(machine, q, k, v, pool, kv, slots + first * 16)
    report.compare("kv_write beyond 2^31 elements", pool[first:], written, dtype)
    expected = reference.paged_attention(q[36:], written, kv, 1, query, context, [blocks], 0.1)
    far = [[block + first for block in blocks]]
    layout = build_attention_layout(query, context, far, device, tiles=True)
    out = torch.zeros(24, 16, 128, dtype=dtype, device=device)
    machine.ops.paged_attention(q[36:].to(device), pool, kv, 1, layout, 0.1, out)
    report.compare("paged_attention beyond 2^31 elements", out, expected, dtype)


def check_early_expand(report: Report, machine: Machine) -> None:
    """The expand that starts beside its shrink gives the same bits, call after call."""
    if torch.cuda.get_device_capability()[0] < 9:
        return
    made = random_adapters([16] * 64, 4, [(4096, 4096)], torch.bfloat16, machine.device)
    segments = build_segments(mix_rows("distinct", 64, 64), made.table)
    x = torch.randn(64, 4096, device=machine.device).to(torch.bfloat16)
    results: list[Tensor] = []
    for early in (False, True):
        tuning = replace(Tuning().sgmv_decode, early_expand=early)
        y = torch.zeros_like(x)
        for turn in range(40):
            sgmv.sgmv(y, x, made.pool, made.table, segments, turn % 4, (0,), (4096,), tuning)
        results.append(y)
    report.hold("early expand", torch.equal(*results), torch.bfloat16)


def check_fp8(report: Report, machine: Machine) -> None:
    """KV rounded to e4m3 as torch rounds it, saturated, and read back."""
    dtype, device = torch.bfloat16, machine.device
    kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=8, head_dim=128)
    k, v = (torch.randn(2, 40, 8, 128) * 3).to(dtype).unbind(0)
    v[0, 0, :2] = torch.tensor([1e4, -1e4])
    q, slots = torch.randn(40, 32, 128).to(dtype), torch.arange(40)
    pool = torch.zeros(3, kv.page_elements, device=device).to(FP8)
    write_unturned(machine, q, k, v, pool, kv, slots)
    k, v = (part.float().clamp(-448, 448).to(FP8).float() for part in (k, v))
    expected = reference.kv_write(k, v, torch.zeros(3, kv.page_elements), kv, 1, slots)
    report.compare("kv_write fp8", pool, expected, torch.float32)
    for query in (1, 40):
        layout = build_attention_layout([query], [40], [[0, 1, 2]], device, tiles=True)
        out = torch.zeros(query, 32, 128, dtype=dtype, device=device)
        last = q[40 - query :].to(device)
        machine.ops.paged_attention(last, pool, kv, 1, layout, 0.09, out)
        answer = reference.paged_attention(
            q[40 - query :], expected, kv, 1, [query], [40], [[0, 1, 2]], 0.09
        )
        report.compare(f"paged_attention fp8, {query} rows", out, answer, dtype)


def on_cpu(table: AdapterTable) -> AdapterTable:
    """The table with its tensors on the CPU."""
    here: dict[str, Any] = {k: v.cpu() for k, v in vars(table).items() if isinstance(v, Tensor)}
    return replace(table, **here)


def write_unturned(
    machine: Machine, q: Tensor, k: Tensor, v: Tensor, pool: Tensor, kv: KVLayout, slots: Tensor
) -> None:
    """kv_write into layer 1 with angles of 0."""
    rows, half = q.shape[0], kv.head_dim // 2
    angles = (torch.ones(rows, half), torch.zeros(rows, half), torch.arange(rows))
    q, k, v, cos, sin, positions, slots = (t.to(machine.device) for t in (q, k, v, *angles, slots))
    machine.ops.kv_write(q, k, v, cos, sin, positions, pool, kv, 1, slots)
