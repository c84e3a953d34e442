"""`make gpu`: proves every Triton kernel on a real GPU against the float32 references, then times
them against the GPU's measured ceilings. Needs torch, triton and this repository, nothing more."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tenora_kernels import KVLayout, build_attention_layout, build_segments, reference
from tenora_kernels.backend import Implementation, triton_implementation
from tenora_kernels.synthetic import MIXES, mix_rows, random_adapters, random_pages

# As in tests/kernels/cases.py: one rounding of an output of order 1, and of the intermediate.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Llama-3-8B: hidden, QKV and gate/up widths, heads
HIDDEN, QKV, GATE_UP = 4096, (4096, 1024, 1024), (14336, 14336)
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
LAYERS = 4  # walked through, so that weights do not stay in the L2


@dataclass
class Report:
    """What was found; `failed` decides the exit code."""

    started: float = field(default_factory=time.perf_counter)
    seconds_max: float = 420.0
    checks: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(not check["right"] for check in self.checks)

    def compare(self, name: str, actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
        """Record whether actual is expected within the dtype's tolerance, absolute + relative."""
        actual, expected = actual.float().cpu(), expected.float().cpu()
        error = (actual - expected).abs()
        bound = TOLERANCE[dtype] * (1 + expected.abs())
        right = bool((error <= bound).all())  # False where a NaN is
        worst = float(error.max()) if error.numel() else 0.0
        kind = str(dtype).removeprefix("torch.")
        self.checks.append({"check": name, "dtype": kind, "right": right, "max_error": worst})
        print(f"{'ok   ' if right else 'WRONG'} {name:<46} {kind:<9} max error {worst:.2e}")

    def time_left(self, what: str) -> bool:
        """False, and remembered, once the run has taken its time."""
        if time.perf_counter() - self.started < self.seconds_max:
            return True
        self.left_out.append(what)
        return False

    def add(self, name: str, seconds: float, floor: float, **facts: Any) -> None:
        """A timing beside the least time the ceilings allow for its bytes and operations."""
        row = {"case": name, "us": seconds * 1e6, "of_ceiling": floor / seconds, **facts}
        self.timings.append(row)
        extra = "  ".join(f"{k} {v:.3g}" for k, v in facts.items())
        print(f"{name:<58} {row['us']:>10.1f} us  {row['of_ceiling']:>6.1%} of ceiling  {extra}")


@dataclass(frozen=True)
class Ceilings:
    """What this GPU was seen to do, in this run."""

    bytes_per_s: float
    flops_per_s: float

    def floor(self, moved_bytes: float, flops: float) -> float:
        return max(moved_bytes / self.bytes_per_s, flops / self.flops_per_s)


def check_all(
    report: Report, ops: Implementation, device: torch.device, dtypes: Sequence[torch.dtype]
) -> None:
    """Every kernel against its reference."""
    for dtype in dtypes:
        check_sgmv(report, ops, device, dtype)
        check_attention(report, ops, device, dtype)
        check_kv_write(report, ops, device, dtype)
        check_norms(report, ops, device, dtype)


def check_sgmv(
    report: Report, ops: Implementation, device: torch.device, dtype: torch.dtype
) -> None:
    """The five mixes over ranks 1 to 128, with base rows and sizes that are no multiples of 16."""
    shapes = [(576, 576), (576, 192), (576, 200)]
    widths = [width for _, width in shapes]
    cpu = torch.device("cpu")
    made = random_adapters((1, 2, 3, 5, 8, 16, 33, 64, 128), 2, shapes, dtype, cpu)
    here = random_adapters((1, 2, 3, 5, 8, 16, 33, 64, 128), 2, shapes, dtype, device)
    pool = made.pool.to(device)
    for mix, rows in [*((mix, 23) for mix in MIXES), ("distinct", 1), ("identical", 300)]:
        row_slot = mix_rows(mix, rows, 9, base_rows=min(4, rows - 1))
        segments = build_segments(row_slot, here.table, tiles=True)
        x, y = torch.randn(rows, 576).to(dtype), torch.randn(rows, sum(widths)).to(dtype)
        expected = reference.sgmv(y, x, made.pool, made.table, row_slot, 1, (0, 1, 2), widths)
        got = y.to(device, copy=True)
        ops.sgmv(got, x.to(device), pool, here.table, segments, 1, (0, 1, 2), widths)
        report.compare(f"sgmv {mix}, {rows} rows", got, expected, dtype)


