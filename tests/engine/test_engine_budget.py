"""The memory budget: sizes before allocation, and refusals that give the numbers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import accumulate

import msgspec
import numpy as np
import pytest
import torch
from msgspec import structs
from torch.profiler import ProfilerActivity, profile

from engine_fakes import make_config
from tenora_engine.config import LORA_MODULES, STEP_LIMITS, EngineConfig, ModelInfo
from tenora_engine.errors import MemoryBudgetError
from tenora_engine.executor import sampling
from tenora_engine.executor.arena import Arena
from tenora_engine.executor.device_memory import allocate_table
from tenora_engine.memory.budget import (
    SAMPLED_AT_ONCE,
    SAMPLING_BYTES,
    SCORED_TOKENS_MAX,
    describe,
    plan_memory,
    table_bytes,
    workspace_parts,
)
from tenora_engine.scheduling import chunks
from tenora_engine.step import Draws, Entries, LogitChanges, Sampling
from tenora_kernels import backend
from tenora_kernels.compiled.paged_attention import attention_bytes

MODEL = ModelInfo(
    id="smol",
    architecture="LlamaForCausalLM",
    num_layers=30,
    hidden=576,
    intermediate=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab=49152,
    context_tokens=8192,
    dtype="bfloat16",
    weight_bytes=269_000_000,
    modules={
        "q_proj": (576, 576),
        "k_proj": (576, 192),
        "v_proj": (576, 192),
        "o_proj": (576, 576),
        "gate_proj": (576, 1536),
        "up_proj": (576, 1536),
        "down_proj": (1536, 576),
    },
    eos_token_ids=(2,),
)
CONFIG = EngineConfig(model="m", served_name="smol")


def test_all_parts_fit_into_the_budget_and_leave_less_than_a_page() -> None:
    resolved = plan_memory(CONFIG, MODEL)
    assert resolved.page_elements == resolved.kv_layout.page_elements == 30 * 2 * 16 * 3 * 64
    assert resolved.page_bytes == 2 * resolved.page_elements
    used = (
        MODEL.weight_bytes
        + resolved.workspace_bytes
        + resolved.table_bytes
        + resolved.headroom_bytes
        + resolved.num_pages * resolved.page_bytes
    )
    assert resolved.memory_bytes == CONFIG.memory_bytes
    assert 0 <= resolved.memory_bytes - used < resolved.page_bytes
    assert resolved.model.context_tokens == 8192
    text = describe(resolved)
    for word in ("weights", "workspace", "slot tables", "headroom", "page arena", "budget"):
        assert word in text
    assert str(resolved.num_pages) in text


def test_the_table_takes_what_was_planned() -> None:
    config = make_config()
    table = allocate_table(config)
    tensors = [table.granule_offset, table.rank, table.a_offset, table.b_offset, table.scale]
    assert sum(t.numel() * t.element_size() for t in tensors) == (
        table_bytes(config.engine, config.model)
    )
    assert table.granule_offset.shape == (4, 1, 8)
    assert table.rank.shape == (4, 1, len(LORA_MODULES))


def test_an_arena_of_a_given_size() -> None:
    config = msgspec.structs.replace(CONFIG, arena_bytes=100 * 368_640 + 1)
    resolved = plan_memory(config, MODEL)
    assert resolved.num_pages == 100
    assert resolved.model.context_tokens == 1600, "a sequence cannot be longer than the arena"


def test_context_is_the_operators_where_that_is_less() -> None:
    config = msgspec.structs.replace(CONFIG, max_context_tokens=1000)
    assert plan_memory(config, MODEL).model.context_tokens == 1000


@pytest.mark.parametrize(
    "changes",
    [{"memory_bytes": 300 * 1024**2}, {"arena_bytes": 3 * 1024**3}, {"arena_bytes": 368_640}],
)
def test_too_small_says_by_how_much(changes: dict[str, int]) -> None:
    config = msgspec.structs.replace(CONFIG, **changes)
    with pytest.raises(MemoryBudgetError) as caught:
        plan_memory(config, MODEL)
    message = str(caught.value)
    assert "weights 256.5 MiB" in message
    assert "set memory_bytes to at least" in message


@pytest.mark.parametrize("arena_bytes", [None, 3 * 1024**3])
def test_the_advice_of_a_refusal_is_enough(arena_bytes: int | None) -> None:
    small = msgspec.structs.replace(CONFIG, memory_bytes=300 * 1024**2, arena_bytes=arena_bytes)
    with pytest.raises(MemoryBudgetError) as caught:
        plan_memory(small, MODEL)
    advised = int(str(caught.value).split("set memory_bytes to at least ")[1].split()[0])
    assert plan_memory(msgspec.structs.replace(small, memory_bytes=advised), MODEL).num_pages >= 4


def test_a_page_must_hold_one_rank_row() -> None:
    config = msgspec.structs.replace(CONFIG, block_tokens=1)
    model = msgspec.structs.replace(MODEL, num_layers=2)
    with pytest.raises(MemoryBudgetError, match="set block_tokens to at least 14"):
        plan_memory(config, model)


def test_the_arena_is_zeroed_aligned_and_one_memory() -> None:
    arena = Arena.allocate(make_config(num_pages=5))
    assert arena.pool.shape == (5, 32)
    assert arena.pool.data_ptr() % 64 == 0
    assert not arena.pool.any()
    arena.adapters.view(-1)[33] = 7
    assert arena.pool[1, 1] == 7
    assert arena.pool.dtype == torch.float32


def test_fp8_halves_the_pages() -> None:
    """The KV layout then counts bytes, adapters still the model's elements."""
    fp8 = msgspec.structs.replace(CONFIG, kv_dtype="fp8", device="cuda")
    resolved = plan_memory(fp8, MODEL)
    usual = plan_memory(msgspec.structs.replace(CONFIG, device="cuda"), MODEL)
    assert 2 * resolved.page_bytes == usual.page_bytes
    assert 2 * resolved.page_elements == resolved.kv_layout.page_elements
    assert resolved.num_pages >= 2 * usual.num_pages


