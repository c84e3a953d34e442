"""Chooses block sizes for this GPU: one option after another is tried on a few cases, and kept
where it is faster and still right. Writes the table that the kernels read (`gpu/tuning.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tenora_bench.gpu.measure import Machine, Report
from tenora_kernels import KVLayout, build_attention_layout, build_segments
from tenora_kernels.gpu import paged_attention, sgmv
from tenora_kernels.gpu.tuning import AttentionTuning, SgmvTuning, Tuning, tuning_for
from tenora_kernels.synthetic import mix_rows, random_adapters, random_pages

LAYERS = 4
GAIN = 0.985  # an option must take this share of the seconds or less

Measure = Callable[[Any], float]
"""From a tuning to its seconds. Raises where that does not compile or is wrong."""

SGMV_OPTIONS: dict[str, tuple[Any, ...]] = {
    "early_expand": (True, False),
    "block_columns": (128, 256, 512),
    "block_features": (64, 128, 256, 512),
    "shrink_stages": (2, 3, 4, 5),
    "programs": (132, 256, 512, 1024, 2048),
    "expand_programs": (528, 792, 1056),
    "shrink_warps": (2, 4, 8),
    "expand_warps": (2, 4, 8),
    "block_rank": (16, 32, 64),
}
ATTENTION_OPTIONS: dict[str, tuple[Any, ...]] = {
    "block_context": (32, 64, 128),
    "stages": (2, 3, 5, 7),  # 5 is the first with two buffers of K and V
    "warps": (2, 4, 8),
    "programs": (256, 384, 512, 1024),
}


def tune(report: Report, machine: Machine, seconds: float) -> Tuning:
    """The best found within `seconds`, what matters most first."""
    regimes: Sequence[tuple[str, dict[str, tuple[Any, ...]], Measure, float]] = (
        (
            "sgmv_decode",
            SGMV_OPTIONS,
            sgmv_measure(
                machine,
                (
                    (64, 64, 16, (4096,)),
                    (64, 64, 16, (14336, 14336)),
                    (16, 16, 64, (4096, 1024, 1024)),
                ),
            ),
            0.45,
        ),
        (
            "attention_decode",
            ATTENTION_OPTIONS,
            attention_measure(machine, ((64, 1, 1024), (1, 1, 8192), (16, 1, 16384))),
            0.65,
        ),
        (
            "attention_decode_fp8",
            ATTENTION_OPTIONS,
            attention_measure(machine, ((64, 1, 1024),), torch.float8_e4m3fn),
            0.75,
        ),
        (
            "sgmv_prefill",
            SGMV_OPTIONS,
            sgmv_measure(machine, ((2048, 16, 16, (4096,)), (1024, 4, 64, (4096,)))),
            0.9,
        ),
        (
            "attention_prefill",
            ATTENTION_OPTIONS,
            attention_measure(machine, ((4, 512, 512), (1, 512, 4096))),
            1.0,
        ),
    )
    start, found = report.elapsed_s, tuning_for(machine.device)
    for name, options, measure, share in regimes:
        best = descend(getattr(found, name), options, measure, report, start + share * seconds)
        found = replace(found, **{name: best})
        print(f"tuned {name}: {best}", flush=True)
    return found


def descend(
    best: Any,
    options: dict[str, tuple[Any, ...]],
    measure: Measure,
    report: Report,
    deadline_s: float,
) -> Any:
    """One field after another to its best option, until the deadline."""
    least = measure(best)
    print(f"  as it is: {least * 1e6:.2f} us", flush=True)
    for name, values in options.items():
        for value in values:
            if report.elapsed_s > deadline_s:
                return best
            candidate = replace(best, **{name: value})
            if candidate == best:
                continue
            try:
                cost = measure(candidate)
            except Exception as error:  # too much shared memory, for one
                print(f"  {name}={value}: {repr(error)[:120]}")
                continue
            if cost < GAIN * least:
                best, least = candidate, cost
                print(f"  {name}={value}: {cost * 1e6:.2f} us", flush=True)
    return best


def sgmv_measure(machine: Machine, cases: Sequence[tuple[int, int, int, Sequence[int]]]) -> Measure:
    """Geometric mean of the seconds over cases of (tokens, adapters, rank, widths)."""

    def measure(tuning: SgmvTuning) -> float:
        total = 0.0
        for tokens, adapters, rank, widths in cases:
            shapes = [(4096, width) for width in widths]
            made = random_adapters(
                [rank] * adapters, LAYERS, shapes, machine.dtype, machine.device, max_rank=128
            )
            segments = build_segments(mix_rows("distinct", tokens, adapters), made.table)
            x = torch.randn(tokens, 4096, device=machine.device).to(machine.dtype)
            modules = tuple(range(len(widths)))

            def call(y: torch.Tensor, layer: int, chosen: SgmvTuning) -> None:
                sgmv.sgmv(y, x, made.pool, made.table, segments, layer, modules, widths, chosen)  # noqa: B023

            def fresh() -> torch.Tensor:
                return torch.zeros(tokens, sum(widths), device=x.device, dtype=x.dtype)  # noqa: B023

            got, expected, y = fresh(), fresh(), fresh()
            call(got, 0, tuning)
            call(expected, 0, SgmvTuning())
            require_close(got, expected)
            seconds = machine.seconds(lambda layer: call(y, layer, tuning), LAYERS, 3)  # noqa: B023
            total += math.log(seconds)
        return math.exp(total / len(cases))

    return measure


def attention_measure(
    machine: Machine,
    cases: Sequence[tuple[int, int, int]],
    kv_dtype: torch.dtype | None = None,  # None: the machine's
) -> Measure:
    """Geometric mean of the seconds over cases of (sequences, queries, context)."""
    kv = KVLayout(num_layers=LAYERS, block_tokens=16, kv_heads=8, head_dim=128)

    def measure(tuning: AttentionTuning) -> float:
        total = 0.0
        for sequences, query, context in cases:
            pages = random_pages([context] * sequences, kv, machine.dtype, machine.device)
            pool = pages.pool.to(kv_dtype or machine.dtype)
            layout = build_attention_layout(
                [query] * sequences,
                [context] * sequences,
                pages.block_tables,
                machine.device,
                parts=-(-tuning.programs // kv.kv_heads),
            )
            q = torch.randn(sequences * query, 32, 128, device=machine.device).to(machine.dtype)

            def call(out: torch.Tensor, layer: int, chosen: AttentionTuning) -> None:
                paged_attention.paged_attention(
                    q, pool, kv, layer, layout, 0.09, out, chosen  # noqa: B023
                )  # fmt: skip

            got, expected = torch.zeros_like(q), torch.zeros_like(q)
            call(got, 0, tuning)
            call(expected, 0, AttentionTuning())
            require_close(got, expected)
            seconds = machine.seconds(lambda layer: call(got, layer, tuning), LAYERS, 3)  # noqa: B023
            total += math.log(seconds)
        return math.exp(total / len(cases))

    return measure


def require_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises AssertionError unless they differ by no more than one rounding to bfloat16 would."""
    torch.testing.assert_close(got.float(), expected.float(), atol=4e-2, rtol=4e-2)
