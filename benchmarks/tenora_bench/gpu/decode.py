"""Decode of a model of Llama-3.1-8B's shape with random weights through the engine's steps for CUDA
and their captured graphs: milliseconds a step, from arrays to tokens, against the bytes it must
read. Then one mix after another on the same graph, against the decoder run as usual."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tenora_bench.gpu.measure import Ceilings, Machine, Report
from tenora_engine.executor.cuda import CudaSteps
from tenora_engine.executor.cuda_inputs import CudaInputs, StepArrays
from tenora_engine.executor.graphs import Capture
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.families import spec_of
from tenora_engine.model.inputs import Arena
from tenora_engine.model.layers import read_weights
from tenora_engine.model.linear import PlainLinear
from tenora_engine.model.spec import DecoderSpec
from tenora_kernels import BASE_SLOT, KVLayout
from tenora_kernels.gpu.tuning import decode_parts
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
    "num_hidden_layers": 1,
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
)
MORE_BATCHES = (
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
    """The model, its arena and its sequences; a step has one row of each of the first so many."""

    machine: Machine
    decoder: Decoder
    arena: Arena
    steps: CudaSteps
    spec: DecoderSpec
    context: int
    block_tables: list[list[int]]

    def arrays(self, row_slot: Tensor, prompt_tokens: int = 0) -> StepArrays:
        """One token of each row's sequence; with `prompt_tokens` of the last row all of those."""
        rows = row_slot.shape[0]
        tables = [np.array(table, np.int32) for table in self.block_tables[:rows]]
        query = np.ones(rows, np.int64)
        if prompt_tokens:
            query[-1] = prompt_tokens
        return StepArrays(
            query=query,
            context=np.full(rows, self.context),
            num_samples=np.ones(rows, np.int64),
            adapter_slot=row_slot.numpy(),
            token_ids=np.random.randint(0, self.spec.vocab, query.sum()).astype(np.int32),
            num_blocks=np.array([len(table) for table in tables]),
            pages=np.concatenate(tables),
        )

    def run_eagerly(self, arrays: StepArrays) -> Callable[[], Tensor]:  # [num_samples, vocab]
        """The decoder on tensors that lie on the device already: kernels and their launches."""
        kv = self.arena.kv
        inputs = CudaInputs(kv.block_tokens, self.arena.table, self.parts).build(arrays)
        there = inputs.moved(lambda tensor: tensor.to(self.machine.device))
        rows = torch.from_numpy(arrays.sampled()).to(self.machine.device)
        return lambda: self.decoder.next_logits(there, self.arena, rows)

    @property
    def parts(self) -> int:
        return decode_parts(self.machine.device, self.arena.kv.kv_heads)

    def with_kv(self, kv_dtype: torch.dtype) -> Bench:
        arena = replace(self.arena, pool=self.arena.pool.to(kv_dtype))
        return replace(self, arena=arena, steps=make_steps(self.decoder, arena, self.machine, None))


def make_steps(
    decoder: Decoder, arena: Arena, machine: Machine, capture: Capture | None
) -> CudaSteps:
    sequences, context = (4, 64) if machine.smoke else (128, CONTEXT)
    return CudaSteps(
        decoder,
        arena,
        parts=decode_parts(machine.device, arena.kv.kv_heads),
        max_seqs=sequences,
        max_tokens=4 * sequences,
        max_context=context,
        capture=capture,
    )


def make_bench(machine: Machine, capture: Capture | None) -> Bench:
    spec = spec_of(TINY if machine.smoke else LLAMA_8B)
    adapters, sequences, context = (3, 4, 20) if machine.smoke else (128, 128, CONTEXT)
    device, dtype = machine.device, machine.dtype
    weights = read_weights(spec, DeviceWeights(device, dtype), device, dtype, PlainLinear)
    decoder = Decoder(weights, spec.context_tokens)
    kv = KVLayout(spec.num_layers, 16, spec.layer.kv_heads, spec.layer.head_dim)
    pages = random_pages([context] * sequences, kv, dtype, device)
    shapes = [linear.shape for linear in spec.layer.linears.values()]
    made = random_adapters([RANK] * adapters, spec.num_layers, shapes, dtype, device, max_rank=128)
    arena = Arena(pool=pages.pool, flat=made.pool, kv=kv, table=made.table)
    steps = make_steps(decoder, arena, machine, capture)
    return Bench(machine, decoder, arena, steps, spec, context, pages.block_tables)


def slots_of(sequences: int, distinct: int) -> Tensor:
    if not distinct:
        return torch.full((sequences,), BASE_SLOT, dtype=torch.int32)
    return mix_rows("distinct", sequences, distinct)


