"""Decode of a model of Llama-3.1-8B's shape with random weights through the engine's decoder and
captured graphs: milliseconds a step against the bytes it must read. Then one mix after another on
the same graph, against the decoder run as usual."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tenora_bench.gpu.measure import Ceilings, Machine, Report
from tenora_engine.executor.graphs import Capture, GraphRunner
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.families import spec_of
from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.layers import read_weights
from tenora_engine.model.linear import PlainLinear
from tenora_engine.model.spec import DecoderSpec
from tenora_kernels import BASE_SLOT, KVLayout, build_attention_layout, build_segments
from tenora_kernels.synthetic import mix_rows, random_adapters, random_pages

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
TINY = LLAMA_8B | {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
RANK, CONTEXT, STEPS = 16, 1024, 20
ROUNDING = 0.08
# (sequences, distinct adapters among them): 128 distinct ones need as many sequences
BATCHES = (
    (64, 0),
    (64, 64),
    (64, 1),
    (64, 16),
    (128, 0),
    (128, 128),
    (1, 0),
    (1, 1),
    (16, 0),
    (16, 16),
)


@dataclass(frozen=True)
class DeviceWeights:
    """Random weights made on the device: on the CPU they would take minutes."""

    device: torch.device
    dtype: torch.dtype

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.empty(shape, dtype=self.dtype, device=self.device).normal_(0.0, 0.02)
        return values + 1.0 if name.endswith("norm.weight") else values


@dataclass(frozen=True)
class Bench:
    """The model, its arena and its sequences; a step is one row of each of the first so many."""

    machine: Machine
    decoder: Decoder
    arena: Arena
    runner: GraphRunner
    spec: DecoderSpec
    context: int
    block_tables: list[list[int]]

    def inputs(self, row_slot: Tensor) -> ForwardInputs:
        device, rows = self.machine.device, row_slot.shape[0]
        tables = self.block_tables[:rows]
        block = self.arena.kv.block_tokens
        last = self.context - 1
        slots = [table[last // block] * block + last % block for table in tables]
        return ForwardInputs(
            token_ids=torch.randint(0, self.spec.vocab, (rows,), device=device),
            positions=torch.full((rows,), last, device=device),
            slots=torch.tensor(slots, device=device),
            attention=build_attention_layout(
                [1] * rows, [self.context] * rows, tables, device, tiles=True
            ),
            segments=build_segments(row_slot, self.arena.table, tiles=True),
        )

    def step(self, inputs: ForwardInputs) -> Tensor:
        """A whole step of the engine but for sampling's options: metadata, layers, head, choice."""
        rows = torch.arange(inputs.attention.num_rows, device=self.machine.device)
        return self.decoder.logits(self.runner.forward(inputs), rows).argmax(dim=1)


def make_bench(machine: Machine, capture: Capture | None, kv_dtype: torch.dtype) -> Bench:
    spec = spec_of(TINY if machine.smoke else LLAMA_8B)
    adapters, sequences, context = (3, 4, 20) if machine.smoke else (128, 128, CONTEXT)
    device, dtype = machine.device, machine.dtype
    weights = read_weights(spec, DeviceWeights(device, dtype), device, dtype, PlainLinear)
    decoder = Decoder(weights, spec.context_tokens)
    kv = KVLayout(spec.num_layers, 16, spec.layer.kv_heads, spec.layer.head_dim)
    pages = random_pages([context] * sequences, kv, dtype, device)
    shapes = [linear.shape for linear in spec.layer.linears.values()]
    made = random_adapters([RANK] * adapters, spec.num_layers, shapes, dtype, device, max_rank=128)
    arena = Arena(pool=pages.pool.to(kv_dtype), flat=made.pool, kv=kv, table=made.table)
    runner = GraphRunner(decoder, arena, sequences, spec.context_tokens, capture)
    return Bench(machine, decoder, arena, runner, spec, context, pages.block_tables)


def slots_of(sequences: int, distinct: int) -> Tensor:
    if not distinct:
        return torch.full((sequences,), BASE_SLOT, dtype=torch.int32)
    return mix_rows("distinct", sequences, distinct)