def test_host_memory_stands_beside_the_budget() -> None:
    text = describe(plan_memory(CONFIG, MODEL))
    assert "host tier       256.0 MiB  adapters; host memory, beside the budget" in text
    assert "host KV" not in text
    given = msgspec.structs.replace(CONFIG, host_kv_bytes=10 * 368_640 + 1, device="cuda")
    text = describe(plan_memory(given, MODEL))
    assert "host KV           3.5 MiB  10 pages; pinned host memory, beside the budget" in text


LLAMA_8B = msgspec.structs.replace(
    MODEL,
    num_layers=32,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    context_tokens=131072,
    weight_bytes=16_060_000_000,
    modules={
        "q_proj": (4096, 4096),
        "k_proj": (4096, 1024),
        "v_proj": (4096, 1024),
        "o_proj": (4096, 4096),
        "gate_proj": (4096, 14336),
        "up_proj": (4096, 14336),
        "down_proj": (14336, 4096),
    },
)


@pytest.mark.parametrize(("free_gib", "at_least"), [(23, 0.1), (78, 0.6), (138, 0.8)])
def test_a_gpu_is_used_as_far_as_it_is_free(
    monkeypatch: pytest.MonkeyPatch, free_gib: int, at_least: float
) -> None:
    """The arena gets most of it, the same before the weights are read as after; nothing is
    counted that a GPU does not take."""
    free, held = free_gib * 1024**3, 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free - held, 2 * free))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: held)
    limits = STEP_LIMITS["cuda"]
    config = msgspec.structs.replace(
        CONFIG,
        device="cuda",
        memory_bytes=None,
        max_running=limits.max_running,
        max_step_tokens=limits.max_step_tokens,
    )
    before = plan_memory(config, LLAMA_8B)
    assert before.num_pages * before.page_bytes > at_least * free
    parts = (before.workspace_bytes, before.table_bytes, before.cuda_bytes, before.headroom_bytes)
    used = sum(parts) + LLAMA_8B.weight_bytes + before.num_pages * before.page_bytes
    assert 0 <= free - used < before.page_bytes
    held = LLAMA_8B.weight_bytes
    assert plan_memory(config, LLAMA_8B) == before
    text = describe(before)
    assert "CUDA" in text
    assert "CUDA" not in describe(plan_memory(CONFIG, MODEL))


def test_a_processor_is_given_a_gibibyte() -> None:
    config = msgspec.structs.replace(CONFIG, memory_bytes=None)
    given = msgspec.structs.replace(CONFIG, memory_bytes=1024**3)
    assert plan_memory(config, MODEL).num_pages == plan_memory(given, MODEL).num_pages


