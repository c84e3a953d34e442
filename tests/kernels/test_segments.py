"""Properties of what the builders make of rows and sequences: nothing lost, nothing twice."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cases import assert_near, fill_pages, pack_adapters

from tenora_kernels import BASE_SLOT, KVLayout, build_attention_layout, build_segments, reference
from tenora_kernels.backend import torch_implementation
from tenora_kernels.checks import KernelInputError
from tenora_kernels.cpu.row_blocks import BlendedBlock
from tenora_kernels.segments import find_adapted_runs, find_runs, stack_block_tables
from tenora_kernels.tiles import (
    CONTEXT_STEP,
    PART_TOKENS_MIN,
    cut_contexts,
    cut_into_tiles,
    max_parts,
)

SLOTS = 5
ADAPTERS = pack_adapters(
    [[[1, 4]], [[0, 2]], [[7, 7]], [[3, 0]], [[70, 2]]], [(6, 6), (6, 4)], torch.float32
)

runs = st.lists(st.tuples(st.integers(BASE_SLOT, SLOTS - 1), st.integers(1, 40)), max_size=12)


def rows_of(pieces: list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor([slot for slot, n in pieces for _ in range(n)], dtype=torch.int32)


@given(runs)
@settings(max_examples=60)
def test_tiles_cover_every_adapted_row_once(pieces: list[tuple[int, int]]) -> None:
    row_slot = rows_of(pieces)
    segments = build_segments(row_slot, ADAPTERS.table, tiles=True)
    tiles = segments.tiles
    assert tiles is not None
    owner = torch.full(row_slot.shape, BASE_SLOT, dtype=torch.int32)
    covered = torch.zeros(row_slot.shape, dtype=torch.int64)
    for tile in range(int(tiles.count) if tiles.room else 0):
        length = int(tiles.length[tile])
        assert 1 <= length <= tiles.rows_per_tile
        rows = slice(int(tiles.start[tile]), int(tiles.start[tile]) + length)
        owner[rows] = tiles.owner[tile]
        covered[rows] += 1
    assert torch.equal(owner, row_slot)
    assert torch.equal(covered, (row_slot != BASE_SLOT).long())


@given(runs)
@settings(max_examples=60)
def test_both_ways_find_the_same_runs(pieces: list[tuple[int, int]]) -> None:
    row_slot = rows_of(pieces)
    found = find_adapted_runs(row_slot.numpy())
    assert [run.tolist() for run in found] == [run.tolist() for run in find_runs(row_slot)]


@given(runs)
@settings(max_examples=60)
def test_blocks_hold_every_adapted_row_once(pieces: list[tuple[int, int]]) -> None:
    row_slot = rows_of(pieces)
    segments = build_segments(row_slot, ADAPTERS.table)
    assert segments.any_adapter == bool((row_slot != BASE_SLOT).any())
    covered = torch.zeros(row_slot.shape, dtype=torch.int64)
    for block in segments.blocks():
        if isinstance(block, BlendedBlock):
            rows = torch.arange(row_slot.shape[0])[block.rows]
            rows = rows[row_slot[rows] != BASE_SLOT]
        else:
            rows = block.rows if block.real is None else block.rows[block.real]
        covered.index_add_(0, rows, torch.ones_like(rows))
    assert torch.equal(covered, (row_slot != BASE_SLOT).long())


@given(runs)
@settings(max_examples=25)
def test_any_runs_give_the_reference(pieces: list[tuple[int, int]]) -> None:
    row_slot = rows_of([(slot, min(n, 9)) for slot, n in pieces])
    segments = build_segments(row_slot, ADAPTERS.table)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(row_slot.shape[0], 6, generator=generator)
    y = torch.zeros(row_slot.shape[0], 10)
    arguments = (ADAPTERS.pool, ADAPTERS.table)
    expected = reference.sgmv(y, x, *arguments, row_slot, 0, (0, 1), (6, 4))
    torch_implementation().sgmv(y, x, *arguments, segments, 0, (0, 1), (6, 4))
    assert_near(y, expected, torch.float32)


sequences = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 150)).map(lambda t: (t[0], sum(t))),
    min_size=1,
    max_size=6,
)


@given(sequences)
@settings(max_examples=25)
def test_any_sequences_give_every_row(batch: list[tuple[int, int]]) -> None:
    """Groups, padding and order: values equal to the row's own position come back in place."""
    kv = KVLayout(num_layers=1, block_tokens=4, kv_heads=1, head_dim=4)
    query_lens, context_lens = [q for q, _ in batch], [c for _, c in batch]
    pages = fill_pages(context_lens, kv, torch.float32)
    for i, blocks in enumerate(pages.block_tables):  # every value of sequence i is i
        pages.pool.view(-1, 2, 16)[blocks, 1] = float(i)
    layout = build_attention_layout(query_lens, context_lens, pages.block_tables, "cpu")
    q = torch.randn(sum(query_lens), 1, 4)
    out = torch.empty_like(q)
    torch_implementation().paged_attention(q, pages.pool, kv, 0, layout, 0.5, out)
    owner = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(query_lens))
    assert_near(out, owner[:, None, None].expand(out.shape), torch.float32)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=5))
