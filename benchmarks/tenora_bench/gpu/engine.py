"""The engine's executor on the GPU against the CPU's, plan by plan: `ModelExecutor`,
`DeviceMemory`, its copiers and sampling. A small model in float32, whose answers differ by rounding
only; both are given the CPU's tokens."""

from __future__ import annotations

import json
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tenora_bench.gpu.measure import Machine, Report
from tenora_engine.adapters.pack import pack_adapter
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.peft_format import LoraConfig, module_path
from tenora_engine.config import EngineConfig, ResolvedConfig
from tenora_engine.executor.device_memory import DeviceMemory
from tenora_engine.executor.executor import ModelExecutor
from tenora_engine.memory.budget import plan_memory
from tenora_engine.model.loader import LoadedModel, load_model
from tenora_engine.step import (
    CopyAdapter,
    CopyKV,
    Draws,
    FetchKV,
    InstallAdapter,
    LogitChanges,
    Masks,
    MemoryOperation,
    Rows,
    Sampling,
    StepPlan,
    StepResult,
    StoreKV,
)
from tenora_kernels import BASE_SLOT

BLOCK_TOKENS, VOCAB, PAGES_EACH, COPY_S = 16, 2048, 6, 20.0
TOLERANCE = 2e-3  # of a logprob: sums of float32 in another order, over all layers
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
PROMPTS = ((70, BASE_SLOT), (33, BASE_SLOT), (17, 0), (5, 1))  # tokens and adapter slot of each
RANKS = {"sha256:installed": 8, "sha256:copied": 24}


@dataclass
class Sequence4:
    """A sequence as a plan knows it."""

    tokens: list[int]
    slot: int
    pages: list[int]
    done: int = 0  # tokens whose KV is there


@dataclass
class Run:
    """One executor and what it has been asked for so far."""

    executor: ModelExecutor
    packed: list[PackedAdapter]
    free_page: int
    number: int = 0
    found: list[StepResult] = field(default_factory=list)

    def execute(
        self,
        sequences: Sequence[Sequence4] = (),
        sampling: Sampling | None = None,
        memory: Sequence[MemoryOperation] = (),
    ) -> StepResult:
        self.number += 1
        self.executor.stage(self.packed)
        plan = StepPlan(self.number, rows_of(sequences), sampling, memory=list(memory))
        result = self.executor.execute(plan)
        assert result is not None
        self.found.append(result)
        for each in sequences:
            each.done = len(each.tokens)
        return result

    def wait_for_copy(self, number: int) -> None:
        """Raises RuntimeError where it failed, or has not ended."""
        deadline = time.monotonic() + COPY_S
        while time.monotonic() < deadline:
            for ended in self.executor.take_ended_copies():
                if ended.copy == number and not ended.failed:
                    return
                raise RuntimeError(f"copy {ended.copy} has failed: {ended}")
            time.sleep(0.001)
        raise RuntimeError(f"copy {number} has not ended in {COPY_S:.0f} s")