def check_attention(
    report: Report, ops: Implementation, device: torch.device, dtype: torch.dtype
) -> None:
    batches = {
        "decode": ([1, 1, 1], [1, 17, 600]),
        "prefill": ([40, 3], [40, 90]),
        "ragged": ([1, 33, 1], [70, 50, 4]),
    }
    for (heads, kv_heads, head_dim), (name, (query, context)) in (
        (shape, batch)
        for shape in ((9, 3, 64), (8, 1, 128), (4, 4, 80))
        for batch in batches.items()
    ):
        kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=kv_heads, head_dim=head_dim)
        pages = random_pages(context, kv, dtype, torch.device("cpu"))
        layout = build_attention_layout(query, context, pages.block_tables, device, tiles=True)
        q = torch.randn(sum(query), heads, head_dim).to(dtype)
        scale = head_dim**-0.5
        expected = reference.paged_attention(
            q, pages.pool, kv, 1, query, context, pages.block_tables, scale
        )
        out = torch.full(q.shape, torch.nan, dtype=dtype, device=device)
        ops.paged_attention(q.to(device), pages.pool.to(device), kv, 1, layout, scale, out)
        report.compare(
            f"paged_attention {name} {heads}/{kv_heads}x{head_dim}", out, expected, dtype
        )


def check_kv_write(
    report: Report, ops: Implementation, device: torch.device, dtype: torch.dtype
) -> None:
    for heads, kv_heads, head_dim, half in ((9, 3, 64, 32), (2, 2, 80, 20)):
        kv = KVLayout(num_layers=2, block_tokens=16, kv_heads=kv_heads, head_dim=head_dim)
        qkv = torch.randn(11, heads + 2 * kv_heads, head_dim).to(dtype)
        q, k, v = (
            qkv[:, :heads],
            qkv[:, heads : heads + kv_heads],
            qkv[:, heads + kv_heads :],
        )
        angle = torch.rand(99, half) * 6
        cos, sin = angle.cos(), angle.sin()
        positions, slots = torch.randint(0, 99, (11,)), torch.randperm(64)[:11]
        pool = torch.randn(4, kv.page_elements).to(dtype)
        lookup = (cos.to(dtype).float(), sin.to(dtype).float())
        expected_q = reference.rotate(q, *lookup, positions)
        rotated_k = reference.rotate(k, *lookup, positions)
        expected = reference.kv_write(rotated_k, v, pool, kv, 1, slots)
        packed, arena = qkv.to(device, copy=True), pool.to(device, copy=True)
        first_v = heads + kv_heads
        q, k, v = packed[:, :heads], packed[:, heads:first_v], packed[:, first_v:]
        rest = (cos.to(device), sin.to(device), positions.to(device))
        ops.kv_write(q, k, v, *rest, arena, kv, 1, slots.to(device))
        report.compare(f"kv_write q, head_dim {head_dim}", q, expected_q, dtype)
        report.compare(f"kv_write arena, head_dim {head_dim}", arena, expected, dtype)


def check_norms(
    report: Report, ops: Implementation, device: torch.device, dtype: torch.dtype
) -> None:
    for rows, hidden in ((1, 576), (7, 4096), (3, 37)):
        x, residual = torch.randn(rows, hidden).to(dtype), torch.randn(rows, hidden).to(dtype)
        weight = torch.randn(hidden).to(dtype)
        there = [t.to(device) for t in (x, weight, residual)]
        plain = ops.rms_norm(there[0], there[1], 1e-5)
        report.compare(f"rms_norm {hidden}", plain, reference.rms_norm(x, weight, 1e-5), dtype)
        normed, total = ops.add_rms_norm(there[0], there[1], 1e-5, there[2])
        expected = reference.rms_norm(x + residual, weight, 1e-5)
        report.compare(f"add_rms_norm {hidden}", normed, expected, dtype)
        report.compare(f"add_rms_norm sum {hidden}", total, x + residual, dtype)
        gate_up = torch.randn(rows, 2 * hidden).to(dtype)
        silu = ops.silu_mul(gate_up.to(device))
        report.compare(f"silu_mul {hidden}", silu, reference.silu_mul(gate_up), dtype)


