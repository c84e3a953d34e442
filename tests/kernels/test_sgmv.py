"""sgmv against the float32 reference: mixes, ranks, module sets, odd shapes, and isolation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.kernels.cases import (
    MIXES,
    RANKS,
    Adapters,
    assert_near,
    mix_rows,
    mixed_ranks,
    pack_adapters,
)
from tests.kernels.conftest import Ops
from torch import Tensor

from tenora_kernels import BASE_SLOT, build_segments, reference, sgmv
from tenora_kernels.checks import KernelInputError

# (in, out) of q, k, v, o, gate, up, down of a model whose sizes are no multiples of 16
SHAPES = [(40, 40), (40, 24), (40, 24), (40, 40), (40, 72), (40, 72), (72, 40)]
QKV, OUT, GATE_UP, DOWN = (0, 1, 2), (3,), (4, 5), (6,)


def check(
    ops: Ops,
    adapters: Adapters,
    row_slot: Tensor,
    modules: tuple[int, ...],
    shapes: list[tuple[int, int]],
    dtype: torch.dtype,
    layer: int = 1,
) -> None:
    """One call against the reference; rows on the base model must not change by a bit."""
    widths = [shapes[module][1] for module in modules]
    num_rows = row_slot.shape[0]
    x = torch.randn(num_rows, shapes[modules[0]][0]).to(dtype)
    wide = torch.randn(num_rows, sum(widths) + 5).to(dtype)  # y as part of a wider buffer
    y = wide[:, : sum(widths)]
    expected = reference.sgmv(y, x, adapters.pool, adapters.table, row_slot, layer, modules, widths)
    table = ops.place(adapters.table)
    segments = build_segments(row_slot, table, tiles=ops.tiles)
    got = ops.place(y)
    ops.call(
        "sgmv", got, ops.place(x), ops.place(adapters.pool), table, segments, layer, modules, widths
    )
    assert_near(got.cpu(), expected, dtype)
    base = row_slot == BASE_SLOT
    assert torch.equal(got.cpu()[base], y[base])


@pytest.mark.parametrize("mix", MIXES)
def test_mixes_of_all_ranks(ops: Ops, mix: str) -> None:
    """Ranks 1 to 128 side by side, differing within adapters, with base rows among them."""
    ranks = mixed_ranks(len(RANKS), 2, len(SHAPES))
    for dtype in ops.dtypes:
        adapters = pack_adapters(ranks, SHAPES, dtype)
        check(ops, adapters, mix_rows(mix, 13, len(RANKS)), QKV, SHAPES, dtype)


@pytest.mark.parametrize("modules", [QKV, OUT, GATE_UP, DOWN, (0, 2), (2, 0), (1,)])
def test_module_sets(ops: Ops, modules: tuple[int, ...]) -> None:
    ranks = mixed_ranks(6, 2, len(SHAPES), (1, 3, 8, 17))
    for dtype in ops.dtypes:
        adapters = pack_adapters(ranks, SHAPES, dtype)
        rows = mix_rows("distinct", 9, 6)
        check(ops, adapters, rows, modules, SHAPES, dtype, layer=0)


@pytest.mark.parametrize(("mix", "num_rows"), [("zipf", 40), ("identical", 70), ("distinct", 48)])
def test_many_rows(ops: Ops, mix: str, num_rows: int) -> None:
    """Runs longer than a tile, and none that fills its last one."""
    ranks = mixed_ranks(7, 2, len(SHAPES), (2, 5, 16))
    for dtype in ops.dtypes[:1]:
        adapters = pack_adapters(ranks, SHAPES, dtype)
        check(ops, adapters, mix_rows(mix, num_rows, 7), GATE_UP, SHAPES, dtype)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("num_rows", [90, 300])
def test_large_batches_on_the_cpu(mix: str, num_rows: int) -> None:
    """Where the CPU path pads by length and rank, beside what it blends."""
    ranks = mixed_ranks(len(RANKS), 2, 3)
    shapes = [(24, 24), (24, 8), (24, 8)]
    for dtype in (torch.float32, torch.bfloat16):
        adapters = pack_adapters(ranks, shapes, dtype)
        row_slot = mix_rows(mix, num_rows, len(RANKS))
        x, y = torch.randn(num_rows, 24).to(dtype), torch.randn(num_rows, 40).to(dtype)
        expected = per_adapter(y, x, adapters, row_slot, shapes)
        table = adapters.table
        segments = build_segments(row_slot, table)
        sgmv(y, x, adapters.pool, table, segments, 1, (0, 1, 2), (24, 8, 8))
        assert_near(y, expected, dtype)


def per_adapter(
    y: Tensor, x: Tensor, adapters: Adapters, row_slot: Tensor, shapes: list[tuple[int, int]]
) -> Tensor:
    """A second reference, a product per adapter, for batches too large for the first."""
    table, pool, layer = adapters.table, adapters.pool.float(), 1
    result = y.float().clone()
    for slot in set(row_slot.tolist()) - {BASE_SLOT}:
        rows, column = row_slot == slot, 0
        for module, (in_features, width) in enumerate(shapes):
            starts = table.granule_offset[slot, layer, : int(table.rank[slot, layer, module])]
            a_at = (starts + table.a_offset[slot, layer, module]).tolist()
            b_at = (starts + table.b_offset[slot, layer, module]).tolist()
            a = torch.cat([pool[:0], *(pool[i : i + in_features] for i in a_at)])
            b = torch.cat([pool[:0], *(pool[i : i + width] for i in b_at)])
            delta = x[rows].float() @ a.view(-1, in_features).t() @ b.view(-1, width)
            result[rows, column : column + width] += table.scale[slot, layer, module] * delta
            column += width
    return result


@pytest.mark.parametrize("mix", MIXES)
def test_int8_pages(ops: Ops, mix: str) -> None:
    """Against the float32 reference on the same integers and scales."""
    adapters = pack_adapters(mixed_ranks(len(RANKS), 2, len(SHAPES)), SHAPES, torch.int8)
    if ops.name in ("interpreter", "gpu"):
        with pytest.raises((KernelInputError, AssertionError), match="int8 adapter pages"):
            check(ops, adapters, mix_rows(mix, 3, 2), QKV, SHAPES, torch.float32)
        return
    for dtype in ops.dtypes:
        for modules, rows in ((QKV, 13), (GATE_UP, 70), (DOWN, 5)):
            check(ops, adapters, mix_rows(mix, rows, len(RANKS)), modules, SHAPES, dtype)


def test_model_sizes(ops: Ops) -> None:
    """SmolLM2's hidden size, which is no multiple of a block; a single row, and few."""
    shapes = [(576, 576), (576, 192), (576, 192)]
    for dtype in ops.dtypes:
        adapters = pack_adapters([[[8, 8, 8]], [[16, 0, 4]]], shapes, dtype)
        rows = torch.tensor([1], dtype=torch.int32)
        check(ops, adapters, rows, QKV, shapes, dtype, layer=0)
        rows = torch.tensor([0, 0, BASE_SLOT, 1], dtype=torch.int32)
        check(ops, adapters, rows, QKV, shapes, dtype, layer=0)


