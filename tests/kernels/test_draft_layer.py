"""The draft layer of the compiled library: chains as plain torch makes them, the same alone and
among others, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tenora_kernels.compiled.decoder import DecoderSizes, Progress
from tenora_kernels.compiled.draft_layer import DraftLayer, DraftWeights, Seeds
from tenora_kernels.compiled.linear import pack_weight, quantise_weight, unpack_rows
from tenora_kernels.compiled.load import load_extension
from tenora_kernels.segments import KVLayout

SIZES = DecoderSizes(hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16, vocab=200)
LAYERS, BLOCK, POSITIONS, EPS, SCALE = 3, 8, 64, 1e-5, 0.25
KNOWN = torch.arange(1, 200, 3)


@pytest.fixture(autouse=True)
def _loaded(compiled_library: object) -> None:
    load_extension()


def weights_of(dtype: torch.dtype) -> tuple[DraftWeights, dict[str, Tensor]]:
    """Packed, and as they are; of bfloat16 those of linears have 8 bits."""
    torch.manual_seed(0)
    hidden, inner, query = SIZES.hidden, SIZES.intermediate, SIZES.heads * SIZES.head_dim
    shapes = {
        "join": (hidden, 2 * hidden),
        "query": (query, hidden),
        "out": (hidden, query),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    plain = {name: torch.randn(shape).to(dtype) * 0.2 for name, shape in shapes.items()}
    norms = ("base_norm", "embedding_norm", "state_norm", "attention_norm", "mlp_norm")
    plain |= {name: (1 + 0.1 * torch.randn(hidden)).to(dtype) for name in (*norms, "final_norm")}
    plain["lm_head"] = torch.randn(SIZES.vocab, hidden).to(dtype)
    angles = torch.randn(POSITIONS, SIZES.head_dim // 2)
    pack = pack_weight if dtype == torch.float32 else quantise_weight
    lm_head = pack_weight(plain["lm_head"])
    packed: dict[str, Any] = {name: pack(plain[name]) for name in shapes}
    packed |= {name: plain[name] for name in (*norms, "final_norm")}
    made = DraftWeights(
        embedding=None,
        lm_head=lm_head,
        head=pack(unpack_rows(lm_head, KNOWN, dtype)),
        vocabulary=KNOWN,
        cos=angles.cos(),
        sin=angles.sin(),
        **packed,
    )
    return made, {**plain, "cos": made.cos, "sin": made.sin}


def layer_of(weights: DraftWeights) -> DraftLayer:
    return DraftLayer(SIZES, weights, EPS, SCALE)


class Case:
    """Rows of sequences whose KV lies in pages anywhere in an arena."""

    def __init__(self, dtype: torch.dtype, contexts: list[int]) -> None:
        torch.manual_seed(1)
        self.contexts, self.count = contexts, len(contexts)
        blocks = max(-(-context // BLOCK) for context in contexts)
        self.kv = KVLayout(LAYERS, BLOCK, SIZES.kv_heads, SIZES.head_dim)
        pages = torch.randperm(self.count * blocks, dtype=torch.int32)
        self.table = pages.view(self.count, blocks).contiguous()
        self.pool = torch.randn(self.count * blocks, self.kv.page_elements).to(dtype)
        self.progress = Progress(torch.zeros(1, dtype=torch.int32))
        self.progress.residual = torch.randn(3 * self.count, SIZES.hidden).to(dtype)
        self.tokens = torch.randint(0, SIZES.vocab, (self.count,)).tolist()

    def chains(
        self, layer: DraftLayer, rows: list[int], length: int, least_chance: float = 0.0
    ) -> list[list[int]]:
        seeds = Seeds(
            last=[3 * row + 1 for row in rows],
            token_ids=[self.tokens[row] for row in rows],
            positions=[self.contexts[row] for row in rows],
            table_rows=rows,
        )
        return layer.propose(
            self.progress, seeds, self.table, self.pool, self.kv, length, least_chance
        )


def plain_chain(
    case: Case, row: int, weights: dict[str, Tensor], length: int
) -> tuple[list[int], list[float]]:
    """In float32, one op after the other; and how likely each token is with those before it."""
    kv_heads, head_dim, context = SIZES.kv_heads, SIZES.head_dim, case.contexts[row]
    pages = case.pool.view(-1, LAYERS, 2, BLOCK, kv_heads, head_dim)[case.table[row].long(), -1]
    keys, values = (pages[:, part].flatten(0, 1)[:context] for part in (0, 1))
    keys, values = (each.repeat_interleave(2, dim=1) for each in (keys, values))

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape, weights[name], EPS)

    assert case.progress.residual is not None
    state = norm(case.progress.residual[3 * row + 1], "base_norm")
    token, found, chances = case.tokens[row], [], [1.0]
    for ahead in range(length):
        embedded = norm(weights["lm_head"][token], "embedding_norm")
        x = weights["join"] @ torch.cat([embedded, norm(state, "state_norm")])
        query = (weights["query"] @ norm(x, "attention_norm")).view(SIZES.heads, head_dim)
        cos, sin = (weights[name][context + ahead] for name in ("cos", "sin"))
        low, high = query.chunk(2, dim=1)
        query = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=1)
        seen = torch.einsum("hd,thd->ht", query, keys).mul(SCALE).softmax(dim=1)
        x = x + weights["out"] @ torch.einsum("ht,thd->hd", seen, values).flatten()
        gate, up = (weights["gate_up"] @ norm(x, "mlp_norm")).chunk(2)
        x = x + weights["down"] @ (functional.silu(gate) * up)
        state = norm(x, "final_norm")
        shares = (weights["lm_head"][KNOWN] @ state).softmax(dim=0)
        token = int(KNOWN[shares.argmax()])
        found.append(token)
        chances.append(chances[-1] * float(shares.max()))
    return found, chances[1:]


def test_chains_are_those_of_plain_torch() -> None:
    packed, plain = weights_of(torch.float32)
    case = Case(torch.float32, [1, 9, 16, 40, 23])
    chains = case.chains(layer_of(packed), list(range(case.count)), 5)
    assert chains == [plain_chain(case, row, plain, 5)[0] for row in range(case.count)]


def test_a_chain_ends_where_it_is_not_likely_enough() -> None:
    packed, plain = weights_of(torch.float32)
    plain["lm_head"] /= 10  # else all that is likeliest is nearly certain
    packed = replace(packed, lm_head=pack_weight(plain["lm_head"]))
    packed = replace(packed, head=pack_weight(unpack_rows(packed.lm_head, KNOWN, torch.float32)))
    layer, case = layer_of(packed), Case(torch.float32, [1, 9, 16, 40, 23])
    rows = list(range(case.count))
    expected = [plain_chain(case, row, plain, 4) for row in rows]
    seen = set()
    for least in (0.0, 1e-5, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.3, 0.7, 1.1):
        lengths = [sum(chance >= least for chance in chances) for _, chances in expected]
        assert case.chains(layer, rows, 4, least) == [
            tokens[:length] for (tokens, _), length in zip(expected, lengths, strict=True)
        ]
        seen.update(lengths)
    assert len(seen) > 3


def test_an_embedding_of_its_own_is_read() -> None:
    packed, plain = weights_of(torch.float32)
    case, own = Case(torch.float32, [12]), torch.randn(SIZES.vocab, SIZES.hidden)
    case.tokens = [0]
    assert 0 not in KNOWN
    plain["lm_head"][case.tokens[0]] = own[case.tokens[0]]  # which the layer's head does not have
    first = case.chains(layer_of(replace(packed, embedding=own)), [0], 1)
    assert first == [plain_chain(case, 0, plain, 1)[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_chain_alone_and_among_others(dtype: torch.dtype) -> None:
    layer = layer_of(weights_of(dtype)[0])
    case = Case(dtype, [5, 1, 33, 16, 60])
    together = case.chains(layer, [0, 1, 2, 3, 4], 3)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for row in range(case.count):
                assert case.chains(layer, [row], 3) == [together[row]]
            assert case.chains(layer, [4, 2], 2) == [together[4][:2], together[2][:2]]
    finally:
        torch.set_num_threads(threads)
    assert case.chains(layer, [], 3) == []


def test_refuses_what_does_not_fit() -> None:
    packed, _ = weights_of(torch.float32)
    layer, case = layer_of(packed), Case(torch.float32, [5, 9])
    fitting = Seeds([1, 4], [3, 3], [5, 9], [0, 1])
    for change, match in (
        ({"last": [99, 0]}, "last is out of range"),
        ({"token_ids": [0, SIZES.vocab]}, "token_ids is out of range"),
        ({"positions": [0, 1]}, "positions is out of range"),
        ({"positions": [POSITIONS, 1]}, "positions is out of range"),
        ({"table_rows": [0, 2]}, "table_rows is out of range"),
        ({"last": [0]}, "rows differ in number"),
    ):
        seeds = fitting._replace(**change)
        with pytest.raises(RuntimeError, match=match):
            layer.propose(case.progress, seeds, case.table, case.pool, case.kv, 2)
    with pytest.raises(RuntimeError, match="arena has the wrong"):
        layer.propose(case.progress, fitting, case.table, case.pool.double(), case.kv, 2)
    beyond = fitting._replace(positions=[5, 17])  # its pages have 16 tokens
    with pytest.raises(RuntimeError):
        layer.propose(case.progress, beyond, case.table, case.pool, case.kv, 2)
    with pytest.raises(RuntimeError, match="vocabulary is out of range"):
        layer_of(replace(packed, vocabulary=torch.tensor([SIZES.vocab])))
    with pytest.raises(RuntimeError, match="elements"):
        layer_of(replace(packed, join=packed.down))
