"""What the kernels cost on the CPU, against the machine's own ceilings; behind `tenora bench
kernels`. All cases are timed in turns, so that a busy moment falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tenora_kernels import KVLayout, build_attention_layout, build_segments, paged_attention, sgmv
from tenora_kernels.segments import BASE_SLOT
from tenora_kernels.synthetic import mix_rows, random_adapters, random_pages

# SmolLM2-135M, the default base model
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 576, 1536, 9, 3, 64
KV_WIDTH = KV_HEADS * HEAD_DIM
SHAPES = (
    (HIDDEN, HIDDEN),
    (HIDDEN, KV_WIDTH),
    (HIDDEN, KV_WIDTH),
    (HIDDEN, HIDDEN),
    (HIDDEN, INTERMEDIATE),
    (HIDDEN, INTERMEDIATE),
    (INTERMEDIATE, HIDDEN),
)
PAGE_BYTES = KVLayout(30, 16, KV_HEADS, HEAD_DIM).page_elements * 2  # in bfloat16, 16 tokens each
CALLS = {"qkv": (0, 1, 2), "o": (3,), "gate_up": (4, 5), "down": (6,)}


@dataclass(frozen=True)
class Case:
    """One thing timed: a call for layer i, and what it moves and computes."""

    name: str
    call: Callable[[int], None]
    moved_bytes: int
    flops: int


@dataclass(frozen=True)
class Adapted:
    """A batch for sgmv: one rank for each adapter, one slot for each row."""

    name: str
    ranks: Sequence[int]
    row_slot: Tensor  # [rows] int32
    pages: torch.dtype


def run(
    device: str = "cpu",
    *,
    tokens: int = 16,
    adapters: int = 16,
    ranks: Sequence[int] = (8, 16, 64),
    context: int = 200,
    layers: int = 8,
    rounds: int = 15,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Medians over `rounds` turns of each case: microseconds per call (sgmv: all four calls of a
    layer), GB/s, GFLOP/s, and for sgmv its share of the base model's own products and of the
    machine's read rate. Weights of `layers` layers are walked through, so that none stays in the
    cache. Raises ValueError for a device other than the CPU: the GPU's benchmark is
    benchmarks/gpu.py (`make gpu`)."""
    if device != "cpu":
        raise ValueError("this benchmark times the CPU; run `make gpu` for a GPU")
    with torch.inference_mode():
        cases = [_base_products(tokens, layers, dtype), _copy(), _read()]
        cases += [_sgmv(batch, layers, dtype) for batch in _batches(tokens, adapters, ranks, dtype)]
        cases += [
            _attention("decode", [1] * tokens, [context] * tokens, layers, dtype),
            _attention("prefill", [256], [256], layers, dtype),
        ]
        times = _interleaved(cases, layers, rounds)
    base = times["base products"]
    results: dict[str, Any] = {}
    for case in cases:
        seconds = times[case.name]
        results[case.name] = {
            "us": round(seconds * 1e6, 1),
            "gb_per_s": round(case.moved_bytes / seconds / 1e9, 2),
            "gflop_per_s": round(case.flops / seconds / 1e9, 1),
        }
        if case.name.startswith("sgmv"):
            results[case.name]["of_base_products"] = round(seconds / base, 3)
            of_read = results[case.name]["gb_per_s"] / results["read"]["gb_per_s"]
            results[case.name]["of_read"] = round(of_read, 2)
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": tokens,
        "adapters": adapters,
        "context": context,
        "results": results,
    }


def _batches(
    tokens: int, adapters: int, ranks: Sequence[int], dtype: torch.dtype
) -> Iterator[Adapted]:
    """The mixes of the step asked for; and what does not depend on it: many rows, one, none."""
    for rank in ranks:
        for mix in ("distinct", "zipf", "identical"):
            rows = mix_rows(mix, tokens, adapters)
            yield Adapted(f"sgmv rank {rank} {mix}", [rank] * adapters, rows, dtype)
    in_turn = [ranks[i % len(ranks)] for i in range(adapters)]
    distinct = mix_rows("distinct", tokens, adapters)
    yield Adapted("sgmv ranks in turn distinct", in_turn, distinct, dtype)
    many, one = mix_rows("distinct", 64, 64), mix_rows("distinct", 1, 1)
    yield Adapted("sgmv rank 32 distinct, 64 rows", [32] * 64, many, dtype)
    yield Adapted("sgmv rank 32 distinct, 64 rows, int8", [32] * 64, many, torch.int8)
    yield Adapted("sgmv rank 8, 1 row", [8], one, dtype)
    yield Adapted("sgmv no adapter", [8], mix_rows("distinct", tokens, 1, tokens), dtype)