def test_no_adapter_returns_at_once() -> None:
    adapters = pack_adapters([[[2]]], [(8, 8)], torch.float32)
    y = torch.randn(3, 8)
    before = y.clone()
    rows = torch.full((3,), BASE_SLOT, dtype=torch.int32)
    segments = build_segments(rows, adapters.table)
    assert not segments.any_adapter
    # nothing is looked at: an arena full of NaN and a layer that does not exist
    sgmv(y, y, torch.full((1,), math.nan), adapters.table, segments, 99, (0,), (8,))
    assert torch.equal(y, before)
    none = build_segments(rows[:0], adapters.table)
    sgmv(y[:0], y[:0], adapters.pool, adapters.table, none, 0, (0,), (8,))


def test_module_that_no_adapter_has(ops: Ops) -> None:
    adapters = pack_adapters([[[2, 0]]], [(8, 8), (8, 8)], torch.float32)
    rows = torch.zeros(3, dtype=torch.int32)
    check(ops, adapters, rows, (1,), [(8, 8), (8, 8)], torch.float32, layer=0)


@pytest.mark.parametrize("num_rows", [4, 128])
def test_another_adapters_overflow_does_not_reach_a_row(ops: Ops, num_rows: int) -> None:
    """Finite weights of one tenant may overflow on another's inputs; 0 * inf would be NaN."""
    shapes = [(32, 16)]
    adapters = pack_adapters([[[3]], [[5]]], shapes, torch.float32)
    for slot, rank_row in ((1, r) for r in range(5)):
        start = int(adapters.table.granule_offset[slot, 0, rank_row])
        adapters.pool[start : start + 48] = 3e38
    rows = torch.arange(num_rows, dtype=torch.int32) * 2 // num_rows
    x, y = torch.rand(num_rows, 32), torch.randn(num_rows, 16)
    expected = reference.sgmv(y, x, adapters.pool, adapters.table, rows, 0, (0,), (16,))
    table = ops.place(adapters.table)
    segments = build_segments(rows, table, tiles=ops.tiles)
    got = ops.place(y.clone())
    pool = ops.place(adapters.pool)
    ops.call("sgmv", got, ops.place(x), pool, table, segments, 0, (0,), (16,))
    mine = rows == 0
    assert_near(got.cpu()[mine], expected[mine], torch.float32)


