"""Random adapters, row mixes and KV pages, for benchmarks and checks on machines that have nothing
but torch. Knows the arena's layout, no engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tenora_kernels.segments import BASE_SLOT, SCALE_BYTES, AdapterTable, KVLayout, common_alignment

MIXES = ("distinct", "identical", "uniform", "zipf", "skewed")
"""Popularities after Punica: each row its own adapter; one for all; ceil(sqrt(rows)) adapters;
the i-th adapter with a share of 1/i; three quarters of the rows on one."""

CACHE_LINE = 64
"""Bytes; where the engine's arena begins."""


@dataclass(frozen=True)
class SyntheticAdapters:
    """An arena that holds adapters only, and its table."""

    pool: Tensor  # [pool_elements]
    table: AdapterTable


def random_adapters(
    ranks: Sequence[int],  # of each slot, in all layers and modules
    layers: int,
    shapes: Sequence[tuple[int, int]],  # (in, out) of each module
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
    max_rank: int = 1,  # room in the table, at least the largest rank
    calls: Iterable[Sequence[int]] = (),  # modules that lie as one call reads them; else each alone
    page_elements: int = 1,  # a page has as many whole granules as fit, at least one
) -> SyntheticAdapters:
    """Weights that keep activations of order 1, pages in shuffled order as after some use."""
    generator = torch.Generator().manual_seed(seed)
    slots, modules, max_rank = len(ranks), len(shapes), max(*ranks, max_rank)
    before_row = SCALE_BYTES if dtype == torch.int8 else 0
    offsets = torch.zeros(2, modules, dtype=torch.int32)  # of A rows, of B rows
    granule = 0
    for call in tuple(calls) or tuple((module,) for module in range(modules)):
        for side in range(2):
            for module in call:
                offsets[side, module] = granule + before_row
                granule += before_row + shapes[module][side]
    a_offset, b_offset = (side.expand(slots, layers, modules).contiguous() for side in offsets)
    rank = torch.tensor(ranks, dtype=torch.int32)
    present = torch.arange(max_rank) < rank[:, None, None].expand(-1, layers, 1)
    count = int(present.sum())
    granule_offset = torch.full((slots, layers, max_rank), -1, dtype=torch.int64)
    per_page = max(1, page_elements // granule)
    num_pages = -(-count // per_page)
    pages = torch.randperm(num_pages, generator=generator)
    places = pages[:, None] * per_page + torch.arange(per_page)
    granule_offset[present] = places.flatten()[:count] * granule
    pool = _empty(num_pages * per_page * granule, dtype, device)
    deviation = 1 / math.sqrt(max(shape[0] for shape in shapes))
    if dtype == torch.int8:
        pool.random_(-127, 128)
        scale = torch.tensor([deviation * math.sqrt(3) / 127], device=device).view(torch.int8)
        for starts in (a_offset, b_offset):
            for start in starts[0, 0].tolist():
                pool.view(-1, granule)[:, start - before_row : start] = scale
    else:
        pool.normal_(std=deviation)
    table = AdapterTable(
        granule_offset=granule_offset.to(device),
        rank=rank[:, None, None].expand(slots, layers, modules).contiguous().to(device),
        a_offset=a_offset.to(device),
        b_offset=b_offset.to(device),
        scale=torch.full((slots, layers, modules), 0.5, device=device),
        alignment=common_alignment(size for shape in shapes for size in shape),
    )
    return SyntheticAdapters(pool, table)


def _empty(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU from numpy, which asks for huge pages, and on a cache line, as the engine's arena:
    rows that begin within one would cost a line more each."""
    if device.type != "cpu":
        return torch.empty(elements, dtype=dtype, device=device)
    num_bytes = elements * dtype.itemsize
    raw = np.empty(num_bytes + CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return torch.from_numpy(raw[start : start + num_bytes]).view(dtype)


def mix_rows(
    mix: str,
    num_rows: int,
    adapters: int,
    base_rows: int = 0,
) -> Tensor:
    """The slot of each row, int32 on the CPU, rows of one adapter together, base rows last."""
    index = torch.arange(num_rows - base_rows)
    if mix == "distinct":
        slots = index % adapters
    elif mix == "identical":
        slots = torch.zeros_like(index)
    elif mix == "uniform":
        slots = index % min(adapters, math.ceil(math.sqrt(num_rows)))
    elif mix == "zipf":
        share = (1 / torch.arange(1, adapters + 1)).cumsum(0)
        slots = torch.searchsorted(share / share[-1], (index + 0.5) / max(1, index.shape[0]))
    elif mix == "skewed":
        rare = 1 + index % max(1, adapters - 1)
        slots = torch.where(index < 3 * index.shape[0] // 4, 0, rare.clamp(max=adapters - 1))
    else:
        raise ValueError(f"unknown mix {mix!r}, one of {', '.join(MIXES)}")
    base = torch.full((base_rows,), BASE_SLOT)
    return torch.cat([slots.clamp(max=adapters - 1).sort().values, base]).int()


@dataclass(frozen=True)
class SyntheticPages:
    """An arena of random KV pages with shuffled block tables."""

    pool: Tensor  # [num_pages, page_elements]
    block_tables: list[list[int]]


def random_pages(
    context_lens: Sequence[int],
    kv: KVLayout,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
) -> SyntheticPages:
    """Pages for sequences of these lengths, in shuffled order."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-context // kv.block_tokens) for context in context_lens]
    order = torch.randperm(sum(blocks), generator=generator)
    pool = torch.empty(sum(blocks), kv.page_elements, dtype=dtype, device=device).normal_()
    tables = [part.tolist() for part in torch.split(order, blocks)]
    return SyntheticPages(pool, tables)
