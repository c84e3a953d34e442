"""A whole step of the compiled decoder against the float32 reference of its ops: long contexts,
prompts and adapters in one batch, by one thread and by several; and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.kernels.cases import Adapters, fill_pages, mixed_ranks, pack_adapters
from torch import Tensor
from torch.nn import functional

from tenora_kernels import KVLayout, build_attention_layout, reference
from tenora_kernels.compiled.decoder import (
    DecoderSizes,
    Masks,
    PackedLayer,
    PackedProjection,
    Progress,
    StepDecoder,
    StepRows,
)
from tenora_kernels.compiled.linear import PackedWeight, pack_weight, quantise_weight
from tenora_kernels.compiled.load import load_extension

SIZES = DecoderSizes(hidden=48, intermediate=72, heads=6, kv_heads=2, head_dim=16, vocab=200)
KV = KVLayout(num_layers=2, block_tokens=16, kv_heads=2, head_dim=16)
QUERY, KEYS = 96, 32  # widths
# (in, out) of q, k, v, o, gate, up, down
SHAPES = [(48, 96), (48, 32), (48, 32), (96, 48), (48, 72), (48, 72), (72, 48)]
MAX_POSITIONS = 1200
Form = Literal["plain", "biased", "after", "around"]
EPS, SCALE = 1e-5, 0.25

# The first sequence alone has more than half of the step's attention: its context is split.
QUERY_LENS, CONTEXT_LENS = [1, 1, 11, 1, 1, 1], [1100, 9, 70, 257, 40, 1]
ROW_SLOTS = [0, 1, *[2] * 11, -1, 1, 3]


@pytest.fixture(autouse=True)
def _loaded(compiled_library: object) -> None:
    load_extension()


@dataclass(frozen=True)
class Linear:
    weight: Tensor  # [out, in]
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ self.weight.float().T
        return y if self.bias is None else y + self.bias.float()


@dataclass(frozen=True)
class Layer:
    attention_in: Tensor | None
    attention_out: Tensor | None
    mlp_in: Tensor | None
    mlp_out: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    cos: Tensor
    sin: Tensor
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Model:
    layers: list[Layer]
    embedding: Tensor | None  # None: the head's weights
    final_norm: Tensor
    head: Tensor

    def packed(self, pack: Callable[[Tensor], PackedWeight] = pack_weight) -> StepDecoder:
        def projection(linear: Linear) -> PackedProjection:
            return PackedProjection(pack(linear.weight), linear.bias)

        layers = [
            PackedLayer(
                attention_in=layer.attention_in,
                attention_out=layer.attention_out,
                mlp_in=layer.mlp_in,
                mlp_out=layer.mlp_out,
                query_norm=layer.query_norm,
                key_norm=layer.key_norm,
                cos=layer.cos,
                sin=layer.sin,
                qkv=projection(layer.qkv),
                out=projection(layer.out),
                gate_up=projection(layer.gate_up),
                down=projection(layer.down),
            )
            for layer in self.layers
        ]
        head = pack(self.head)
        return StepDecoder(SIZES, layers, self.embedding, self.final_norm, head, EPS, SCALE)


def random_model(dtype: torch.dtype, form: Form) -> Model:
    """`biased`: with biases, norms of each head, an embedding apart from the head. `after`: norms
    of what parts add and of whole queries and keys, and a layer without positions. `around`: norms
    of what they read too, and half of each head turned."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int, mean: float = 0.0) -> Tensor:
        deviation = 0.2 if mean else 1 / math.sqrt(shape[-1])
        return (mean + deviation * torch.randn(*shape, generator=generator)).to(dtype)

    def linear(features_in: int, features_out: int) -> Linear:
        bias = normal(features_out) if form == "biased" else None
        return Linear(normal(features_out, features_in), bias)

    def norm(*forms: Form, width: int = 48) -> Tensor | None:
        return normal(width, mean=1) if form in forms else None

    query_norm_width, key_norm_width = (QUERY, KEYS) if form == "after" else (16, 16)
    half = 4 if form == "around" else 8
    angle = torch.arange(MAX_POSITIONS)[:, None] * 100.0 ** (-torch.arange(half) / half)
    layers = [
        Layer(
            attention_in=norm("plain", "biased", "around"),
            attention_out=norm("after", "around"),
            mlp_in=norm("plain", "biased", "around"),
            mlp_out=norm("after", "around"),
            query_norm=norm("biased", "after", width=query_norm_width),
            key_norm=norm("biased", "after", width=key_norm_width),
            cos=angle.cos()[:, :turned].contiguous(),
            sin=angle.sin()[:, :turned].contiguous(),
            qkv=linear(48, QUERY + 2 * KEYS),
            out=linear(QUERY, 48),
            gate_up=linear(48, 2 * SIZES.intermediate),
            down=linear(SIZES.intermediate, 48),
        )
        for turned in (half, 0 if form == "after" else half)
    ]
    return Model(
        layers=layers,
        embedding=normal(SIZES.vocab, 48) if form == "biased" else None,
        final_norm=normal(48, mean=1),
        head=normal(SIZES.vocab, 48),
    )