def time_decode(
    report: Report, machine: Machine, ceilings: Ceilings, capture: Capture | None = None
) -> None:
    bench = make_bench(machine, capture, machine.dtype)
    check_mixes(report, bench)
    batches = ((4, 0), (4, 3)) if machine.smoke else BATCHES
    base: dict[int, float] = {}
    for sequences, distinct in batches:
        name = f"decode {sequences} x {bench.context}, {distinct} adapters r{RANK}"
        if report.time_left(name):
            seconds = time_steps(bench, slots_of(sequences, distinct))
            base.setdefault(sequences, seconds)
            add(report, bench, ceilings, name, seconds, sequences, distinct, base[sequences])
    if not machine.smoke and report.time_left("decode with fp8 KV"):
        bench = replace_kv(bench, torch.float8_e4m3fn)
        for distinct in (0, 64):
            seconds = time_steps(bench, slots_of(64, distinct))
            name = f"decode fp8 KV 64 x {bench.context}, {distinct} adapters r{RANK}"
            add(report, bench, ceilings, name, seconds, 64, distinct, seconds)


def replace_kv(bench: Bench, kv_dtype: torch.dtype) -> Bench:
    arena = replace(bench.arena, pool=bench.arena.pool.to(kv_dtype))
    rows, context = len(bench.block_tables), bench.spec.context_tokens
    runner = GraphRunner(bench.decoder, arena, rows, context)
    return replace(bench, arena=arena, runner=runner)


def time_steps(bench: Bench, row_slot: Tensor) -> float:
    """Mean seconds of a step over STEPS, one queued behind the other, by the clock on the wall."""
    inputs = bench.inputs(row_slot)
    steps = 1 if bench.machine.smoke else STEPS
    for _ in range(2):
        bench.step(inputs)
    wait_for_device()
    start = time.perf_counter()
    for _ in range(steps):
        bench.step(inputs)
    wait_for_device()
    return (time.perf_counter() - start) / steps


def wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def add(
    report: Report,
    bench: Bench,
    ceilings: Ceilings,
    name: str,
    seconds: float,
    sequences: int,
    distinct: int,
    base: float,
) -> None:
    """The floor: every weight but the embedding, the KV of all, each distinct adapter once."""
    spec, item = bench.spec, bench.machine.dtype.itemsize
    weights = item * (spec.num_parameters - spec.vocab * spec.layer.hidden)
    kv_elements = 2 * spec.num_layers * sequences * bench.context * spec.layer.kv_width
    kv = kv_elements * bench.arena.pool.element_size()
    rank_row = sum(sum(linear.shape) for linear in spec.layer.linears.values())
    adapters = distinct * RANK * spec.num_layers * rank_row * item
    floor = (weights + kv + adapters) / ceilings.bytes_per_s
    report.add(
        name,
        seconds,
        floor,
        ms=seconds * 1e3,
        of_floor=seconds / floor,
        tokens_per_s=sequences / seconds,
        of_base=seconds / base,
    )


def check_mixes(report: Report, bench: Bench) -> None:
    """Other rows, adapters and counts from replay to replay, each as the decoder alone answers.

    16-bit roundings differ with the number of rows and grow over the layers, so it is the length of
    the difference that is judged; the adapters are made strong enough for a wrong one to show."""
    bench.arena.table.scale.fill_(20.0)
    sequences = 4 if bench.machine.smoke else 24
    adapters = bench.arena.table.rank.shape[0]
    for mix, rows in (("distinct", sequences), ("identical", sequences - 1), ("zipf", sequences)):
        row_slot = mix_rows(mix, rows, min(adapters, rows), base_rows=1)
        inputs = bench.inputs(row_slot)
        got = bench.runner.forward(inputs).clone()
        expected = bench.decoder.forward(inputs, bench.arena)
        error = (got - expected).float().norm(dim=1) / expected.float().norm(dim=1)
        worst = float(error.max())
        name = f"replayed decode, {mix}, {rows} rows"
        print(f"{name}: relative error {worst:.1e}")
        report.checks.append(
            {"check": name, "dtype": "model's", "right": worst < ROUNDING, "max_error": worst}
        )
    bench.arena.table.scale.fill_(0.5)
