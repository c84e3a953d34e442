"""paged_attention against the float32 reference: decode, ragged prefill, both, and stale pages."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.cases import assert_near, fill_pages
from tests.kernels.conftest import Ops

from tenora_kernels import KVLayout, build_attention_layout, paged_attention, reference
from tenora_kernels.checks import KernelInputError

# (query lengths, context lengths)
BATCHES = {
    "one_token": ([1], [1]),
    "decode": ([1, 1, 1, 1], [1, 16, 17, 90]),
    "prefill": ([5], [5]),
    "chunk": ([7], [40]),
    "ragged": ([1, 19, 1, 3, 33], [70, 19, 4, 25, 50]),
}


def check(
    ops: Ops,
    query_lens: list[int],
    context_lens: list[int],
    kv: KVLayout,
    heads: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None = None,
) -> None:
    pages = fill_pages(context_lens, kv, kv_dtype or dtype)
    packed = torch.randn(sum(query_lens), heads + 2, kv.head_dim).to(dtype)
    q = packed[:, :heads]  # rows that are not adjacent
    layer, scale = kv.num_layers - 1, kv.head_dim**-0.5
    expected = reference.paged_attention(
        q, pages.pool, kv, layer, query_lens, context_lens, pages.block_tables, scale
    )
    layout = build_attention_layout(
        query_lens, context_lens, pages.block_tables, ops.device, tiles=ops.tiles
    )
    out = torch.full(q.shape, torch.nan, dtype=dtype, device=ops.device)
    ops.call("paged_attention", ops.place(q), ops.place(pages.pool), kv, layer, layout, scale, out)
    assert_near(out.cpu(), expected, dtype)


@pytest.mark.parametrize("batch", BATCHES)
def test_batches(ops: Ops, batch: str) -> None:
    """Unwritten places of the arena hold NaN here, so reading one shows."""
    kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=3, head_dim=64)
    for dtype in ops.dtypes:
        check(ops, *BATCHES[batch], kv, 9, dtype)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_tokens"),
    [
        (1, 1, 16, 1),
        (6, 2, 24, 5),
        (4, 4, 16, 8),
        (8, 1, 32, 32),
        (9, 3, 64, 32),
        (5, 1, 80, 8),
        (14, 2, 96, 16),
        (2, 2, 128, 16),
        (12, 2, 64, 16),
    ],
)
def test_head_shapes(ops: Ops, heads: int, kv_heads: int, head_dim: int, block_tokens: int) -> None:
    kv = KVLayout(num_layers=2, block_tokens=block_tokens, kv_heads=kv_heads, head_dim=head_dim)
    for dtype in ops.dtypes:
        check(ops, [1, 4, 1], [11, 9, 33], kv, heads, dtype)


@pytest.mark.parametrize(("heads", "head_dim"), [(12, 128), (16, 256), (20, 64)])
def test_prompts_of_many_heads_that_share_kv(ops: Ops, heads: int, head_dim: int) -> None:
    """Whose tiles of queries are taken by several programs on a GPU."""
    kv = KVLayout(num_layers=1, block_tokens=16, kv_heads=1, head_dim=head_dim)
    for dtype in ops.dtypes:
        check(ops, [19, 1, 33], [19, 20, 50], kv, heads, dtype)


def test_long_contexts_are_split(ops: Ops) -> None:
    """More than one part per context, and parts that lie past a shorter sequence's end."""
    kv = KVLayout(num_layers=1, block_tokens=16, kv_heads=1, head_dim=16)
    for dtype in ops.dtypes:
        check(ops, [1, 1, 1], [700, 30, 256], kv, 2, dtype)


def test_chunks_of_long_contexts(ops: Ops) -> None:
    """Queries on both sides of where a context is split."""
    kv = KVLayout(num_layers=1, block_tokens=16, kv_heads=1, head_dim=16)
    for dtype in ops.dtypes:
        check(ops, [3, 40, 2], [1025, 1050, 2060], kv, 2, dtype)


def test_fp8_pages(ops: Ops) -> None:
    """Keys and values of e4m3 are exact in the query's dtype: nothing is lost after the arena."""
    if ops.name not in ("interpreter", "gpu"):
        pytest.skip("pages of e4m3 are for CUDA only")
    kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=2, head_dim=32)
    for dtype in ops.dtypes:
        check(ops, [1, 7, 1], [40, 19, 70], kv, 4, dtype, torch.float8_e4m3fn)


def test_public_op() -> None:
    kv = KVLayout(num_layers=1, block_tokens=4, kv_heads=1, head_dim=8)
    pages = fill_pages([6], kv, torch.float32)
    layout = build_attention_layout([2], [6], pages.block_tables, "cpu")
    q = torch.randn(2, 2, 8)
    out = torch.empty_like(q)
    given = paged_attention(q, pages.pool, kv, 0, layout, 0.5, out)
    assert given is out
    torch.testing.assert_close(paged_attention(q, pages.pool, kv, 0, layout, 0.5), out)
    empty = build_attention_layout([], [], [], "cpu")
    assert paged_attention(q[:0], pages.pool, kv, 0, empty, 0.5).shape == (0, 2, 8)


def test_a_chunked_prompt_equals_the_whole() -> None:
    kv = KVLayout(num_layers=1, block_tokens=4, kv_heads=2, head_dim=16)
    pages = fill_pages([29], kv, torch.float32)
    q = torch.randn(29, 4, 16)

    def run(query_lens: list[int], first: int) -> torch.Tensor:
        end = first + sum(query_lens)
        layout = build_attention_layout(query_lens, [end], pages.block_tables, "cpu")
        return paged_attention(q[first:end], pages.pool, kv, 0, layout, 0.25)

    whole = run([29], 0)
    parts = [run([min(7, 29 - first)], first) for first in range(0, 29, 7)]
    assert_near(torch.cat(parts), whole, torch.float32)


def test_bad_inputs_are_named() -> None:
    kv = KVLayout(num_layers=1, block_tokens=4, kv_heads=2, head_dim=8)
    pages = fill_pages([6], kv, torch.float32)
    layout = build_attention_layout([2], [6], pages.block_tables, "cpu")
    q = torch.randn(2, 4, 8)
    with pytest.raises(KernelInputError, match="3 heads over 2"):
        paged_attention(q[:, :3], pages.pool, kv, 0, layout, 1.0)
    with pytest.raises(KernelInputError, match="pool has shape"):
        paged_attention(q, pages.pool[:, 1:], kv, 0, layout, 1.0)
    with pytest.raises(KernelInputError, match="query rows"):
        paged_attention(q[:1], pages.pool, kv, 0, layout, 1.0)
    short = build_attention_layout([1], [9], [[0, 1]], "cpu")
    with pytest.raises(KernelInputError, match="9 tokens"):
        paged_attention(q[:1], pages.pool, kv, 0, short, 1.0)
    for query, context in ((0, 3), (4, 3)):
        with pytest.raises(KernelInputError, match="query_len <= context_len"):
            build_attention_layout([query], [context], [[0]], "cpu")
    with pytest.raises(KernelInputError, match="differ in length"):
        build_attention_layout([1], [1, 2], [[0]], "cpu")
