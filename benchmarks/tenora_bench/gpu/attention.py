"""Paged attention, decode and prefill, beside torch's attention over keys that lie together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from tenora_bench.gpu.measure import Ceilings, Machine, Report
from tenora_kernels import KVLayout, build_attention_layout
from tenora_kernels.gpu.tuning import decode_parts
from tenora_kernels.synthetic import random_pages

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128  # of Llama-3.1-8B
LAYERS = 4


@dataclass(frozen=True)
class Case:
    """`sequences` of `context` tokens, of which the last `query` are asked."""

    kind: str
    query: int
    context: int
    sequences: int
    fp8: bool = False

    @property
    def name(self) -> str:
        kind = f"{self.kind} fp8" if self.fp8 else self.kind
        return f"attention {kind} {self.sequences} x {self.query} of {self.context}"


def cases(smoke: bool) -> Iterator[Case]:
    if smoke:
        yield from (Case("decode", 1, 20, 2), Case("prefill", 18, 20, 1))
        return
    for context, sequences in ((1024, 64), (8192, 1), (2048, 16), (1024, 128), (16384, 16)):
        yield Case("decode", 1, context, sequences)
    yield Case("decode", 1, 1024, 64, fp8=True)
    yield Case("prefill", 512, 512, 4)
    yield Case("prefill", 2048, 2048, 1)
    yield Case("prefill", 512, 8192, 1)


def time_attention(report: Report, machine: Machine, ceilings: Ceilings) -> None:
    for case in cases(machine.smoke):
        report.attempt(case.name, partial(time_case, report, machine, ceilings, case))


def time_case(report: Report, machine: Machine, ceilings: Ceilings, case: Case) -> None:
    n, query, context, device = case.sequences, case.query, case.context, machine.device
    kv = KVLayout(num_layers=LAYERS, block_tokens=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    pages = random_pages([context] * n, kv, machine.dtype, device)
    pool = pages.pool.to(torch.float8_e4m3fn) if case.fp8 else pages.pool
    layout = build_attention_layout(
        [query] * n,
        [context] * n,
        pages.block_tables,
        device,
        tiles=True,
        parts=decode_parts(device, KV_HEADS),
    )
    q = torch.randn(n * query, HEADS, HEAD_DIM, device=device).to(machine.dtype)
    out, scale = torch.empty_like(q), HEAD_DIM**-0.5
    seconds = machine.seconds(
        lambda layer: machine.ops.paged_attention(q, pool, kv, layer, layout, scale, out), LAYERS
    )
    keys = torch.randn(2, n, KV_HEADS, context, HEAD_DIM, device=device).to(machine.dtype)
    dense = q.view(n, query, HEADS, HEAD_DIM).transpose(1, 2)
    whole = query == context
    late = torch.ones(query, context, device=device, dtype=torch.bool).tril(context - query)
    mask = None if whole or query == 1 else late
    torch_seconds = machine.seconds(
        lambda layer: functional.scaled_dot_product_attention(
            dense, keys[0], keys[1], mask, is_causal=whole, enable_gqa=True
        ),
        LAYERS,
    )
    item = pool.element_size()
    moved = 2.0 * n * context * KV_HEADS * HEAD_DIM * item + 2 * q.numel() * q.element_size()
    seen = n * query * (context - (query - 1) / 2)
    report.add(
        case.name,
        seconds,
        ceilings.floor(moved, 4.0 * seen * HEADS * HEAD_DIM),
        gb_per_s=moved / seconds / 1e9,
        of_torch=seconds / torch_seconds,
    )
