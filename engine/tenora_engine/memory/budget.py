"""Budget first: weights, workspace, slot tables and headroom are computed before the arena is
sized, so that memory never runs out by growth. Arithmetic only, it allocates nothing; but where the
operator names no budget for a GPU, it asks what is free there."""

from __future__ import annotations

import msgspec

from tenora_engine.config import LORA_MODULES, EngineConfig, ModelInfo, ResolvedConfig
from tenora_engine.errors import MemoryBudgetError
from tenora_engine.machine import Machine, default_memory_bytes, this_machine

MIN_CONTEXT_TOKENS = 64
"""An arena which cannot hold one sequence of this length is refused."""

HEADROOM_BYTES_MIN = 16 * 1024**2
HEADROOM_FRACTION = 0.02  # of the whole budget: fragmentation of the allocator

CUDA_LIBRARY_BYTES = 512 * 1024**2
"""Code of kernels, and what cuBLAS and the allocator take, beside the context itself: an estimate
that no GPU has confirmed."""

GRAPH_BYTES = 4 * 1024**2  # of one captured graph's launches; likewise
GRID_PROGRAMS = 512  # that partial sums of a launch are kept for (`tenora_kernels.gpu.tuning`)

SCORED_TOKENS_MAX = 256
"""As `scheduling.chunks` has it: tokens of prompts whose logprobs are told in one step."""

SAMPLED_AT_ONCE = 16  # rows, as `executor.sampling` has it
KEPT_LOGITS_BYTES = 32 * 1024**2  # as the compiled decoder has it (decoder.cpp)

SAMPLING_BYTES = 24  # a logit while it is sampled