def time_decode(
    report: Report, machine: Machine, ceilings: Ceilings, capture: Capture | None = None
) -> None:
    """List the cases that matter first: 64 rows with no adapter, one for each, and one for all."""
    bench = make_bench(machine, capture)
    batches = ((4, 0), (4, 3)) if machine.smoke else BATCHES
    base: dict[int, float] = {}
    time_batches(report, bench, ceilings, batches, base)
    report.attempt("mixes on one graph", partial(check_mixes, report, bench))
    if not machine.smoke:
        time_batches(report, bench, ceilings, MORE_BATCHES, base)
        report.attempt("decode with fp8 KV", partial(time_fp8, report, bench, ceilings))


def time_batches(
    report: Report,
    bench: Bench,
    ceilings: Ceilings,
    batches: Sequence[tuple[int, int]],
    base: dict[int, float],
) -> None:
    for sequences, distinct in batches:
        name = f"decode {sequences} x {bench.context}, {distinct} adapters r{RANK}"

        def case(name: str = name, sequences: int = sequences, distinct: int = distinct) -> None:
            seconds = time_steps(bench, bench.arrays(slots_of(sequences, distinct)))
            base.setdefault(sequences, seconds)
            add(report, bench, ceilings, name, seconds, sequences, distinct, base[sequences])

        report.attempt(name, case)


def time_fp8(report: Report, bench: Bench, ceilings: Ceilings) -> None:
    bench = bench.with_kv(torch.float8_e4m3fn)
    for distinct in (0, 64):
        seconds = time_steps(bench, bench.arrays(slots_of(64, distinct)))
        name = f"decode fp8 KV 64 x {bench.context}, {distinct} adapters r{RANK}"
        add(report, bench, ceilings, name, seconds, 64, distinct, seconds)


def profile_step(report: Report, machine: Machine, capture: Capture | None = None) -> None:
    """Where a replay's time goes, kernel by kernel: one table."""
    bench = make_bench(machine, capture)
    sequences, distinct = (4, 3) if machine.smoke else (64, 64)
    arrays = bench.arrays(slots_of(sequences, distinct))
    bench.steps.run_arrays(arrays)
    kinds = [ProfilerActivity.CPU]
    if machine.device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as found:
        bench.steps.run_arrays(arrays)
        wait_for_device()
    averages = found.key_averages()
    order = "self_device_time_total" if machine.device.type == "cuda" else "self_cpu_time_total"
    print(averages.table(sort_by=order, row_limit=25, max_name_column_width=60))
    for event in sorted(averages, key=lambda each: -float(getattr(each, order)))[:25]:
        report.keep(
            "profile", {"name": event.key, "calls": event.count, "us": getattr(event, order)}
        )


def time_host(report: Report, machine: Machine, capture: Capture | None = None) -> None:
    time_host_part(report, make_bench(machine, capture))


def time_steps(bench: Bench, arrays: StepArrays) -> float:
    """Mean seconds of a step over STEPS, each waiting for the tokens of the one before."""
    warm_ups, steps = (0, 1) if bench.machine.smoke else (2, STEPS)
    for _ in range(warm_ups):
        bench.steps.run_arrays(arrays)
    wait_for_device()
    start = time.perf_counter()
    for _ in range(steps):
        bench.steps.run_arrays(arrays)
    return (time.perf_counter() - start) / steps


def time_host_part(report: Report, bench: Bench) -> None:
    """A step, from arrays to tokens, beside its kernels alone, captured and replayed without a
    host in their way: the rest is the host's. Goals: below 10% of a decode step, a step with a
    prompt in it below 1.15 times its kernels."""
    sequences, prompt = (4, 10) if bench.machine.smoke else (64, 448)
    for distinct in (sequences - 1,) if bench.machine.smoke else (0, sequences - 1):
        for tokens in (0, prompt):
            kind = f"{tokens} of a prompt" if tokens else "decode"
            name = f"host part {sequences} x {bench.context}, {kind}, {distinct} adapters"
            report.attempt(name, partial(time_host_case, report, bench, name, distinct, tokens))


def time_host_case(report: Report, bench: Bench, name: str, distinct: int, tokens: int) -> None:
    sequences = 4 if bench.machine.smoke else 64
    arrays = bench.arrays(slots_of(sequences, distinct), tokens)
    eager = bench.run_eagerly(arrays)
    kernels = bench.machine.seconds(lambda layer: eager().argmax(dim=1), 1)
    seconds = time_steps(bench, arrays)
    host, ratio = 1 - kernels / seconds, seconds / kernels
    report.add(name, seconds, kernels, ms=seconds * 1e3, host=host, of_kernels=ratio)


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
        arrays = bench.arrays(row_slot)
        got = bench.steps.next_logits(arrays)[0]
        expected = bench.run_eagerly(arrays)()
        error = (got - expected).float().norm(dim=1) / expected.float().norm(dim=1)
        worst = float(error.max())
        report.check(f"replayed decode, {mix}, {rows} rows", worst < ROUNDING, "model's", worst)
    bench.arena.table.scale.fill_(0.5)
