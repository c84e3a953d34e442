"""TimingModel: what a step and an adapter load take on one machine with one model; printed with
every result and kept as JSON, so that a replay can be repeated. It owns no clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from tenora_bench.client import BenchError
from tenora_engine.adapters.pack import packed_pages
from tenora_engine.adapters.peft_format import EffectiveLora
from tenora_engine.config import LORA_MODULES, ModelInfo
from tenora_engine.errors import AdapterLoadError
from tenora_engine.request import AdapterRef
from tenora_engine.scheduling.plan import ScheduledStep
from tenora_kernels.segments import BASE_SLOT

Tier = Literal["host", "store"]


class StepFeatures(msgspec.Struct, frozen=True):
    """What the time of a step depends on. `context_tokens` is the context that decode rows read;
    `prefill_pairs` is prefilled tokens times the mean context each of them attends to."""

    prefill_tokens: int
    decode_rows: int
    context_tokens: int
    prefill_pairs: float
    adapter_bytes: int  # of the distinct adapters of the step

    def row(self) -> list[float]:
        """The coefficients' factors, in the order of `StepCosts`."""
        return [1.0, *(float(value) for value in msgspec.structs.astuple(self))]


class StepCosts(msgspec.Struct, frozen=True):
    """Seconds; a step takes the sum of each times its feature."""

    step_s: float
    prefill_token_s: float
    decode_row_s: float
    context_token_s: float
    prefill_pair_s: float
    adapter_byte_s: float


class TierCosts(msgspec.Struct, frozen=True):
    """The way of one adapter from a tier to the device: a latency, then bytes over a link that
    `parallel` loads use at a time, each at full speed."""

    latency_s: float
    bytes_per_s: float
    parallel: int = 1

    def load_s(self, num_bytes: int) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


class TimingModel(msgspec.Struct, frozen=True):
    """`source` says where the figures come from: a measurement or an assumption."""

    name: str
    source: str
    model: ModelInfo
    step: StepCosts
    host: TierCosts
    store: TierCosts
    block_tokens: int = 16

    def step_s(self, features: StepFeatures) -> float:
        costs = self.step
        return (
            costs.step_s
            + costs.prefill_token_s * features.prefill_tokens
            + costs.decode_row_s * features.decode_rows
            + costs.context_token_s * features.context_tokens
            + costs.prefill_pair_s * features.prefill_pairs
            + costs.adapter_byte_s * features.adapter_bytes
        )

    @property
    def item_bytes(self) -> int:
        return 2 if self.model.dtype == "bfloat16" else 4

    @property
    def page_elements(self) -> int:
        """Elements of one page, which holds one KV block."""
        model = self.model
        return model.num_layers * 2 * self.block_tokens * model.kv_heads * model.head_dim

    @property
    def page_bytes(self) -> int:
        return self.page_elements * self.item_bytes

    def adapter_pages(self, rank: int) -> int:
        """Pages of an all-linear adapter, as the engine packs it. Raises BenchError where a page is
        too small for one rank row of a layer."""
        layers = range(self.model.num_layers)
        lora = EffectiveLora(rank, 1.0)
        effective = {(layer, name): lora for layer in layers for name in LORA_MODULES}
        try:
            return packed_pages(effective, self.model, self.page_elements, self.model.dtype)
        except AdapterLoadError as error:
            raise BenchError(str(error)) from error

    def adapter_bytes(self, rank: int) -> int:
        return self.adapter_pages(rank) * self.page_bytes


def step_features(step: ScheduledStep, adapter_bytes: Callable[[AdapterRef], int]) -> StepFeatures:
    """Sequences of one adapter stand together in a step, so each adapter counts once."""
    prefill_tokens = decode_rows = context_tokens = read_bytes = 0
    prefill_pairs = 0.0
    slot = BASE_SLOT
    for item in step:
        sequence = item.sequence
        computed = sequence.num_computed
        if item.num_tokens == 1:
            decode_rows += 1
            context_tokens += computed
        else:
            prefill_tokens += item.num_tokens
            prefill_pairs += item.num_tokens * (computed + item.num_tokens / 2)
        if sequence.adapter_slot != slot and sequence.request.adapter is not None:
            slot = sequence.adapter_slot
            read_bytes += adapter_bytes(sequence.request.adapter)
    return StepFeatures(prefill_tokens, decode_rows, context_tokens, prefill_pairs, read_bytes)


def read_timing(path: Path) -> TimingModel:
    """Raises BenchError when the file is not a timing model."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TimingModel)
    except (OSError, msgspec.MsgspecError) as error:
        raise BenchError(f"{path} is no timing model: {error}") from error


def write_timing(path: Path, timing: TimingModel) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(timing), indent=2) + b"\n")


def h200_llama3_8b(block_tokens: int = 16) -> TimingModel:
    """An H200-like machine with Llama-3-8B in bfloat16. An assumption, not a measurement: 4k tokens
    take 130 ms to compute, host memory gives 50 GB/s and a rank-16 adapter takes 1.7 ms over it;
    weights (16 GB) and context (128 KiB a token) are read at 4.8 TB/s, and attention costs as much
    as the matrix products at 30.5k tokens of context."""
    hidden, intermediate, kv = 4096, 14336, 1024
    wide, narrow = (hidden, hidden), (hidden, kv)
    up, down = (hidden, intermediate), (intermediate, hidden)
    model = ModelInfo(
        id="llama-3-8b",
        architecture="LlamaForCausalLM",
        num_layers=32,
        hidden=hidden,
        intermediate=intermediate,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=128_256,
        context_tokens=131_072,
        dtype="bfloat16",
        weight_bytes=16_060_522_496,
        modules=dict(zip(LORA_MODULES, (wide, narrow, narrow, wide, up, up, down), strict=True)),
        eos_token_ids=(128_001,),
    )
    read_bytes_s, token_s = 4.8e12, 0.130 / 4096
    return TimingModel(
        name="h200-llama3-8b",
        source="assumed from published sizes and bandwidths, not measured",
        model=model,
        step=StepCosts(
            step_s=0.5e-3 + model.weight_bytes / read_bytes_s,
            prefill_token_s=token_s,
            decode_row_s=2e-6,  # the read of the weights hides its products
            context_token_s=128 * 1024 / read_bytes_s,
            prefill_pair_s=token_s / 30_500,
            adapter_byte_s=1 / read_bytes_s,
        ),
        host=TierCosts(latency_s=0.1e-3, bytes_per_s=50e9),
        store=TierCosts(latency_s=20e-3, bytes_per_s=2e9, parallel=4),
        block_tokens=block_tokens,
    )