@dataclass(frozen=True)
class Case:
    """One step: its rows, and an arena in which the tokens before them are."""

    rows: StepRows
    pool: Tensor
    block_tables: list[list[int]]
    adapters: Adapters

    def logits(self, decoder: StepDecoder) -> tuple[Tensor, Tensor]:
        """And the arena afterwards."""
        pool = self.pool.clone()
        decoder.use_arena(pool, self.adapters.pool, KV, self.adapters.table)
        return decoder.next_logits(self.rows), pool


def make_case(dtype: torch.dtype, adapter_dtype: torch.dtype) -> Case:
    pages = fill_pages(CONTEXT_LENS, KV, dtype)
    layout = build_attention_layout(QUERY_LENS, CONTEXT_LENS, pages.block_tables, "cpu")
    positions = [
        position
        for query, context in zip(QUERY_LENS, CONTEXT_LENS, strict=True)
        for position in range(context - query, context)
    ]
    sequences = [i for i, query in enumerate(QUERY_LENS) for _ in range(query)]
    slots = [
        pages.block_tables[i][position // 16] * 16 + position % 16
        for i, position in zip(sequences, positions, strict=True)
    ]
    rows = StepRows(
        token_ids=torch.randint(0, SIZES.vocab, (len(positions),)),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        query_start=layout.query_start,
        context_len=layout.context_len,
        block_table=layout.block_table,
        row_slot=torch.tensor(ROW_SLOTS, dtype=torch.int32),
        wanted=torch.tensor([0, 1, 12, 13, 14, 15, 3]),
    )
    adapters = pack_adapters(mixed_ranks(4, 2, 7, (3, 16, 9)), SHAPES, adapter_dtype)
    return Case(rows, pages.pool, pages.block_tables, adapters)


def plain_case(adapter_dtype: torch.dtype = torch.float32) -> tuple[Case, StepDecoder]:
    model = random_model(torch.float32, "plain")
    return make_case(torch.float32, adapter_dtype), model.packed()


def expected_logits(model: Model, case: Case) -> Tensor:
    """The step by the reference's ops, in float32."""
    rows, pool = case.rows, case.pool.float()
    adapters = (case.adapters.pool, case.adapters.table, rows.row_slot)

    def lora(y: Tensor, x: Tensor, layer: int, first: int, widths: tuple[int, ...]) -> Tensor:
        modules = tuple(range(first, first + len(widths)))
        return reference.sgmv(y, x, *adapters, layer, modules, widths)

    embedding = model.head if model.embedding is None else model.embedding
    x = embedding[rows.token_ids].float()
    for n, layer in enumerate(model.layers):
        normed = norm(x, layer.attention_in)
        qkv = lora(layer.qkv(normed), normed, n, 0, (QUERY, KEYS, KEYS))
        q, k, v = torch.split(qkv, [QUERY, KEYS, KEYS], 1)
        q, k = norm_groups(q, layer.query_norm), norm_groups(k, layer.key_norm)
        q, k, v = (part.view(len(part), -1, 16) for part in (q, k, v))
        q, k = (reference.rotate(part, layer.cos, layer.sin, rows.positions) for part in (q, k))
        pool = reference.kv_write(k, v, pool, KV, n, rows.slots)
        mixed = reference.paged_attention(
            q, pool, KV, n, QUERY_LENS, CONTEXT_LENS, case.block_tables, SCALE
        ).flatten(1)
        x = x + norm(lora(layer.out(mixed), mixed, n, 3, (48,)), layer.attention_out)
        normed = norm(x, layer.mlp_in)
        gate_up = lora(layer.gate_up(normed), normed, n, 4, (72, 72))
        product = reference.silu_mul(gate_up)
        x = x + norm(lora(layer.down(product), product, n, 6, (48,)), layer.mlp_out)
    return reference.rms_norm(x[rows.wanted], model.final_norm, EPS) @ model.head.float().T


def norm(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else reference.rms_norm(x, weight, EPS)


def norm_groups(x: Tensor, weight: Tensor | None) -> Tensor:
    """Of each `len(weight)` neighbours of a row."""
    return x if weight is None else norm(x.view(len(x), -1, len(weight)), weight).flatten(1)


def distance(actual: Tensor, expected: Tensor) -> float:
    """The error's size over all entries, as a part of what the entries spread over."""
    return float((actual.float() - expected).square().mean().sqrt() / expected.std())


# What rounds: float32 sums in another order; every result to 8 bits; weights and inputs to 8 bits.
NEAR = {
    ("float32", "as they are"): 5e-6,
    ("bfloat16", "as they are"): 0.03,
    ("float32", "int8"): 0.06,
    ("bfloat16", "int8"): 0.06,
}


@pytest.mark.parametrize(
    ("adapter_pages", "form"),
    [
        ("as activations", "plain"),
        ("int8", "biased"),
        ("as activations", "after"),
        ("int8", "around"),
    ],
)
@pytest.mark.parametrize(("dtype", "weights"), NEAR)
def test_a_step_equals_the_reference_on_any_threads(
    dtype: str, weights: str, adapter_pages: str, form: Form
) -> None:
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    model = random_model(kind, form)
    case = make_case(kind, torch.int8 if adapter_pages == "int8" else kind)
    decoder = model.packed(quantise_weight if weights == "int8" else pack_weight)
    before = torch.get_num_threads()
    results: list[tuple[Tensor, Tensor]] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(case.logits(decoder))
    finally:
        torch.set_num_threads(before)
    (logits, pool), *others = results
    assert distance(logits, expected_logits(model, case)) < NEAR[dtype, weights]
    assert all(torch.equal(logits, other) for other, _ in others)
    assert all(torch.equal(pool.nan_to_num(), other.nan_to_num()) for _, other in others)


def test_a_step_of_which_nothing_is_wanted_writes_its_kv() -> None:
    case, decoder = plain_case()
    _, expected = case.logits(decoder)
    silent = replace(case, rows=case.rows._replace(wanted=torch.zeros(0, dtype=torch.int64)))
    logits, pool = silent.logits(decoder)
    assert logits.shape == (0, SIZES.vocab)
    assert torch.equal(pool.nan_to_num(), expected.nan_to_num())


def test_a_step_without_rows() -> None:
    case, decoder = plain_case()
    nothing = StepRows(*(tensor[:0] for tensor in case.rows))
    nothing = nothing._replace(query_start=torch.zeros(1, dtype=torch.int32))
    logits, pool = replace(case, rows=nothing).logits(decoder)
    assert logits.shape == (0, SIZES.vocab)
    assert torch.equal(pool.nan_to_num(), case.pool.nan_to_num())
    assert decoder.next_tokens(nothing) == []


def with_entry(tensor: Tensor, index: int | tuple[int, int], value: int) -> Tensor:
    changed = tensor.clone()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("field", "index", "value", "message"),
    [
        ("token_ids", 3, SIZES.vocab, "token_ids is out of range"),
        ("token_ids", 0, -1, "token_ids is out of range"),
        ("positions", 0, MAX_POSITIONS, "positions is out of range"),
        ("slots", 5, 10_000, "slots is out of range"),
        ("slots", 5, -1, "slots is out of range"),
        ("row_slot", 0, 4, "row_slot is out of range"),
        ("wanted", 6, len(ROW_SLOTS), "wanted is out of range"),
        ("query_start", 0, -3, "query_start does not go from 0 to 16"),
        ("query_start", -1, 17, "query_start does not go from 0 to 16"),
        ("query_start", 2, 1, "query_len"),
        ("context_len", 2, 10, "query_len"),
        ("context_len", 0, 1105, "longer than its block table"),
        ("block_table", (1, 0), 10_000, "page outside the arena"),
        ("block_table", (0, 68), -1, "page outside the arena"),
    ],
)
def test_rows_that_would_be_read_or_written_elsewhere_are_refused(
    field: str, index: int | tuple[int, int], value: int, message: str
) -> None:
    case, decoder = plain_case()
    changed = with_entry(getattr(case.rows, field), index, value)
    pool = case.pool.clone()
    decoder.use_arena(pool, case.adapters.pool, KV, case.adapters.table)
    with pytest.raises((RuntimeError, ValueError), match=message):
        decoder.next_logits(case.rows._replace(**{field: changed}))
    assert torch.equal(pool.nan_to_num(), case.pool.nan_to_num()), "nothing was written"


@pytest.mark.parametrize(
    ("field", "index", "value"),
    [
        ("rank", (0, 1, 2), 17),
        ("rank", (0, 1, 2), -1),
        ("granule_offset", (1, 0, 0), -1),
        ("granule_offset", (1, 1, 8), 10**9),
        ("a_offset", (2, 0, 1), 10**9),
        ("b_offset", (2, 0, 1), -(10**9)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_adapters_that_lie_elsewhere_are_refused(
    dtype: torch.dtype, field: str, index: tuple[int, int, int], value: int
) -> None:
    case, decoder = plain_case(dtype)
    table = case.adapters.table
    getattr(table, field)[index] = value
    decoder.use_arena(case.pool, case.adapters.pool, KV, table)
    with pytest.raises((RuntimeError, ValueError), match="lie outside the arena"):
        decoder.next_logits(case.rows)
    unused = torch.full_like(case.rows.row_slot, -1)
    assert decoder.next_logits(case.rows._replace(row_slot=unused)).isfinite().all()


def test_an_arena_of_another_shape_is_refused() -> None:
    case, decoder = plain_case()
    with pytest.raises(RuntimeError, match="use_arena comes first"):
        decoder.next_logits(case.rows)
    pool, adapters, table = case.pool, case.adapters.pool, case.adapters.table
    for bad_pool in (pool[:, :-1].contiguous(), pool.bfloat16(), pool.flatten(), pool.t()):
        with pytest.raises(RuntimeError, match="arena has the wrong dtype or shape"):
            decoder.use_arena(bad_pool, adapters, KV, table)
    with pytest.raises(RuntimeError, match="adapters' pages"):
        decoder.use_arena(pool, adapters.bfloat16(), KV, table)
    for name in (field.name for field in fields(table) if field.name != "alignment"):
        for change in (Tensor.double, lambda tensor: tensor[:, :1], lambda tensor: tensor[0]):
            changed: dict[str, Any] = {name: change(getattr(table, name))}
            bad_table = replace(table, **changed)
            with pytest.raises(RuntimeError, match="adapter table: wrong"):
                decoder.use_arena(pool, adapters, KV, bad_table)


def test_a_model_that_does_not_fit_together_is_refused() -> None:
    model = random_model(torch.float32, "biased")
    layer, weight = model.layers[0], model.layers[0].down.weight

    def with_layer(**changes: Any) -> Model:
        return replace(model, layers=[replace(layer, **changes)])

    wrong = [
        ("come together", with_layer(key_norm=None)),
        ("has 24 elements, not 48", with_layer(mlp_in=weight[0, :24])),
        ("has 48 elements, not 16", with_layer(query_norm=weight[0, :48])),
        ("elements, not", with_layer(down=layer.out)),
        ("elements, not", replace(model, embedding=weight)),
        ("elements, not", with_layer(sin=layer.sin[:5])),
        ("decoder: dtype", replace(model, final_norm=model.final_norm.half())),
        ("or another dtype", with_layer(cos=layer.cos.double())),
        ("decoder: cos", with_layer(cos=layer.cos.repeat(1, 2))),
        ("number of tensors", replace(model, layers=[])),
    ]
    for message, bad in wrong:
        with pytest.raises(RuntimeError, match=message):
            bad.packed()


def test_progress_that_is_not_of_the_step_is_refused() -> None:
    case, decoder = plain_case()
    decoder.use_arena(case.pool, case.adapters.pool, KV, case.adapters.table)
    with pytest.raises(RuntimeError, match="pause has the wrong dtype"):
        decoder.advance_logits(case.rows, Progress(torch.zeros(1)))
    progress = Progress(torch.zeros(1, dtype=torch.int32))
    progress.residual = torch.zeros(len(ROW_SLOTS) - 1, SIZES.hidden)
    with pytest.raises(RuntimeError, match="elements, not"):
        decoder.advance_logits(case.rows, progress)
    for layer in (-1, 2):
        done = Progress(torch.zeros(1, dtype=torch.int32))
        done.layer = layer
        with pytest.raises(RuntimeError, match="layer is out of range"):
            decoder.advance_tokens(case.rows, done)


def test_a_mask_leaves_the_likeliest_of_what_it_allows() -> None:
    """Of single tokens, of nearly all, and of those behind the last whole word."""
    case, decoder = plain_case()
    logits, _ = case.logits(decoder)
    generator, words = torch.Generator().manual_seed(6), -(-SIZES.vocab // 32)
    for share in (0.01, 0.5, 0.99, 1.0):
        allowed = torch.rand(len(logits), SIZES.vocab, generator=generator) < share
        allowed[:, -1] |= ~allowed.any(1)
        padded = functional.pad(allowed, (0, words * 32 - SIZES.vocab)).numpy()
        bits = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
        place = torch.arange(len(logits), dtype=torch.int32).flip(0)
        place[0] = -1  # it has none
        masks = Masks(place, torch.from_numpy(bits[::-1].copy()).view(-1))
        allowed[0] = True
        expected = logits.float().masked_fill(~allowed, -torch.inf).argmax(1).tolist()
        assert decoder.next_tokens(case.rows, masks) == expected
        assert decoder.next_tokens(case.rows) == logits.float().argmax(1).tolist()


def test_masks_of_another_size_are_refused() -> None:
    case, decoder = plain_case()
    decoder.use_arena(case.pool, case.adapters.pool, KV, case.adapters.table)
    bits = torch.zeros(-(-SIZES.vocab // 32), dtype=torch.int32)
    first = torch.zeros(len(case.rows.wanted), dtype=torch.int32)
    for masks in (Masks(first[1:], bits), Masks(first + 1, bits), Masks(first, bits.long())):
        with pytest.raises(RuntimeError, match="mask"):
            decoder.next_tokens(case.rows, masks)