def check_graph(report: Report, ops: Implementation, device: torch.device) -> None:
    """A captured sgmv replayed with other rows, other adapters and another number of tiles."""
    shapes, ranks, dtype = [(512, 512)], (4, 8, 16, 64), torch.bfloat16
    made = random_adapters(ranks, 1, shapes, dtype, device)
    x = torch.randn(32, 512, device=device).to(dtype)
    y = torch.zeros(32, 512, device=device, dtype=dtype)
    static = build_segments(mix_rows("distinct", 32, 4), made.table)
    arguments = (y, x, made.pool, made.table, static, 0, (0,), (512,))
    ops.sgmv(*arguments)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.sgmv(*arguments)
    for mix, base_rows in (("identical", 0), ("distinct", 9), ("zipf", 31), ("uniform", 32)):
        row_slot = mix_rows(mix, 32, 4, base_rows)
        new = build_segments(row_slot, made.table)
        assert static.tiles is not None
        assert new.tiles is not None
        static.tiles.copy_from(new.tiles)
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        table = type(made.table)(**{k: v.cpu() for k, v in vars(made.table).items()})
        rows = (torch.zeros(32, 512), x.cpu(), made.pool.cpu(), table, row_slot)
        expected = reference.sgmv(*rows, 0, (0,), (512,))
        report.compare(f"sgmv replayed, {mix}, {base_rows} base rows", y, expected, dtype)


def time_gpu(call: Callable[[int], object], rounds: int = 20) -> float:
    """Median seconds of one call. Calls are queued behind each other, so that what is timed is the
    GPU and not the launch from Python; call(i) gets another layer each time."""
    for layer in range(LAYERS):
        call(layer)
    torch.cuda.synchronize()
    samples: list[float] = []
    for _ in range(rounds):
        # torch leaves these three calls untyped
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        # about 1 ms: the queue fills meanwhile
        torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        start.record()
        for layer in range(LAYERS):
            call(layer)
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / LAYERS)
    return statistics.median(samples)


