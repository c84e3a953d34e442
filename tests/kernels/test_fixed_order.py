"""Sums in a fixed order: a row has the same bits alone and in any batch, as a decode row and within
a prompt. On the CPU the compiled ops are so anyway (tests/engine/test_same_bits.py)."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.cases import assert_near, fill_pages, mix_rows, mixed_ranks, pack_adapters
from tests.kernels.conftest import Ops
from torch import Tensor

from tenora_kernels import (
    KVLayout,
    build_attention_layout,
    build_segments,
    fixed_linear,
    reference,
)
from tenora_kernels.checks import KernelInputError
from tenora_kernels.segments import fixed_tile_queries

TILED = ("interpreter", "gpu")  # the form of the inputs that a fixed order is of


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(0, 16, 8), (1, 37, 5), (7, 64, 130), (70, 96, 33), (300, 32, 8)],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_fixed_linear(ops: Ops, rows: int, inputs: int, outputs: int, has_bias: bool) -> None:
    for dtype in ops.dtypes:
        x = torch.randn(rows, inputs + 3).to(dtype)[:, :inputs]  # rows that are not adjacent
        weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
        bias = torch.randn(outputs).to(dtype) if has_bias else None
        arguments = (ops.place(x), ops.place(weight), ops.place(bias))
        result = ops.call("fixed_linear", *arguments).cpu()
        assert result.dtype == dtype
        if rows:
            assert_near(result, reference.linear(x, weight, bias), dtype)
        for row in {0, rows // 2, rows - 1} if rows else ():
            alone = ops.call("fixed_linear", arguments[0][row : row + 1], *arguments[1:])
            assert torch.equal(alone[0].cpu(), result[row])


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 16), (20, 1, 32)])
def test_attention(ops: Ops, heads: int, kv_heads: int, head_dim: int) -> None:
    if ops.name not in TILED:
        pytest.skip("no tiles: the order is the compiled ops' own, or torch's")
    kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=kv_heads, head_dim=head_dim)
    for dtype in ops.dtypes:
        check_attention(ops, kv, heads, dtype)


def check_attention(ops: Ops, kv: KVLayout, heads: int, dtype: torch.dtype) -> None:
    """A prompt's rows, and each of them as a decode row of its own, beside another sequence."""
    context, count = 150, 21
    pages = fill_pages([context, 70], kv, dtype)
    q = torch.randn(count + 1, heads, kv.head_dim).to(dtype)
    tile = fixed_tile_queries(heads, kv.kv_heads)

    def attend(query: list[int], contexts: list[int], tables: list[list[int]]) -> Tensor:
        layout = build_attention_layout(
            query, contexts, tables, ops.device, tiles=True, fixed_tile=tile
        )
        out = torch.full(q.shape, torch.nan, dtype=dtype, device=ops.device)
        arena = ops.place(pages.pool)
        ops.call("paged_attention", ops.place(q), arena, kv, 1, layout, 0.2, out)
        return out.cpu()

    one, other = pages.block_tables
    within = attend([count, 1], [context, 70], [one, other])
    contexts = [*range(context - count + 1, context + 1), 70]
    assert torch.equal(within, attend([1] * (count + 1), contexts, [one] * count + [other]))
    expected = reference.paged_attention(
        q, pages.pool, kv, 1, [count, 1], [context, 70], pages.block_tables, 0.2
    )
    assert_near(within, expected, dtype)


def test_sgmv(ops: Ops) -> None:
    if ops.name not in TILED:
        pytest.skip("no tiles: the order is the compiled ops' own, or torch's")
    for dtype in ops.dtypes:
        check_sgmv(ops, dtype)


def check_sgmv(ops: Ops, dtype: torch.dtype) -> None:
    widths, inputs = (40, 24), 600  # more than one block of features
    made = pack_adapters(mixed_ranks(4, 2, 2), [(inputs, width) for width in widths], dtype)
    pool, table = ops.place(made.pool), ops.place(made.table)
    row_slot = mix_rows("uniform", 40, 4)
    x, y = torch.randn(40, inputs).to(dtype), torch.randn(40, sum(widths)).to(dtype)

    def adapted(rows: slice) -> Tensor:
        result = ops.place(y[rows].clone())
        segments = build_segments(row_slot[rows], table, tiles=True, fixed_order=True)
        ops.call("sgmv", result, ops.place(x[rows]), pool, table, segments, 1, (0, 1), widths)
        return Tensor.cpu(result)

    whole = adapted(slice(0, 40))
    expected = reference.sgmv(y, x, made.pool, made.table, row_slot, 1, (0, 1), widths)
    assert_near(whole, expected, dtype)
    for row in (0, 7, 19, 39):
        assert torch.equal(adapted(slice(row, row + 1))[0], whole[row])


def test_bad_inputs_are_named() -> None:
    x, weight = torch.randn(4, 8), torch.randn(6, 8)
    with pytest.raises(KernelInputError, match=r"weight has shape \[6, 7\], needs \[6, 8\]"):
        fixed_linear(x, torch.randn(6, 7), None)
    with pytest.raises(KernelInputError, match=r"bias has shape \[5\], needs \[6\]"):
        fixed_linear(x, weight, torch.randn(5))
    with pytest.raises(KernelInputError, match=r"weight is torch\.bfloat16"):
        fixed_linear(x, weight.bfloat16(), None)
    with pytest.raises(KernelInputError, match="needs to be contiguous"):
        fixed_linear(x, torch.randn(8, 6).t(), None)
    assert_near(fixed_linear(x, weight, None), x @ weight.t(), torch.float32)