LLAMA_8B = ModelInfo(
    id="llama",
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    context_tokens=131_072,
    dtype="bfloat16",
    weight_bytes=16_060_522_496,
    modules={"q_proj": (4096, 4096)},
    eos_token_ids=(2,),
)


def test_the_gather_of_plain_torch_is_budgeted_only_where_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Llama-3.1-8B in 17 GiB had 1.25 GiB for nothing, and a context of 1,104 tokens."""
    config = EngineConfig(model="m", served_name="m", memory_bytes=17 * 1024**3, threads=2)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "has_compiled_ops", lambda: False)
        gather = workspace_parts(config, LLAMA_8B)["attention"]
    assert gather == 2 * 131_072 * 8 * 128 * 4 + 512 * 131_072 * 4
    if not backend.has_compiled_ops():
        pytest.skip("the compiled library is not there")
    in_place = workspace_parts(config, LLAMA_8B)["attention"]
    assert in_place == attention_bytes(32, 8, 128, threads=2, rows=512, context=131_072)
    assert in_place < gather / 8
    assert workspace_parts(structs.replace(config, threads=1), LLAMA_8B)["attention"] < in_place


def test_logits_of_all_that_a_step_samples_are_budgeted() -> None:
    """64 sequences whose drafts are verified, or 256 tokens of a scored prompt beside them."""
    parts = workspace_parts(CONFIG, MODEL)
    assert parts["sampling"] >= 512 * 49152 * 2
    plain = structs.replace(CONFIG, max_draft_tokens=0)
    assert workspace_parts(plain, MODEL)["sampling"] >= (64 + 256) * 49152 * 2
    assert workspace_parts(plain, MODEL)["sampling"] < parts["sampling"]
    assert SCORED_TOKENS_MAX == chunks.SCORED_TOKENS_MAX
    assert SAMPLED_AT_ONCE == sampling.PART_ROWS


def test_what_sampling_holds_at_its_peak_does_not_grow_with_the_rows() -> None:
    """Every rule, filters that need the whole vocabulary sorted and 20 logprobs, of 64 rows, beside
    the logits: all of it had been held of every row in float32, 19 MiB more."""
    vocab, rows = MODEL.vocab, 64
    logits = torch.randn(rows, vocab).to(torch.bfloat16)
    samples = np.arange(rows)
    places = (samples[:, None] * vocab + np.arange(1000)).reshape(-1)
    entries = Entries(places, np.full(places.shape, 1.5, np.float32))
    changes = LogitChanges(entries, entries, entries, samples, places, places)
    column = np.ones(rows, np.float32)
    draws = Draws(
        samples,
        100 * column,
        0.5 * column,
        samples + vocab - rows,
        0.99 * column,
        0 * column,
        vocab,
    )
    sampled = Sampling(changes, draws, dict.fromkeys(range(rows), 20), {}, [])
    most = SAMPLED_AT_ONCE * vocab * SAMPLING_BYTES
    assert _peak_bytes(lambda: sampling.sample(logits, sampled)) <= most


def _peak_bytes(call: Callable[[], object]) -> int:
    """Of torch's memory and of numpy's, each at its own peak."""
    call()
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return peak + max(accumulate(int(event.nbytes()) for event in events))


def test_a_processor_keeps_its_arena_beside_what_steps_hold() -> None:
    """The default had shrunk by 90 MiB for logits in float32 that were held at once."""
    config = msgspec.structs.replace(CONFIG, memory_bytes=None)
    if not backend.has_compiled_ops():
        pytest.skip("the compiled library is not there")
    resolved = plan_memory(config, MODEL)
    assert resolved.num_pages * resolved.page_bytes > 600 * 1024**2


def test_a_draft_layers_buffers_are_budgeted_where_there_is_one() -> None:
    assert workspace_parts(CONFIG, MODEL)["drafts"] == 0
    drafting = structs.replace(CONFIG, draft_layer="file")
    assert workspace_parts(drafting, MODEL)["drafts"] > 64 * 49152 * 2
    on_gpu = structs.replace(drafting, device="cuda", memory_bytes=10**10)
    assert workspace_parts(on_gpu, MODEL)["drafts"] == 0


def test_the_description_names_the_parts_of_the_workspace() -> None:
    resolved = plan_memory(CONFIG, MODEL)
    assert resolved.workspace_bytes == sum(resolved.workspace_parts.values())
    [line] = [each for each in describe(resolved).splitlines() if each.startswith("workspace")]
    for word in ("activations", "LoRA", "attention", "sampling"):
        assert word in line
