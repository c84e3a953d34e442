"""Inputs for the kernel tests: adapters packed into an arena, mixes of rows, ragged sequences.

Written against the layout's definition (docs/decisions/0001-adapter-granules.md), not against the
engine's packer or the kernels' builders."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_kernels import BASE_SLOT, AdapterTable, KVLayout

# (absolute, relative). float32: sums in another order. 16 bits: an output is rounded once to 8 or
# 11 bits of mantissa and so is the rank-sized intermediate; results here are of order 1.
TOLERANCE = {
    torch.float32: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
}

RANKS = (1, 2, 3, 5, 8, 16, 33, 64, 128)
MIXES = ("distinct", "identical", "uniform", "zipf", "skewed")


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    absolute, relative = TOLERANCE[dtype]
    torch.testing.assert_close(actual.float(), expected.float(), atol=absolute, rtol=relative)


@dataclass(frozen=True)
class Adapters:
    """An arena filled with adapters, and its table."""

    pool: Tensor  # [pool_elements]
    table: AdapterTable


def pack_adapters(
    ranks: list[list[list[int]]],  # [slots][layers][modules]
    shapes: list[tuple[int, int]],  # (in, out) of each module
    dtype: torch.dtype,
    seed: int = 0,
) -> Adapters:
    """Random weights of these ranks, the granules in shuffled order with gaps of NaN between, so
    that whatever reads beside its rows is seen. Of int8, every row has its float32 scale before it
    and the gaps hold -128, which no row does."""
    generator = torch.Generator().manual_seed(seed)
    scale_bytes = 4 if dtype == torch.int8 else 0
    slots, layers, modules = len(ranks), len(ranks[0]), len(shapes)
    max_rank = max(1, max(r for slot in ranks for layer in slot for r in layer))
    granule_offset = torch.full((slots, layers, max_rank), -1, dtype=torch.int64)
    rank = torch.tensor(ranks, dtype=torch.int32)
    a_offset = torch.full((slots, layers, modules), -1, dtype=torch.int32)
    b_offset = torch.full((slots, layers, modules), -1, dtype=torch.int32)
    granules = [(s, n, r) for s in range(slots) for n in range(layers) for r in range(max_rank)]
    order = torch.randperm(len(granules), generator=generator).tolist()
    pieces: list[Tensor] = []
    end = 0
    for s, n in [(s, n) for s in range(slots) for n in range(layers)]:
        offset = 0
        for m in sorted(range(modules), key=lambda m: -ranks[s][n][m]):
            if ranks[s][n][m]:
                a_offset[s, n, m] = offset + scale_bytes
                b_offset[s, n, m] = offset + scale_bytes + shapes[m][0] + scale_bytes
                offset += sum(shapes[m]) + 2 * scale_bytes
    for s, n, r in (granules[i] for i in order):
        present = sorted(
            (m for m in range(modules) if ranks[s][n][m] > r), key=lambda m: -ranks[s][n][m]
        )
        if present:
            gap = torch.full((int(torch.randint(0, 7, (), generator=generator)),), math.nan)
            rows = [
                torch.randn(size, generator=generator) / math.sqrt(shapes[0][0])
                for m in present
                for size in shapes[m]
            ]
            if dtype == torch.int8:
                gap = torch.full_like(gap, -128).to(dtype)
                rows = [quantised(row) for row in rows]
            granule_offset[s, n, r] = end + gap.shape[0]
            pieces += [gap, *rows]
            end += gap.shape[0] + sum(row.shape[0] for row in rows)
    scale = 0.25 + torch.rand(slots, layers, modules, generator=generator)
    table = AdapterTable(
        granule_offset=granule_offset,
        rank=rank,
        a_offset=a_offset,
        b_offset=b_offset,
        scale=scale,
    )
    return Adapters(torch.cat([*pieces, torch.zeros(1)]).to(dtype), table)


def quantised(row: Tensor) -> Tensor:
    """A row's scale, and its weights as multiples of it, in bytes."""
    scale = row.abs().max().reshape(1) / 127
    return torch.cat([scale.view(torch.int8), (row / scale).round().to(torch.int8)])


def mixed_ranks(
    slots: int, layers: int, modules: int, choices: tuple[int, ...] = RANKS
) -> list[list[list[int]]]:
    """Ranks that differ between slots, and within one between layers and modules; some modules
    are absent."""
    ranks: list[list[list[int]]] = []
    for slot in range(slots):
        main = choices[slot % len(choices)]
        other = choices[(slot + 3) % len(choices)]
        kind = slot % 4
        row = {
            0: [main] * modules,
            1: [main, 0, other] + [main] * (modules - 3),
            2: [0, main, main] + [other] * (modules - 3),
            3: [main, other] + [0] * (modules - 2),
        }[kind][:modules]
        ranks.append([row if layer % 2 == 0 else row[::-1] for layer in range(layers)])
    return ranks


def mix_rows(mix: str, num_rows: int, slots: int, base_every: int = 5) -> Tensor:
    """Slot of each row, runs of one adapter contiguous, every `base_every`-th row on the base."""
    if mix == "distinct":
        choice = [i % slots for i in range(num_rows)]
    elif mix == "identical":
        choice = [slots // 2] * num_rows
    elif mix == "uniform":
        count = min(slots, math.ceil(math.sqrt(num_rows)))
        choice = [i % count for i in range(num_rows)]
    elif mix == "zipf":
        choice = [min(slots - 1, int(slots * (i / num_rows) ** 3)) for i in range(num_rows)]
    elif mix == "skewed":
        choice = [0 if i < num_rows * 3 // 4 else 1 + i % (slots - 1) for i in range(num_rows)]
    else:
        raise ValueError(mix)
    adapted = sorted(s for i, s in enumerate(choice) if i % base_every != 2)
    base = [BASE_SLOT] * (num_rows - len(adapted))
    middle = next((i for i in range(1, len(adapted)) if adapted[i] != adapted[i - 1]), 0)
    rows = [*adapted[:middle], *base, *adapted[middle:]]
    return torch.tensor(rows, dtype=torch.int32)


@dataclass(frozen=True)
class Pages:
    """An arena of KV pages, every token of every sequence written, the rest NaN."""

    pool: Tensor  # [num_pages, page_elements]
    block_tables: list[list[int]]


def fill_pages(context_lens: list[int], kv: KVLayout, dtype: torch.dtype, seed: int = 0) -> Pages:
    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-context // kv.block_tokens) for context in context_lens]
    order = torch.randperm(sum(blocks) + 3, generator=generator).tolist()
    pool = torch.full((len(order), kv.page_elements), math.nan)
    view = pool.view(-1, kv.num_layers, 2, kv.block_tokens, kv.kv_heads, kv.head_dim)
    tables: list[list[int]] = []
    for context, count in zip(context_lens, blocks, strict=True):
        pages = [order.pop() for _ in range(count)]
        for i, page in enumerate(pages):
            used = min(kv.block_tokens, context - i * kv.block_tokens)
            shape = (kv.num_layers, 2, used, kv.kv_heads, kv.head_dim)
            view[page, :, :, :used] = torch.randn(shape, generator=generator)
        tables.append(pages)
    return Pages(pool.to(dtype), tables)
