"""Adapters within a whole step of the compiled decoder: whatever else is in the batch and however
many threads there are, a row gets the bits that it gets alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.kernels.cases import Adapters, pack_adapters
from torch import Tensor

from tenora_kernels import BASE_SLOT, KVLayout
from tenora_kernels.compiled.decoder import (
    NO_NUMBER,
    DecoderSizes,
    Masks,
    PackedLayer,
    PackedProjection,
    StepDecoder,
    StepRows,
)
from tenora_kernels.compiled.linear import PackedWeight, pack_weight, quantise_weight
from tenora_kernels.compiled.load import load_extension

# No width is a multiple of what a product writes at a time, and modules meet within such chunks.
SIZES = DecoderSizes(hidden=72, intermediate=104, heads=6, kv_heads=2, head_dim=12, vocab=97)
SHAPES = [(72, 72), (72, 24), (72, 24), (72, 72), (72, 104), (72, 104), (104, 72)]
LAYERS, BLOCK_TOKENS, MAX_ROWS = 2, 4, 300
RANKS = [
    [[8] * 7, [8] * 7],
    [[1, 2, 3, 5, 9, 16, 33], [64, 0, 4, 0, 1, 8, 12]],
    [[0, 16, 16, 24, 0, 5, 8], [0] * 7],
    [[40] * 7, [3, 0, 0, 7, 17, 64, 2]],
]
LONG = [(0, 16)]
LONG_RUNS = [(1, 9), (3, 6), (BASE_SLOT, 4), (0, 70), (2, 27)]
MIXED = [(1, 3), (0, 7), (BASE_SLOT, 2), (2, 1), (3, 65), (1, 2), (2, 6), (0, 5), (3, 1)]
SHORT = [(0, 1), (1, 5), (2, 2), (3, 1), (BASE_SLOT, 1)]
PREFILL = [(1, 230), (2, 3)]


@pytest.fixture(autouse=True)
def _loaded(compiled_library: object) -> None:
    load_extension()


@pytest.fixture
def threads() -> Iterator[None]:
    """Gives the number of threads back as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_decoder(dtype: torch.dtype, weights: str, adapters: Adapters) -> StepDecoder:
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> PackedWeight:
        values = (torch.randn(rows, columns, generator=generator) / columns**0.5).to(dtype)
        return quantise_weight(values) if weights == "int8" else pack_weight(values)

    def layer() -> PackedLayer:
        wide = [(120, 72), (72, 72), (208, 72), (72, 104)]
        parts = [PackedProjection(matrix(*shape)) for shape in wide]
        qkv, out, gate_up, down = parts
        return PackedLayer(
            attention_in=norm, mlp_in=norm, cos=angles.cos(), sin=angles.sin(),
            qkv=qkv, out=out, gate_up=gate_up, down=down,
        )  # fmt: skip

    norm = torch.ones(SIZES.hidden, dtype=dtype)
    angles = torch.rand(4, SIZES.head_dim // 2, generator=generator)
    decoder = StepDecoder(
        SIZES, [layer() for _ in range(LAYERS)], None, norm, matrix(SIZES.vocab, SIZES.hidden),
        1e-5, SIZES.head_dim**-0.5,
    )  # fmt: skip
    kv = KVLayout(LAYERS, BLOCK_TOKENS, SIZES.kv_heads, SIZES.head_dim)
    pool = torch.full((MAX_ROWS, kv.page_elements), float("nan"), dtype=dtype)
    decoder.use_arena(pool, adapters.pool, kv, adapters.table)
    return decoder


def rows_of(row_slot: Tensor, first: int = 0) -> StepRows:
    """Rows `first`.. of a batch of sequences of one token each."""
    rows = len(row_slot)
    numbers = torch.arange(first, first + rows)
    return StepRows(
        token_ids=numbers * 31 % SIZES.vocab,
        positions=torch.zeros(rows, dtype=torch.int64),
        slots=numbers * BLOCK_TOKENS,
        query_start=torch.arange(rows + 1, dtype=torch.int32),
        context_len=torch.ones(rows, dtype=torch.int32),
        block_table=numbers.to(torch.int32).view(rows, 1),
        row_slot=row_slot,
        wanted=torch.arange(rows),
    )


def run(decoder: StepDecoder, row_slot: Tensor, first: int = 0) -> Tensor:
    """Their logits."""
    return decoder.next_logits(rows_of(row_slot, first))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("runs", [LONG, LONG_RUNS, MIXED, SHORT, PREFILL], ids=str)
@pytest.mark.parametrize(
    ("dtype", "weights", "pages"),
    [
        (torch.float32, "as they are", torch.float32),
        (torch.bfloat16, "as they are", torch.bfloat16),
        (torch.bfloat16, "as they are", torch.int8),
        (torch.bfloat16, "int8", torch.bfloat16),
        (torch.float32, "int8", torch.int8),
    ],
)
def test_compiled_rows_have_the_bits_that_they_have_alone(
    runs: list[tuple[int, int]], dtype: torch.dtype, weights: str, pages: torch.dtype
) -> None:
    decoder = make_decoder(dtype, weights, pack_adapters(RANKS, SHAPES, pages))
    row_slot = torch.tensor([slot for slot, n in runs for _ in range(n)], dtype=torch.int32)
    torch.set_num_threads(1)
    alone = torch.cat([run(decoder, row_slot[i : i + 1], i) for i in range(len(row_slot))])
    assert alone.isfinite().all()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert torch.equal(run(decoder, row_slot), alone), f"{count} threads"


def test_compiled_adapters_change_their_own_rows_only() -> None:
    decoder = make_decoder(
        torch.float32, "as they are", pack_adapters(RANKS, SHAPES, torch.float32)
    )
    row_slot = torch.tensor([slot for slot, n in MIXED for _ in range(n)], dtype=torch.int32)
    with_adapters = run(decoder, row_slot)
    base = run(decoder, torch.full_like(row_slot, BASE_SLOT))
    is_same = (with_adapters == base).all(dim=1)
    assert torch.equal(is_same, row_slot == BASE_SLOT)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38, 3e4])
@pytest.mark.parametrize("weights", ["as they are", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_that_are_no_numbers_bring_no_token(
    value: float, weights: str, dtype: torch.dtype
) -> None:
    """Of an adapter's own rows; with a mask, too, unless it allows nothing. By the last value the
    hidden states are numbers whose squares overflow."""
    adapters = pack_adapters(RANKS, SHAPES, dtype)
    adapters.pool.fill_(value)
    decoder = make_decoder(dtype, weights, adapters)
    row_slot = torch.tensor([BASE_SLOT, 0, 1, BASE_SLOT, 3], dtype=torch.int32)
    base, rows = run(decoder, row_slot).argmax(dim=1).tolist(), rows_of(row_slot)
    none = NO_NUMBER
    assert decoder.next_tokens(rows) == [base[0], none, none, base[3], none]
    bits = torch.zeros(5, -(-SIZES.vocab // 32), dtype=torch.int32)
    bits[2:, 0] = 1 << 6  # token 6 alone
    masks = Masks(torch.arange(5, dtype=torch.int32), bits.view(-1))
    assert decoder.next_tokens(rows, masks) == [0, 0, none, 6, none]