def test_block_tables_are_padded_to_the_longest(tables: list[list[int]]) -> None:
    width = max(map(len, tables), default=0)
    expected = [table + [0] * (width - len(table)) for table in tables]
    for given_tables in (tables, [array("i", table) for table in tables]):
        stacked = stack_block_tables(given_tables)
        assert stacked.dtype == torch.int32
        assert stacked.shape == (len(tables), width)
        assert stacked.tolist() == expected


@given(sequences)
@settings(max_examples=40)
def test_attention_tiles_cover_every_row_once(batch: list[tuple[int, int]]) -> None:
    query_lens, context_lens = [q for q, _ in batch], [c for _, c in batch]
    tables = [[0] * c for c in context_lens]
    layout = build_attention_layout(query_lens, context_lens, tables, "cpu", tiles=True)
    covered = torch.zeros(sum(query_lens), dtype=torch.int64)
    assert layout.decode is not None
    assert layout.prefill is not None
    alone = layout.decode.start[: int(layout.decode.count) if layout.decode.room else 0] == 0
    for sequence in layout.decode.sequence[: len(alone)][alone].tolist():
        covered[layout.query_start[sequence]] += 1
    for tile in range(int(layout.prefill.count) if layout.prefill.room else 0):
        start, length = int(layout.prefill.start[tile]), int(layout.prefill.length[tile])
        sequence = int(layout.prefill.owner[tile])
        assert layout.query_start[sequence] <= start
        assert start + length <= layout.query_start[sequence + 1]
        covered[start : start + length] += 1
    assert bool((covered == 1).all())


@given(
    st.lists(st.integers(0, 9000), min_size=1, max_size=40),
    st.integers(1, 100),
)
def test_contexts_are_cut_into_parts_of_one_size(contexts: list[int], parts: int) -> None:
    """Each token is in one part, none of them much longer than if all contexts were one."""
    sequences = np.arange(len(contexts)) * 2 + 1
    cut = cut_contexts(sequences, np.array(contexts), parts)
    count = int(cut.count) if cut.room else 0
    assert count <= max_parts(len(contexts), parts)
    covered = dict.fromkeys(sequences.tolist(), 0)
    for part in range(count):
        sequence, start, stop = (int(t[part]) for t in (cut.sequence, cut.start, cut.stop))
        assert start == covered[sequence]
        assert start < stop <= start + max(PART_TOKENS_MIN, sum(contexts) / parts + CONTEXT_STEP)
        assert stop % CONTEXT_STEP == 0 or stop == contexts[sequence // 2]
        covered[sequence] = stop
    assert list(covered.values()) == contexts
    of_each = cut.sequence[:count].tolist()
    assert cut.siblings[:count].tolist() == [of_each.count(sequence) for sequence in of_each]


def test_a_long_context_does_not_wait_in_one_program() -> None:
    """Beside 63 short ones it is cut as finely as if it were alone, but for their share."""
    contexts = np.array([16384] + [128] * 63)
    cut = cut_contexts(np.arange(64), contexts, 64)
    assert int(cut.siblings[0]) == 43  # of 384 tokens, 24448 / 64 in steps of 128
    assert int(cut.count) == 43 + 63
    assert int(cut_contexts(np.arange(64), np.full(64, 1024), 64).count) == 64


def test_limits_are_named() -> None:
    one = np.ones(1, np.int64)
    with pytest.raises(KernelInputError, match="3 tiles, at most 2"):
        cut_into_tiles(0 * one, 40 * one, one, 16, 2)


@given(st.lists(st.integers(1, 50), max_size=6))
def test_every_list_begins_at_a_multiple_of_16_bytes(lengths: list[int]) -> None:
    """Of any number of tiles and parts: no kernel is compiled again for how they are aligned."""
    length = np.array(lengths, np.int64)
    tiles = cut_into_tiles(length.cumsum() - length, length, length, 16)
    for packed in (tiles.packed, cut_contexts(length, 300 * length, 4).packed):
        assert packed.stride(0) * packed.element_size() % 16 == 0