def plan_memory(config: EngineConfig, model: ModelInfo) -> ResolvedConfig:
    """Every size that follows from what the operator chose and from the model.

    In the result `model.context_tokens` is what one sequence can really have: the least of the
    model's own, `max_context_tokens` and what the arena holds. Raises MemoryBudgetError, with the
    numbers, when the arena would be too small to be of use or a page too small for an adapter.
    """
    item = 2 if config.dtype == "bfloat16" else 4
    kv_item = 1 if config.kv_dtype == "fp8" else item
    kv_elements = model.num_layers * 2 * config.block_tokens * model.kv_heads * model.head_dim
    page_elements = kv_elements * kv_item // item  # of the model's dtype, as adapters count
    page_bytes = page_elements * item
    _check_page(config, model, page_elements)
    memory = available_bytes(config) if config.memory_bytes is None else config.memory_bytes
    parts = workspace_parts(config, model)
    workspace = sum(parts.values())
    tables = table_bytes(config, model)
    cuda = cuda_bytes(config, model)
    headroom = max(HEADROOM_BYTES_MIN, int(memory * HEADROOM_FRACTION))
    drafts = adapter_draft_bytes(config)
    left = memory - model.weight_bytes - workspace - tables - drafts - cuda - headroom
    arena = left if config.arena_bytes is None else config.arena_bytes
    resolved = ResolvedConfig(
        engine=config,
        model=model,
        page_elements=page_elements,
        page_bytes=page_bytes,
        num_pages=max(arena // page_bytes, 0),
        workspace_bytes=workspace,
        workspace_parts=parts,
        memory_bytes=memory,
        cuda_bytes=cuda,
        table_bytes=tables,
        draft_bytes=drafts,
        headroom_bytes=headroom,
    )
    context = model.context_tokens
    if config.max_context_tokens is not None:
        context = min(context, config.max_context_tokens)
    min_pages = -(-min(context, MIN_CONTEXT_TOKENS) // config.block_tokens)
    if arena > left or resolved.num_pages < min_pages:
        raise MemoryBudgetError(_too_small(resolved, left, arena, min_pages))
    context = min(context, resolved.num_pages * config.block_tokens)
    return msgspec.structs.replace(
        resolved, model=msgspec.structs.replace(model, context_tokens=context)
    )


def available_bytes(config: EngineConfig) -> int:
    """The budget where none is given. On CUDA what no other process holds and neither the context
    nor this process's own libraries, weights that have been read included."""
    if config.device != "cuda":
        return default_memory_bytes(this_machine())
    import torch  # whoever only reckons does not pay for it

    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()


def beyond_machine(resolved: ResolvedConfig, machine: Machine) -> str | None:
    """What to tell an operator whose budget is more than the process may have; else None. Pages are
    touched when they are first used, so that it would be killed some day, not at its start."""
    config = resolved.engine
    needed = (
        config.host_adapter_bytes
        + config.max_request_bytes
        + resolved.num_host_pages * resolved.page_bytes
    )
    needed += resolved.memory_bytes if config.device == "cpu" else 0
    if needed <= machine.memory_bytes:
        return None
    return (
        f"the memory budget and the host tiers need {_mib(needed)} together, more than this "
        f"process can use: {machine.describe_memory()}"
    )


def cuda_bytes(config: EngineConfig, model: ModelInfo) -> int:
    """What CUDA takes beside weights, workspace and arena; nothing on the CPU. Graphs share one
    pool: the activations of the largest, and each one's result."""
    if config.device != "cuda":
        return 0
    from tenora_engine.executor.graphs import decode_buckets, token_buckets  # imports torch

    item = 2 if config.dtype == "bfloat16" else 4
    buckets = (*decode_buckets(config.max_running), *token_buckets(config.max_step_tokens))
    partial = _partial_bytes(config, model, max(config.max_running, decode_buckets(1 << 20)[-1]))
    pool = max(buckets) * _row_elements(model) * item + partial
    results = 2 * sum(buckets) * model.hidden * item
    context = _context(config, model)
    rope = context * model.head_dim * 4  # cos and sin of half the dimensions, float32
    words = -(-context // config.block_tokens) + -(-model.vocab // 32)  # blocks, and a mask
    staging = config.max_running * words * 4
    graphs = pool + results + 2 * len(buckets) * GRAPH_BYTES
    return CUDA_LIBRARY_BYTES + graphs + rope + staging


def _context(config: EngineConfig, model: ModelInfo) -> int:
    return min(model.context_tokens, config.max_context_tokens or model.context_tokens)


def _row_elements(model: ModelInfo) -> int:
    """Of one row's activations in one layer."""
    query, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return 4 * model.hidden + 2 * (query + 2 * kv) + 4 * model.intermediate


def _partial_bytes(config: EngineConfig, model: ModelInfo, rows: int) -> int:
    """CUDA: partial results of attention, for each row and for what fills the device beside them,
    and of `sgmv`, each float32."""
    parts = rows + -(-GRID_PROGRAMS // model.kv_heads)
    tiles = config.max_step_tokens // 64 + config.max_running  # that a captured step has room for
    programs = max(GRID_PROGRAMS, 3 * tiles)  # a linear has three slices at most
    return 4 * (parts * model.heads * (model.head_dim + 2) + programs * 64 * config.max_rank)


def workspace_parts(config: EngineConfig, model: ModelInfo) -> dict[str, int]:
    """Upper estimates of what one step needs beside weights and arena, in bytes: the activations of
    `max_step_tokens` rows through one layer, the rank-sized middle of LoRA, attention, the logits
    of all that is sampled, scored or verified, and what the draft layer proposes with."""
    return {
        "activations": config.max_step_tokens * _row_elements(model) * _item_bytes(config),
        "LoRA": config.max_step_tokens * len(LORA_MODULES) * config.max_rank * 4,
        "attention": _attention_bytes(config, model, config.max_step_tokens),
        "sampling": _sampling_bytes(config, model),
        "drafts": _draft_step_bytes(config, model),
    }


def _attention_bytes(config: EngineConfig, model: ModelInfo, rows: int) -> int:
    """The compiled library and CUDA read pages where they lie and keep partial results; plain torch
    gathers the KV of the longest context."""
    if config.device == "cuda":
        return _partial_bytes(config, model, config.max_running)
    from tenora_kernels import backend  # imports torch

    context = _context(config, model)
    if not backend.has_compiled_ops():
        return 2 * context * model.kv_heads * model.head_dim * 4 + rows * context * 4
    import torch

    from tenora_kernels.compiled.paged_attention import attention_bytes

    return attention_bytes(
        model.heads,
        model.kv_heads,
        model.head_dim,
        threads=config.threads or torch.get_num_threads(),
        rows=rows,
        context=context,
    )


def _sampling_bytes(config: EngineConfig, model: ModelInfo) -> int:
    """CPU: the logits in the model's dtype, the decoder's own, that it keeps, and the masks of
    grammars, twice while they are put in order. In float32 there are never more than some rows at
    a time: of a logit 4 bytes as changed, 4 as drawn from, and copies while the likeliest are
    found. Measured at the worst (rules, top_k, top_p, min_p and 20 logprobs of 64 and 512 rows, of
    49,152 and 151,936 tokens): 22 bytes, of SAMPLING_BYTES."""
    if config.device == "cuda":
        return config.max_running * model.vocab * SAMPLING_BYTES
    rows = config.max_running * (1 + config.max_draft_tokens) + SCORED_TOKENS_MAX
    logits = min(rows, max(config.max_step_tokens, config.max_running)) * model.vocab
    kept = min(logits * _item_bytes(config), KEPT_LOGITS_BYTES)
    at_once = min(rows, SAMPLED_AT_ONCE) * model.vocab * SAMPLING_BYTES
    return logits * _item_bytes(config) + kept + 2 * logits // 8 + at_once


def _draft_step_bytes(config: EngineConfig, model: ModelInfo) -> int:
    """CPU: buffers of a draft layer, whose rows are the sequences."""
    if config.device == "cuda" or (config.draft_layer is None and not adapter_draft_bytes(config)):
        return 0
    rows, hidden, inner = config.max_running, model.hidden, model.intermediate
    elements = 6 * hidden + 2 * model.heads * model.head_dim + 3 * inner + model.vocab
    quantised = max(2 * hidden, inner, model.heads * model.head_dim) * 2
    attention = _attention_bytes(config, model, rows)
    return rows * (elements * _item_bytes(config) + quantised) + attention


def _item_bytes(config: EngineConfig) -> int:
    return 2 if config.dtype == "bfloat16" else 4


def table_bytes(config: EngineConfig, model: ModelInfo) -> int:
    """AdapterTable: int64 granule offsets, and four 4-byte numbers for each module."""
    slot_layers = config.max_adapters * model.num_layers
    return slot_layers * (config.max_rank * 8 + len(LORA_MODULES) * 4 * 4)


def adapter_draft_bytes(config: EngineConfig) -> int:
    """For draft layers that adapters bring; nothing where there are no drafts, and under strict
    isolation: all tenants' layers would share it."""
    is_used = config.device == "cpu" and config.max_draft_tokens and not config.strict_isolation
    return config.adapter_draft_bytes if is_used else 0


def describe(resolved: ResolvedConfig) -> str:
    """The budget as a table of lines, for the log at start and `tenora doctor`."""
    config, model = resolved.engine, resolved.model
    arena = resolved.num_pages * resolved.page_bytes
    is_cuda = config.device == "cuda"
    parts = [
        ("weights", model.weight_bytes, f"{model.id}, {config.dtype}"),
        ("workspace", resolved.workspace_bytes, _workspace_note(resolved)),
        ("slot tables", resolved.table_bytes, f"{config.max_adapters} adapters"),
        *([("draft layers", resolved.draft_bytes, "of adapters")] if resolved.draft_bytes else []),
        *([("CUDA", resolved.cuda_bytes, "libraries, graphs, tables")] if is_cuda else []),
        ("headroom", resolved.headroom_bytes, ""),
        (
            "page arena",
            arena,
            f"{resolved.num_pages} pages of {resolved.page_bytes / 1024:.0f} KiB, "
            f"{resolved.num_pages * config.block_tokens} tokens of KV",
        ),
    ]
    used = sum(size for _, size, _ in parts)
    parts.append(("unused", max(resolved.memory_bytes - used, 0), ""))
    parts.append(("budget", resolved.memory_bytes, f"context up to {model.context_tokens} tokens"))
    host_kv = 0 if config.strict_isolation else config.host_kv_bytes // resolved.page_bytes
    note = f"{'pinned ' if is_cuda else ''}host memory, beside the budget"
    parts.append(("requests", config.max_request_bytes, "prompts in flight; beside the budget"))
    parts.append(("host tier", config.host_adapter_bytes, f"adapters; {note}"))
    if host_kv:
        parts.append(("host KV", host_kv * resolved.page_bytes, f"{host_kv} pages; {note}"))
    return "\n".join(f"{name:<12} {_mib(size):>12}  {note}".rstrip() for name, size, note in parts)


def _workspace_note(resolved: ResolvedConfig) -> str:
    parts = [f"{name} {_mib(size)}" for name, size in resolved.workspace_parts.items() if size]
    return f"{resolved.engine.max_step_tokens} tokens a step: {', '.join(parts)}"


def _check_page(config: EngineConfig, model: ModelInfo, page_elements: int) -> None:
    granule = sum(inputs + outputs for inputs, outputs in model.modules.values())
    if config.adapter_dtype == "int8":  # a byte a weight, and a float32 for each row's scale
        num_bytes = granule + 2 * 4 * len(model.modules)
        granule = -(-num_bytes // (2 if config.dtype == "bfloat16" else 4))
    if granule > page_elements:
        per_token = page_elements // config.block_tokens
        raise MemoryBudgetError(
            f"a page of {config.block_tokens} tokens has {page_elements} elements, but one rank "
            f"row of an adapter on all modules of a layer needs {granule}; set block_tokens to "
            f"at least {-(-granule // per_token)}"
        )


def _too_small(resolved: ResolvedConfig, left: int, arena: int, min_pages: int) -> str:
    config, model = resolved.engine, resolved.model
    needed = max(min_pages * resolved.page_bytes, arena if config.arena_bytes is not None else 0)
    total = model.weight_bytes + resolved.workspace_bytes + resolved.table_bytes + needed
    total += resolved.cuda_bytes + resolved.draft_bytes
    total = max(total + HEADROOM_BYTES_MIN, int(total / (1 - HEADROOM_FRACTION)) + 1)
    advice = f"set memory_bytes to at least {total} ({_mib(total)})"
    if config.arena_bytes is not None:
        pages = min_pages * resolved.page_bytes
        advice += f", or arena_bytes to between {pages} and {max(left, 0)}"
    cuda = f", CUDA {_mib(resolved.cuda_bytes)}" if resolved.cuda_bytes else ""
    if resolved.draft_bytes:
        cuda += f", draft layers of adapters {_mib(resolved.draft_bytes)}"
    return (
        f"the memory budget of {_mib(resolved.memory_bytes)} is too small: weights "
        f"{_mib(model.weight_bytes)}, workspace {_mib(resolved.workspace_bytes)}, slot tables "
        f"{_mib(resolved.table_bytes)}{cuda} and headroom {_mib(resolved.headroom_bytes)} leave "
        f"{_mib(left)} for the page arena, which needs {_mib(needed)} "
        f"({min_pages} pages of {_mib(resolved.page_bytes)} at least); {advice}"
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**2:.1f} MiB"
