"""Counts the kernels that serving a model on a GPU compiles, on a machine that has none: launches
end where Triton would compile, and are told apart by the keys it would keep them under.

A program of its own, because it must own triton's process-wide driver. It prints, as JSON, the
variants of each kernel that `CudaSteps.prepare` asks for, and those that steps of many shapes ask
for after it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton

from tenora_bench.gpu.offline import compile_only
from tenora_engine.executor.cuda import CudaSteps
from tenora_engine.executor.cuda_inputs import StepArrays
from tenora_engine.executor.graphs import again
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.families import spec_of
from tenora_engine.model.inputs import Arena
from tenora_engine.model.layers import read_weights
from tenora_engine.model.linear import PlainLinear
from tenora_engine.model.weights import RandomWeights
from tenora_kernels import KVLayout, backend
from tenora_kernels.backend import triton_implementation
from tenora_kernels.synthetic import random_adapters

CPU, BLOCK_TOKENS, CONTEXT, PAGES, SEQS, TOKENS = torch.device("cpu"), 16, 4096, 300, 20, 600
SPEC = spec_of(
    {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 50,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
)


def make_steps() -> CudaSteps:
    layer = SPEC.layer
    weights = read_weights(SPEC, RandomWeights(0), CPU, torch.bfloat16, PlainLinear)
    shapes = [linear.shape for linear in layer.linears.values()]
    adapters = random_adapters((4, 16), SPEC.num_layers, shapes, torch.bfloat16, CPU)
    kv = KVLayout(SPEC.num_layers, BLOCK_TOKENS, layer.kv_heads, layer.head_dim)
    pool = torch.zeros(PAGES, kv.page_elements, dtype=torch.bfloat16)
    return CudaSteps(
        Decoder(weights, CONTEXT),
        Arena(pool=pool, flat=adapters.pool, kv=kv, table=adapters.table),
        parts=256,
        max_seqs=SEQS,
        max_tokens=TOKENS,
        max_context=CONTEXT,
        largest_bucket=8,
        tokens=(64, 256, 512),  # larger steps run as they are
        capture=again,
    )


def shapes() -> Iterator[tuple[list[int], list[int]]]:
    """(query lengths, context lengths): one row and many, short and long, odd and aligned, more
    rows than a bucket, prompts of one token to all that a step has, tiles of either size."""
    for rows in range(1, SEQS + 1):
        yield [1] * rows, [1 + 37 * row for row in range(rows)]
    for prompt in (1, 2, 15, 16, 17, 64, 239, 255, 256, 257, 500, 580):
        yield [prompt], [prompt]
        yield [1, prompt, 1, 1, 3], [4000, prompt + 5, 16, 1, 3]
        yield [prompt, 16, 2], [prompt + 1024, 16, 33]


def arrays(query: list[int], context: list[int], adapted: bool) -> StepArrays:
    rows, contexts = len(query), np.array(context)
    num_blocks = -(-contexts // BLOCK_TOKENS)
    return StepArrays(
        query=np.array(query),
        context=contexts,
        num_samples=np.ones(rows, np.int64),
        adapter_slot=np.sort(np.arange(rows) % 3 - 1 if adapted else np.full(rows, -1)).astype(
            "i4"
        ),
        token_ids=np.zeros(sum(query), np.int32),
        num_blocks=num_blocks,
        pages=(np.arange(num_blocks.sum()) % PAGES).astype(np.int32),
    )


def main() -> None:
    compile_only()
    asked: set[tuple[str, str]] = set()

    def note(*, fn: Any, key: str, **others: Any) -> bool:
        asked.add((fn.name.rsplit(".")[-1], key))
        return True  # it is not compiled

    triton.knobs.runtime.jit_cache_hook = note
    with mock.patch.object(backend, "_chosen", return_value=triton_implementation()):
        steps = make_steps()
        steps.prepare()
        prepared = set(asked)
        count = 0
        for query, context in shapes():
            for adapted in (False, True):
                steps.run_arrays(arrays(query, context, adapted))
                count += 1
    result = {
        "prepared": Counter(name for name, _ in prepared),
        "after": Counter(name for name, _ in asked - prepared),
        "steps": count,
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