def _interleaved(cases: Sequence[Case], layers: int, rounds: int) -> dict[str, float]:
    """Median seconds per call of each case; the first turn of each is thrown away."""
    taken: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(rounds + 1):
        for case in cases:
            start = time.perf_counter()
            for layer in range(layers):
                case.call(layer)
            taken[case.name].append((time.perf_counter() - start) / layers)
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def _base_products(tokens: int, layers: int, dtype: torch.dtype) -> Case:
    """The base model's own four products of a layer."""
    widths = [sum(SHAPES[m][1] for m in modules) for modules in CALLS.values()]
    inputs = [SHAPES[modules[0]][0] for modules in CALLS.values()]
    x = {features: torch.randn(tokens, features).to(dtype) for features in set(inputs)}
    weights = [
        [torch.randn(w, i).to(dtype) for w, i in zip(widths, inputs, strict=True)]
        for _ in range(layers)
    ]

    def call(layer: int) -> None:
        for weight in weights[layer]:
            functional.linear(x[weight.shape[1]], weight)

    elements = sum(w * i for w, i in zip(widths, inputs, strict=True))
    return Case("base products", call, elements * dtype.itemsize, 2 * tokens * elements)


def _copy() -> Case:
    """The machine's copy rate, 64 MB."""
    source = torch.ones(32 * 1024**2, dtype=torch.uint8)
    target = torch.empty_like(source)

    def call(layer: int) -> None:
        target.copy_(source)

    return Case("copy", call, 2 * source.shape[0], 0)


def _read() -> Case:
    """The machine's read rate, 256 MB, in memory as the arena's."""
    source = torch.from_numpy(np.ones(32 * 1024**2, dtype=np.int64))

    def call(layer: int) -> None:
        source.sum()

    return Case("read", call, source.nbytes, 0)


def _sgmv(batch: Adapted, layers: int, dtype: torch.dtype) -> Case:
    """All four calls of a layer for adapters with every linear."""
    made = random_adapters(
        batch.ranks,
        layers,
        SHAPES,
        batch.pages,
        torch.device("cpu"),
        calls=CALLS.values(),
        page_elements=PAGE_BYTES // batch.pages.itemsize,
    )
    rows = batch.row_slot.shape[0]
    segments = build_segments(batch.row_slot, made.table)
    inputs = {f: torch.randn(rows, f).to(dtype) for f in (HIDDEN, INTERMEDIATE)}
    calls = [(modules, [SHAPES[m][1] for m in modules]) for modules in CALLS.values()]
    outputs = [torch.zeros(rows, sum(widths), dtype=dtype) for _, widths in calls]

    def call(layer: int) -> None:
        for y, (modules, widths) in zip(outputs, calls, strict=True):
            x = inputs[SHAPES[modules[0]][0]]
            sgmv(y, x, made.pool, made.table, segments, layer, modules, widths)

    slots = [slot for slot in batch.row_slot.tolist() if slot != BASE_SLOT]
    elements = sum(map(sum, SHAPES))
    moved = elements * sum(batch.ranks[slot] for slot in set(slots)) * batch.pages.itemsize
    return Case(batch.name, call, moved, 2 * elements * sum(batch.ranks[slot] for slot in slots))


def _attention(
    kind: str, query_lens: list[int], context_lens: list[int], layers: int, dtype: torch.dtype
) -> Case:
    kv = KVLayout(num_layers=layers, block_tokens=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    pages = random_pages(context_lens, kv, dtype, torch.device("cpu"))
    layout = build_attention_layout(query_lens, context_lens, pages.block_tables, "cpu")
    q = torch.randn(sum(query_lens), HEADS, HEAD_DIM).to(dtype)
    out = torch.empty_like(q)

    def call(layer: int) -> None:
        paged_attention(q, pages.pool, kv, layer, layout, HEAD_DIM**-0.5, out)

    tokens = sum(context_lens)
    seen = sum(n * (c - (n - 1) / 2) for n, c in zip(query_lens, context_lens, strict=True))
    flops = int(4 * seen * HEADS * HEAD_DIM)
    return Case(f"attention {kind}", call, 2 * tokens * KV_WIDTH * dtype.itemsize, flops)