def rows_of(sequences: Sequence[Sequence4]) -> Rows:
    """Plan what each sequence has not computed yet; all of them sample."""
    new = [each.tokens[each.done :] for each in sequences]
    blocks = [-(-len(each.tokens) // BLOCK_TOKENS) for each in sequences]
    pages = [p for each, n in zip(sequences, blocks, strict=True) for p in each.pages[:n]]
    return Rows(
        sequence=list(range(len(sequences))),
        query_len=array("i", map(len, new)),
        context_len=array("i", [len(each.tokens) for each in sequences]),
        adapter_slot=array("i", [each.slot for each in sequences]),
        num_samples=array("i", [1] * len(sequences)),
        token_ids=array("i", [token for tokens in new for token in tokens]),
        pages=array("i", pages),
    )


def check_engine(report: Report, machine: Machine) -> None:
    # Memory that inference mode has made cannot be written by the copiers' threads.
    with torch.inference_mode(False), tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        expected = answers(folder, "cpu", None)
        found = answers(folder, machine.device.type, expected)
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if theirs.logprobs:
            compare(report, f"engine, step {step}", mine, theirs)


def compare(report: Report, name: str, mine: StepResult, theirs: StepResult) -> None:
    """Logprobs of the likeliest of each row, and the row's own token unless two are as likely."""
    worst, right = 0.0, True
    rows = zip(mine.token_ids, theirs.token_ids, mine.logprobs, theirs.logprobs, strict=True)
    for own_tokens, their_tokens, own, their in rows:
        if own is None or their is None:
            right &= own_tokens == their_tokens
            continue
        mine_top, their_top = (sorted(value for _, value in each[0].top) for each in (own, their))
        gap = max(abs(a - b) for a, b in zip(mine_top, their_top, strict=True))
        close = their_top[-1] - their_top[-2] < 2 * TOLERANCE
        worst = max(worst, gap)
        right &= gap < TOLERANCE and (own_tokens == their_tokens or close)
    report.check(name, right, "float32", worst)


def answers(folder: str, device: str, given: list[StepResult] | None) -> list[StepResult]:
    """Run the same plans. The tokens that follow are those `given`, else its own."""
    run = start(folder, device)
    try:
        sequences = walk(run, given)
        check_pages(run, sequences, given)
        ask(run, sequences, given)
        return run.found
    finally:
        run.executor.close()


def start(folder: str, device: str) -> Run:
    config = EngineConfig(
        model=folder,
        served_name="bench",
        load_format="dummy",
        device=device,  # type: ignore[arg-type] # a device's type
        dtype="float32",
        memory_bytes=4 << 30,  # most of which is a reserve of CUDA's
        arena_bytes=64 << 20,
        block_tokens=BLOCK_TOKENS,
        max_running=8,
        max_step_tokens=256,
        max_prefill_chunk=256,
        max_adapters=4,
        max_rank=32,
        host_kv_bytes=8 << 20,
    )
    model = load_model(config)
    resolved = plan_memory(config, model.info)
    executor = ModelExecutor(resolved, model, DeviceMemory(resolved))
    packed = [adapter(resolved, model, digest, rank) for digest, rank in RANKS.items()]
    return Run(executor, packed, free_page=0)


def adapter(resolved: ResolvedConfig, model: LoadedModel, digest: str, rank: int) -> PackedAdapter:
    """Build a model of random weights, the same on every device."""
    generator = torch.Generator().manual_seed(rank)
    tensors = {}
    for layer in range(model.info.num_layers):
        for module, (inputs, outputs) in model.info.modules.items():
            name = f"base_model.model.{module_path(layer, module)}"
            a, b = (
                torch.randn(rank, inputs, generator=generator),
                torch.randn(outputs, rank, generator=generator),
            )
            tensors[f"{name}.lora_A.weight"] = a / inputs**0.5
            tensors[f"{name}.lora_B.weight"] = b / outputs**0.5
    config = LoraConfig(r=rank, lora_alpha=float(rank), target_modules="all-linear")
    page, dtype = resolved.packed_page_elements, resolved.packed_dtype
    return pack_adapter(digest, config, tensors, model.info, page, dtype, resolved.engine.max_rank)


def walk(run: Run, given: list[StepResult] | None) -> list[Sequence4]:
    """Adapters by either way, prompts, and decode."""
    generator = np.random.default_rng(0)
    installed, copied = run.packed
    pages = [take(run, packed.num_pages) for packed in run.packed]
    run.execute(
        memory=[
            InstallAdapter(installed.digest, 0, array("i", pages[0])),
            CopyAdapter(1, copied.digest, array("i", pages[1])),
        ]
    )
    run.wait_for_copy(1)
    install = InstallAdapter(copied.digest, 1, array("i", pages[1]), is_copied=True)
    sequences = [
        Sequence4(generator.integers(0, VOCAB, length).tolist(), slot, take(run, PAGES_EACH))
        for length, slot in PROMPTS
    ]
    go_on(run, sequences, given, memory=[install])
    for _ in range(3):
        go_on(run, sequences, given)
    return sequences


def check_pages(run: Run, sequences: list[Sequence4], given: list[StepResult] | None) -> None:
    """KV that went to the host and came back elsewhere, and KV copied beside it."""
    first = sequences[0]
    fetched, copied = take(run, 2)
    run.execute(memory=[StoreKV(first.pages[0], 0), CopyKV(first.pages[1], copied)])
    run.execute(memory=[FetchKV(2, array("i", [0]), array("i", [fetched]))])
    run.wait_for_copy(2)
    first.pages[:2] = fetched, copied
    go_on(run, sequences, given)


def ask(run: Run, sequences: list[Sequence4], given: list[StepResult] | None) -> None:
    """A grammar's mask, and draws."""
    count = len(sequences)
    words = np.zeros((1, -(-VOCAB // 32)), np.uint32)
    words[0, 77 // 32] = 1 << 77 % 32
    masks = Masks(words.view(np.int32).reshape(-1))
    none = (None,) * 6
    changes = LogitChanges(*none, mask_rows=np.array([1]), masks=masks)
    go_on(run, sequences, given, changes=changes)
    assert run.found[-1].token_ids[1] == [77], "the mask allows one token"
    ones = np.ones(count, np.float32)
    draws = Draws(
        rows=np.arange(count),
        temperature=ones * 0.5,
        uniform=np.linspace(0.1, 0.9, count, dtype=np.float32),
        top_k=np.full(count, 50),
        top_p=ones * 0.9,
        min_p=ones * 0.0,
        max_top_k=50,
    )
    run.execute(sequences, Sampling(None, draws, {}))


def go_on(
    run: Run,
    sequences: list[Sequence4],
    given: list[StepResult] | None,
    *,
    changes: LogitChanges | None = None,
    memory: Sequence[MemoryOperation] = (),
) -> None:
    """A step of all sequences, and the token that follows in each."""
    top = dict.fromkeys(range(len(sequences)), 5)
    result = run.execute(sequences, Sampling(changes, None, top), memory)
    follow = result if given is None else given[len(run.found) - 1]
    for sequence, tokens in zip(sequences, follow.token_ids, strict=True):
        sequence.tokens += tokens


def take(run: Run, count: int) -> list[int]:
    run.free_page += count
    return list(range(run.free_page - count, run.free_page))