def test_a_table_whose_slots_are_rows(ops: Ops) -> None:
    """As it lies on a GPU, where one copy installs an adapter."""
    if ops.tiles is None and ops.name != "gpu":
        pytest.skip("on the CPU the tables are tensors of their own")
    made = pack_adapters(mixed_ranks(5, 2, 3), [(40, 48)] * 3, torch.float32)
    wide: dict[str, Any] = {
        name: torch.cat([value, torch.full_like(value[:, :1], 99)], dim=1)[:, :-1]
        for name, value in vars(made.table).items()
        if isinstance(value, torch.Tensor)
    }
    table = replace(made.table, **wide)
    assert not table.rank.is_contiguous()
    row_slot = mix_rows("distinct", 13, 5)
    x, y = torch.randn(13, 40), torch.randn(13, 144)
    expected = reference.sgmv(y, x, made.pool, made.table, row_slot, 1, (0, 1, 2), (48,) * 3)
    segments = build_segments(row_slot, ops.place(table), tiles=ops.tiles)
    got, pool = ops.place(y.clone()), ops.place(made.pool)
    ops.call("sgmv", got, ops.place(x), pool, ops.place(table), segments, 1, (0, 1, 2), (48,) * 3)
    assert_near(got.cpu(), expected, torch.float32)


def test_same_result_every_time(ops: Ops) -> None:
    adapters = pack_adapters(mixed_ranks(5, 1, 3, (4, 8, 33)), SHAPES[:3], torch.float32)
    table, pool = ops.place(adapters.table), ops.place(adapters.pool)
    segments = build_segments(mix_rows("uniform", 17, 5), table, tiles=ops.tiles)
    x, y = ops.place(torch.randn(17, 40)), torch.randn(17, 88)
    results: list[Tensor] = []
    for _ in range(3):
        results.append(ops.place(y.clone()))
        ops.call("sgmv", results[-1], x, pool, table, segments, 0, QKV, (40, 24, 24))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_tiles_can_be_replaced_in_place(ops: Ops) -> None:
    """What a captured graph does: the launch stays, the rows' adapters and their number change."""
    if ops.tiles is None and ops.device == "cpu":
        pytest.skip("the CPU paths have no tiles")
    adapters = pack_adapters(mixed_ranks(6, 1, 3, (4, 8)), SHAPES[:3], torch.float32)
    table, pool = ops.place(adapters.table), ops.place(adapters.pool)
    captured = build_segments(mix_rows("distinct", 12, 6), table, tiles=ops.tiles)
    assert captured.tiles is not None
    for mix in ("identical", "uniform", "distinct"):
        rows = mix_rows(mix, 12, 6)
        new = build_segments(rows, table, tiles=ops.tiles)
        assert new.tiles is not None
        used = new.tiles.room
        captured.tiles.packed[:, :used] = new.tiles.packed
        x, y = torch.randn(12, 40), torch.randn(12, 88)
        expected = reference.sgmv(y, x, adapters.pool, adapters.table, rows, 0, QKV, (40, 24, 24))
        got = ops.place(y)
        ops.call("sgmv", got, ops.place(x), pool, table, captured, 0, QKV, (40, 24, 24))
        assert_near(got.cpu(), expected, torch.float32)


def test_bad_inputs_are_named() -> None:
    adapters = pack_adapters([[[2]]], [(8, 8)], torch.float32)
    segments = build_segments(torch.zeros(3, dtype=torch.int32), adapters.table)
    x = torch.randn(3, 8)

    def call(y: Tensor, x: Tensor, layer: int = 0, module: int = 0) -> None:
        sgmv(y, x, adapters.pool, adapters.table, segments, layer, (module,), (8,))

    with pytest.raises(KernelInputError, match=r"x has shape \[2, 8\], needs \[3, 8\]"):
        call(x, x[:2])
    with pytest.raises(KernelInputError, match="y has shape"):
        call(x[:, :7], x)
    with pytest.raises(KernelInputError, match=r"y is torch\.bfloat16"):
        call(x.bfloat16(), x)
    with pytest.raises(KernelInputError, match="layer 1"):
        call(x, x, layer=1)
    with pytest.raises(KernelInputError, match="modules"):
        call(x, x, module=1)
    with pytest.raises(KernelInputError, match="last stride of 1"):
        call(torch.randn(8, 3).t(), x)
    with pytest.raises(KernelInputError, match=r"slots outside 0\.\.0"):
        build_segments(torch.ones(3, dtype=torch.int32), adapters.table)
    with pytest.raises(KernelInputError, match="needs int32"):
        build_segments(torch.zeros(3), adapters.table)
    no_rank = replace(adapters.table, rank=adapters.table.rank.long())
    with pytest.raises(KernelInputError, match=r"table\.rank"):
        sgmv(x, x, adapters.pool, no_rank, segments, 0, (0,), (8,))
