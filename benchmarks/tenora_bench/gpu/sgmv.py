"""sgmv over ranks, adapters, tokens and mixes: achieved bytes a second, beside a gather with a
batched product, a loop over adapters, the base model's own product, and peers' kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tenora_bench.gpu.measure import Call, Ceilings, Machine, Report
from tenora_bench.gpu.peers import Peer
from tenora_kernels import build_segments
from tenora_kernels.synthetic import mix_rows, random_adapters

# Projections of Llama-3.1-8B: in features, widths
SHAPES = {
    "o": (4096, (4096,)),
    "qkv": (4096, (4096, 1024, 1024)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}
MAX_RANK = 128  # of the table, as the engine's default
BYTES_WALKED = 256e6  # weights of all layers together: several times the L2
BASELINE_ROWS = 256  # the gather copies every row's weights; more rows would only be slower


@dataclass(frozen=True)
class Cell:
    """One case of the grid."""

    shape: str
    mix: str
    rank: int
    adapters: int
    tokens: int

    @property
    def name(self) -> str:
        return f"sgmv {self.shape} {self.mix} r{self.rank} a{self.adapters} t{self.tokens}"


def grid(smoke: bool) -> Iterator[Cell]:
    """The cases that matter most first: where time runs out, the rest is left out."""
    if smoke:
        yield from (Cell("tiny", mix, 5, 3, 4) for mix in ("distinct", "zipf"))
        return
    yield from (Cell(shape, "distinct", 16, 64, 64) for shape in SHAPES)
    for rank in (16, 8, 64, 32, 128):
        for tokens, adapters in ((1, 1), (16, 16), (64, 64), (128, 128), (64, 16), (128, 16)):
            if (rank, tokens, adapters) != (16, 64, 64):
                yield Cell("o", "distinct", rank, adapters, tokens)
        yield Cell("o", "identical", rank, 1, 64)
        yield Cell("o", "zipf", rank, 64, 128)
        for tokens in (1024, 4096):
            yield Cell("o", "identical", rank, 1, tokens)
            yield Cell("o", "distinct", rank, 16, tokens)
            yield Cell("o", "distinct", rank, 128, tokens)
    for mix in ("uniform", "skewed", "zipf"):
        yield from (Cell("qkv", mix, 16, 128, tokens) for tokens in (16, 128, 1024, 4096))
    for shape in ("qkv", "gate_up", "down"):
        for rank, adapters, tokens in ((16, 1, 1), (64, 64, 64), (16, 8, 1024)):
            yield Cell(shape, "distinct", rank, adapters, tokens)


def time_sgmv(report: Report, machine: Machine, ceilings: Ceilings, peers: Sequence[Peer]) -> None:
    for cell in grid(machine.smoke):
        report.attempt(cell.name, partial(time_cell, report, machine, ceilings, cell, peers))


def time_cell(
    report: Report, machine: Machine, ceilings: Ceilings, cell: Cell, peers: Sequence[Peer]
) -> None:
    inputs, widths = SHAPES.get(cell.shape, (32, (16, 48)))
    shapes = [(inputs, width) for width in widths]
    elements = cell.rank * sum(map(sum, shapes))
    item = machine.dtype.itemsize
    layers = int(min(64, max(4, BYTES_WALKED / (cell.adapters * elements * item))))
    if machine.smoke:
        layers = 2
    ranks = [cell.rank] * cell.adapters
    made = random_adapters(ranks, layers, shapes, machine.dtype, machine.device, max_rank=MAX_RANK)
    row_slot = mix_rows(cell.mix, cell.tokens, cell.adapters)
    segments = build_segments(
        row_slot, made.table, max_segments=cell.tokens if cell.tokens <= 256 else None, tiles=True
    )
    x = torch.randn(cell.tokens, inputs, device=machine.device).to(machine.dtype)
    y = torch.zeros(cell.tokens, sum(widths), device=machine.device, dtype=machine.dtype)
    modules = tuple(range(len(widths)))
    seconds = machine.seconds(
        lambda layer: machine.ops.sgmv(
            y, x, made.pool, made.table, segments, layer, modules, widths
        ),
        layers,
    )
    base_layers = 2 if machine.smoke else 4
    weights = torch.randn(base_layers, sum(widths), inputs, device=machine.device).to(machine.dtype)
    base = machine.seconds(lambda layer: functional.linear(x, weights[layer]), base_layers)
    distinct = len(set(row_slot.tolist()))
    moved = item * (distinct * elements + x.numel() + 2 * y.numel())
    others = rival_times(machine, cell, shapes, row_slot, x, layers, peers, report)
    report.add(
        cell.name,
        seconds,
        ceilings.floor(moved, 2.0 * cell.tokens * elements),
        gb_per_s=moved / seconds / 1e9,
        of_base=seconds / base,
        **{f"of_{name}": None if took is None else seconds / took for name, took in others.items()},
    )


def rival_times(
    machine: Machine,
    cell: Cell,
    shapes: Sequence[tuple[int, int]],
    row_slot: Tensor,
    x: Tensor,
    layers: int,
    peers: Sequence[Peer],
    report: Report,
) -> dict[str, float | None]:
    """Seconds of everything else that does the same, with weights as dense tensors: A
    [layers, adapters, slices * rank, in] and B [layers, adapters, sum of widths, rank]. None where
    it does not run; why is in the report's errors."""
    widths = [width for _, width in shapes]
    inputs, slices = shapes[0][0], len(shapes)
    size = (layers, cell.adapters)
    a = torch.randn(*size, slices * cell.rank, inputs, device=machine.device).to(machine.dtype)
    b = torch.randn(*size, sum(widths), cell.rank, device=machine.device).to(machine.dtype)
    y = torch.zeros(cell.tokens, sum(widths), device=machine.device, dtype=machine.dtype)
    calls: dict[str, Call] = {"loop": loop_call(a, b, widths, row_slot, x, y)}
    if cell.tokens <= BASELINE_ROWS:
        calls["bmm"] = bmm_call(a, b, widths, row_slot.to(machine.device).long(), x, y)
    calls["loop"](0)
    expected = y.clone()
    makers = {name: partial(as_given, call) for name, call in calls.items()}
    makers |= {peer.name: partial(peer.call, a, b, widths, row_slot, x, y) for peer in peers}
    found: dict[str, float | None] = {}
    for name, make in makers.items():
        try:
            call = make()
            require_same(call, y, expected)
            found[name] = machine.seconds(call, layers, rounds=5)
        except Exception as error:
            found[name] = None
            report.note_error(f"{name}, {cell.name}", error)
    return found