def measure_ceilings(device: torch.device) -> Ceilings:
    """Copy rate over 2 GiB (read + written) and bf16 products of 8192 x 8192."""
    source = torch.empty(1024**3, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * source.shape[0] / time_gpu(lambda layer: target.copy_(source))
    a, b = torch.randn(2, 8192, 8192, device=device, dtype=torch.bfloat16).unbind(0)
    matmul = 2 * 8192**3 / time_gpu(lambda layer: a @ b)
    print(f"ceilings: copy {copy / 1e12:.2f} TB/s, bf16 matmul {matmul / 1e12:.0f} TFLOP/s")
    return Ceilings(copy, matmul)


def sgmv_cases() -> Iterator[tuple[str, int, int, int]]:
    """(mix, rank, adapters, tokens)"""
    for rank in (16, 8, 64, 128):
        for adapters, tokens in ((1, 1), (16, 16), (64, 64), (128, 128)):
            yield "distinct", rank, adapters, tokens
        yield "zipf", rank, 64, 128
        yield "identical", rank, 1, 1024
        yield "distinct", rank, 8, 1024
        yield "skewed", rank, 32, 4096
        yield "identical", rank, 1, 4096


def time_sgmv(
    report: Report, ops: Implementation, ceilings: Ceilings, device: torch.device
) -> None:
    """Packed QKV and gate/up of Llama-3-8B; beside each the base model's own product."""
    dtype = torch.bfloat16
    for widths, (mix, rank, adapters, tokens) in (
        (widths, case) for case in sgmv_cases() for widths in (QKV, GATE_UP)
    ):
        name = f"sgmv {len(widths)}x{widths[0]} {mix} r{rank} a{adapters} t{tokens}"
        if not report.time_left(name):
            continue
        shapes = [(HIDDEN, width) for width in widths]
        made = random_adapters([rank] * adapters, LAYERS, shapes, dtype, device)
        row_slot = mix_rows(mix, tokens, adapters)
        segments = build_segments(row_slot, made.table)
        x = torch.randn(tokens, HIDDEN, device=device, dtype=dtype)
        y = torch.zeros(tokens, sum(widths), device=device, dtype=dtype)
        modules = tuple(range(len(widths)))
        seconds = time_gpu(
            lambda layer: ops.sgmv(
                y, x, made.pool, made.table, segments, layer, modules, widths  # noqa: B023
            )
        )  # fmt: skip
        weights = torch.randn(LAYERS, sum(widths), HIDDEN, device=device, dtype=dtype)
        base = time_gpu(lambda layer: functional.linear(x, weights[layer]))  # noqa: B023
        distinct = len(set(row_slot.tolist()))
        elements = rank * sum(map(sum, shapes))
        moved = 2.0 * (distinct * elements + x.numel() + 2 * y.numel())
        report.add(
            name,
            seconds,
            ceilings.floor(moved, 2.0 * tokens * elements),
            gb_per_s=moved / seconds / 1e9,
            of_base=seconds / base,
        )


def time_attention(
    report: Report, ops: Implementation, ceilings: Ceilings, device: torch.device
) -> None:
    """Decode and prefill; beside each torch's attention over keys that lie together already."""
    cases = [("decode", 1, context, n) for n, context in ((1, 8192), (16, 2048), (128, 1024))]
    cases += [("decode", 1, 16384, 16), ("prefill", 512, 512, 4), ("prefill", 2048, 2048, 1)]
    cases += [("prefill", 512, 8192, 1)]
    dtype = torch.bfloat16
    kv = KVLayout(num_layers=LAYERS, block_tokens=16, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    for kind, query, context, n in cases:
        name = f"attention {kind} {n} x {query} of {context}"
        if not report.time_left(name):
            continue
        pages = random_pages([context] * n, kv, dtype, device)
        layout = build_attention_layout([query] * n, [context] * n, pages.block_tables, device)
        q = torch.randn(n * query, HEADS, HEAD_DIM, device=device, dtype=dtype)
        out, scale = torch.empty_like(q), HEAD_DIM**-0.5
        seconds = time_gpu(
            lambda layer: ops.paged_attention(
                q, pages.pool, kv, layer, layout, scale, out  # noqa: B023
            )
        )  # fmt: skip
        keys = torch.randn(2, n, KV_HEADS, context, HEAD_DIM, device=device, dtype=dtype)
        dense = q.view(n, query, HEADS, HEAD_DIM).transpose(1, 2)
        whole = query == context
        late = torch.ones(query, context, device=device, dtype=torch.bool)
        late = late.tril(context - query)
        mask = None if whole or query == 1 else late
        torch_seconds = time_gpu(
            lambda layer: functional.scaled_dot_product_attention(
                dense, keys[0], keys[1], mask, is_causal=whole, enable_gqa=True  # noqa: B023
            )
        )  # fmt: skip
        moved = 2.0 * (2 * n * context * KV_HEADS * HEAD_DIM + 2 * q.numel())
        seen = n * query * (context - (query - 1) / 2)
        report.add(
            name,
            seconds,
            ceilings.floor(moved, 4.0 * seen * HEADS * HEAD_DIM),
            gb_per_s=moved / seconds / 1e9,
            of_torch=seconds / torch_seconds,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--check-only", action="store_true", help="prove, do not time")
    parser.add_argument("--seconds", type=float, default=420.0, help="start no case after this")
    parser.add_argument("--allow-no-gpu", action="store_true", help="exit 0 without a GPU")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("No NVIDIA GPU here: nothing was run, nothing was measured.")
        return 0 if arguments.allow_no_gpu else 2
    report = Report(seconds_max=arguments.seconds)
    device, ops = torch.device("cuda"), triton_implementation()
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, {ops.name}")
    torch.manual_seed(0)
    ceilings: Ceilings | None = None
    with torch.inference_mode():
        check_all(report, ops, device, DTYPES)
        check_graph(report, ops, device)
        if not arguments.check_only:
            ceilings = measure_ceilings(device)
            time_attention(report, ops, ceilings, device)
            time_sgmv(report, ops, ceilings, device)
    if arguments.json:
        result = {
            "gpu": name,
            "torch": torch.__version__,
            "ceilings": vars(ceilings) if ceilings else None,
            "checks": report.checks,
            "timings": report.timings,
            "left_out": report.left_out,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    for case in report.left_out:
        print(f"not reached in {arguments.seconds:.0f} s: {case}")
    wrong = sum(not check["right"] for check in report.checks)
    print(f"{len(report.checks)} checks, {wrong} wrong; {len(report.timings)} timings")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
