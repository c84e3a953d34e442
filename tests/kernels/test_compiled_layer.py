"""The compiled attention, kv_write and norms beyond what all implementations are tested for: the
same bits for any number of threads and in any batch, their exponentials, and what they refuse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from tests.kernels.cases import fill_pages
from torch import Tensor

from tenora_kernels import KVLayout, build_attention_layout
from tenora_kernels.backend import compiled_implementation
from tenora_kernels.checks import KernelInputError
from tenora_kernels.compiled.paged_attention import attention_bytes

pytestmark = pytest.mark.usefixtures("compiled_library")

DTYPES = (torch.float32, torch.bfloat16)
THREADS = (1, 2, 3, 8)
KV = KVLayout(num_layers=1, block_tokens=16, kv_heads=3, head_dim=64)


def attention(
    q: Tensor,
    pool: Tensor,
    query_lens: list[int],
    context_lens: list[int],
    block_tables: list[list[int]],
    kv: KVLayout = KV,
    scale: float = 0.125,
) -> Tensor:
    layout = build_attention_layout(query_lens, context_lens, block_tables, "cpu")
    out = torch.full_like(q, math.nan)
    compiled_implementation().paged_attention(q, pool, kv, 0, layout, scale, out)
    return out


def with_threads(run: Callable[[], Tensor], counts: tuple[int, ...] = THREADS) -> list[Tensor]:
    before = torch.get_num_threads()
    try:
        results: list[Tensor] = []
        for count in counts:
            torch.set_num_threads(count)
            results.append(run())
    finally:
        torch.set_num_threads(before)
    return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [([1], [1500]), ([1, 1, 1, 1], [800, 17, 3000, 256]), ([1, 90, 1, 33], [70, 90, 900, 2500])],
)
def test_attention_has_the_same_bits_for_any_number_of_threads(
    query_lens: list[int], context_lens: list[int], dtype: torch.dtype
) -> None:
    pages = fill_pages(context_lens, KV, dtype)
    q = torch.randn(sum(query_lens), 9, 64).to(dtype)
    first, *others = with_threads(
        lambda: attention(q, pages.pool, query_lens, context_lens, pages.block_tables)
    )
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    query_lens, context_lens = [1, 40, 1, 7], [2000, 60, 5, 1300]
    pages = fill_pages(context_lens, KV, dtype)
    q = torch.randn(sum(query_lens), 9, 64).to(dtype)
    together = attention(q, pages.pool, query_lens, context_lens, pages.block_tables)
    end = 0
    for query, context, blocks in zip(query_lens, context_lens, pages.block_tables, strict=True):
        rows = slice(end, end := end + query)
        alone = attention(q[rows], pages.pool, [query], [context], [blocks])
        assert torch.equal(alone, together[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_however_its_prompt_is_cut(dtype: torch.dtype) -> None:
    """A token that is decoded, alone in its step, has the bits that it has within a prompt."""
    pages = fill_pages([1300], KV, dtype)
    q = torch.randn(1300, 9, 64).to(dtype)

    def run(chunks: list[int]) -> Tensor:
        assert sum(chunks) == 1300
        parts, end = [], 0
        for chunk in chunks:
            rows = slice(end, end := end + chunk)
            parts.append(attention(q[rows], pages.pool, [chunk], [end], pages.block_tables))
        return torch.cat(parts)

    whole = run([1300])
    cuts = [[1024, 276], [65, 1235], [129, 193, 978], [2, 3, 95, 700, 500], [50] * 26, [1] * 1300]
    cuts += [[64, 1, 1, 63, 1, 1170], [511, 1, 1, 1, 786]]
    for chunks in cuts:
        assert torch.equal(run(chunks), whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_ops_have_the_same_bits_for_any_number_of_threads(dtype: torch.dtype) -> None:
    """Enough rows that several threads take part."""
    ops = compiled_implementation()
    x, residual = torch.randn(2, 200, 576).to(dtype).unbind(0)
    weight = torch.randn(576).to(dtype)
    qkv = torch.randn(200, 15, 64).to(dtype)
    cos, sin = torch.randn(2, 300, 32).unbind(0)

    def write() -> Tensor:
        rows, pool = qkv.clone(), torch.zeros(20, KV.page_elements, dtype=dtype)
        q, k, v = rows[:, :9], rows[:, 9:12], rows[:, 12:]
        ops.kv_write(q, k, v, cos, sin, torch.arange(200), pool, KV, 0, torch.arange(200))
        return torch.cat([rows.flatten(), pool.flatten()])

    for run in (
        lambda: ops.rms_norm(x, weight, 1e-5),
        lambda: torch.cat(ops.add_rms_norm(x, weight, 1e-5, residual)),
        lambda: ops.silu_mul(x),
        write,
    ):
        first, *others = with_threads(run)
        assert all(torch.equal(first, other) for other in others)


def test_exponential_of_silu() -> None:
    """Within 4 units of the last place: one each of the exponential, the sum, the division, the
    product."""
    gate = torch.linspace(-87, 100, 400_000)
    product = compiled_implementation().silu_mul(torch.cat([gate, torch.ones_like(gate)])[None])
    wide = gate.double()
    expected = wide / (1 + torch.exp(-wide))
    torch.testing.assert_close(product[0].double(), expected, atol=0, rtol=4 * 2.0**-23)
    edges = torch.tensor([[-math.inf, -1e4, 0.0, math.inf, math.nan] + [1.0] * 5])
    told = compiled_implementation().silu_mul(edges)[0]
    torch.testing.assert_close(
        told, torch.tensor([math.nan, 0, 0, math.inf, math.nan]), equal_nan=True
    )


def test_exponential_of_silu_in_bfloat16() -> None:
    """Rounded once, as good as always to the nearest."""
    gate = torch.linspace(-87, 100, 400_000).bfloat16()
    product = compiled_implementation().silu_mul(torch.cat([gate, torch.ones_like(gate)])[None])[0]
    wide = gate.double()
    expected = wide / (1 + torch.exp(-wide))
    torch.testing.assert_close(product.double(), expected, atol=0, rtol=1.001 * 2.0**-8)
    assert (product == expected.bfloat16()).double().mean() > 0.99
    edges = torch.tensor([[-math.inf, -1e4, 0.0, math.inf, math.nan] + [1.0] * 5])
    told = compiled_implementation().silu_mul(edges.bfloat16())[0].float()
    torch.testing.assert_close(
        told, torch.tensor([math.nan, 0, 0, math.inf, math.nan]), equal_nan=True
    )


def test_exponential_of_attention() -> None:
    """Two keys of scores 0 and x and values 0 and 1 give a sigmoid. The score is scaled to base 2
    and rounded: an error of |x| half units."""
    x = torch.linspace(-80, 0, 3000)
    kv = KVLayout(num_layers=1, block_tokens=2, kv_heads=1, head_dim=1)
    pool = torch.zeros(3000, 2, 2)
    pool[:, 0, 1] = x
    pool[:, 1, 1] = 1
    ones = [1] * 3000
    out = attention(
        torch.ones(3000, 1, 1),
        pool.flatten(1),
        ones,
        [2] * 3000,
        [[i] for i in range(3000)],
        kv,
        1.0,
    )
    expected = torch.sigmoid(x.double())
    error = (out.flatten().double() - expected).abs() / expected
    assert (error <= (4 + 2 * x.abs()) * 2.0**-24).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7])
def test_a_nan_of_its_own_is_seen(rows: int, dtype: torch.dtype) -> None:
    pages = fill_pages([40], KV, dtype)
    q = torch.randn(rows, 9, 64).to(dtype)
    q[0] = math.nan
    seen = attention(q, pages.pool, [rows], [40], pages.block_tables).isnan()
    assert seen[0].all()
    assert not seen[1:].any()


def test_what_would_read_or_write_elsewhere_is_refused() -> None:
    ops = compiled_implementation()
    pages = fill_pages([40], KV, torch.float32)
    q = torch.randn(1, 9, 64)
    for bad in (-1, pages.pool.shape[0]):
        with pytest.raises(KernelInputError, match="names a page outside the arena"):
            attention(q, pages.pool, [1], [40], [[0, 1, bad]])
    with pytest.raises(KernelInputError, match="longer than its block table"):
        attention(q, pages.pool, [1], [40], [[0, 1]])
    with pytest.raises(KernelInputError, match="does not cover q"):
        attention(q.expand(2, 9, 64), pages.pool, [1], [40], pages.block_tables)
    cos = torch.ones(4, 32)
    k = torch.randn(1, 3, 64)

    def write(position: int, slot: int) -> None:
        at = torch.tensor([position]), torch.tensor([slot])
        ops.kv_write(q, k, k, cos, cos, at[0], pages.pool, KV, 0, at[1])

    for position in (-1, 4):
        with pytest.raises(
            KernelInputError, match=r"kv_write: positions has values outside 0\.\.3"
        ):
            write(position, 0)
    for slot in (-1, pages.pool.shape[0] * 16):
        with pytest.raises(KernelInputError, match="slots has values outside"):
            write(0, slot)


def test_heads_of_no_width_are_refused() -> None:
    kv = KVLayout(num_layers=1, block_tokens=2, kv_heads=1, head_dim=0)
    nothing, at = torch.zeros(1, 1, 0), torch.zeros(1, dtype=torch.int64)
    table, pool = torch.zeros(1, 0), torch.zeros(1, 0)
    with pytest.raises(KernelInputError, match="does not fit the layout"):
        compiled_implementation().kv_write(
            nothing, nothing, nothing, table, table, at, pool, kv, 0, at
        )


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_plan_of_a_step_takes_no_more_than_is_budgeted(data: st.DataObject) -> None:
    heads, kv_heads, head_dim = data.draw(
        st.sampled_from(
            [(9, 3, 64), (32, 8, 128), (8, 8, 96), (28, 4, 128), (64, 8, 128), (4, 1, 256)]
        )
    )
    threads = data.draw(st.sampled_from([1, 2, 3, 8, 64]))
    most = data.draw(st.sampled_from([100, 600, 5000, 40_000, 131_072]))
    contexts = data.draw(st.lists(st.integers(1, most), min_size=1, max_size=12))
    queries = [data.draw(st.one_of(st.just(1), st.integers(1, min(c, 512)))) for c in contexts]
    starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32)
    taken = torch.ops.tenora.attention_plan_bytes(
        starts, torch.tensor(contexts, dtype=torch.int32), heads, kv_heads, head_dim, 16, threads
    )
    budgeted = attention_bytes(
        heads, kv_heads, head_dim, threads=threads, rows=sum(queries), context=max(contexts)
    )
    assert taken <= budgeted


def test_shared_parts_of_long_contexts_are_bounded() -> None:
    """64 threads, two chunks of a prompt of 16,000 tokens: 294 MiB before there was a bound."""
    budgeted = attention_bytes(32, 8, 128, threads=64, rows=512, context=16384)
    assert budgeted < 160 * 2**20
    assert attention_bytes(32, 8, 128, threads=64, rows=512, context=10**6) == budgeted
    assert attention_bytes(32, 8, 128, threads=1, rows=512, context=16384) < 2**20


def test_a_context_beyond_the_bound_has_the_same_bits() -> None:
    """24 pieces of a chunk over 16,000 tokens, of which only the first are cut by parts."""
    kv = KVLayout(num_layers=1, block_tokens=16, kv_heads=1, head_dim=256)
    pages = fill_pages([16_000], kv, torch.float32)
    q = torch.randn(72, 64, 256, generator=torch.Generator().manual_seed(3))
    starts, context = torch.tensor([0, 72]).int(), torch.tensor([16_000]).int()
    taken = torch.ops.tenora.attention_plan_bytes(starts, context, 64, 1, 256, 16, 8)
    assert 100 * 2**20 < taken < 136 * 2**20, "some are, and all would take 145 MiB"
    first, *others = with_threads(
        lambda: attention(q, pages.pool, [72], [16_000], pages.block_tables, kv), (1, 8)
    )
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)