def as_given(call: Call) -> Call:
    return call


def require_same(call: Call, y: Tensor, expected: Tensor) -> None:
    """Raises AssertionError unless a call over zeros gives what is expected, to within what 16 bits
    in between may cost."""
    y.zero_()
    call(0)
    error = float((y - expected).float().norm() / expected.float().norm())
    assert error < 0.02, f"differs from the loop over adapters by {error:.1%}"


def loop_call(
    a: Tensor, b: Tensor, widths: Sequence[int], row_slot: Tensor, x: Tensor, y: Tensor
) -> Call:
    """Two products for each adapter and slice."""
    rank = b.shape[3]
    runs: list[tuple[int, slice]] = []
    slots, counts = torch.unique_consecutive(row_slot, return_counts=True)
    first = 0
    for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
        runs.append((slot, slice(first, first + count)))
        first += count

    def call(layer: int) -> None:
        for slot, rows in runs:
            column = 0
            for index, width in enumerate(widths):
                part = a[layer, slot, index * rank : (index + 1) * rank]
                hidden = functional.linear(x[rows], part)
                end = column + width
                y[rows, column:end] += functional.linear(hidden, b[layer, slot, column:end])
                column = end

    return call


def bmm_call(
    a: Tensor, b: Tensor, widths: Sequence[int], row_slot: Tensor, x: Tensor, y: Tensor
) -> Call:
    """Every row's weights gathered, then batched products (as in Punica's baseline)."""
    rank = b.shape[3]

    def call(layer: int) -> None:
        hidden = torch.bmm(a[layer][row_slot], x.unsqueeze(2)).squeeze(2)
        column = 0
        for index, width in enumerate(widths):
            weights = b[layer, :, column : column + width][row_slot]
            part = hidden[:, index * rank : (index + 1) * rank]
            y[:, column : column + width] += torch.bmm(weights, part.unsqueeze(2)).squeeze(2)
            column += width

    return call
