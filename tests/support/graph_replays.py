"""A tiny model run by GraphRunner through steps whose rows, adapters and contexts change between
replays, beside the decoder run as usual. On CUDA with captured graphs. Elsewhere, as a program of
its own with TRITON_INTERPRET=1, the captured call is made again instead of replayed: that proves
what lies in the static tensors, and the kernels that read it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest import mock

import torch
from torch import Tensor

from tenora_engine.executor.graphs import Capture, CudaCapture, GraphRunner, again
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.families import spec_of
from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.layers import read_weights
from tenora_engine.model.linear import PlainLinear
from tenora_engine.model.weights import RandomWeights
from tenora_kernels import BASE_SLOT, KVLayout, backend, build_attention_layout, build_segments
from tenora_kernels.backend import Implementation
from tenora_kernels.synthetic import random_adapters

BLOCK_TOKENS, PAGES, MAX_CONTEXT, MAX_ROWS = 4, 64, 40, 7
RANKS = (2, 5, 8, 17)
SPEC = spec_of(
    {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
        "max_position_embeddings": MAX_CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
)
# The adapter of each row. Two numbers of rows share a bucket, in which rows come and go, adapters
# change places, runs get longer than others were, and none is left at all.
MIXES: tuple[tuple[int, ...], ...] = (
    (0, 1, 2, 3, BASE_SLOT, 0, 2),
    (3, 3, 3, 3, 3, 3, 3),
    (BASE_SLOT, 1, 1, 0, 2),
    (2,),
    (BASE_SLOT, BASE_SLOT, BASE_SLOT, BASE_SLOT, BASE_SLOT),
    (1, 0, 3, 2, 1, 0, BASE_SLOT),
)
TOLERANCE = 1e-4  # float32: sums in another order


@dataclass(frozen=True)
class Step:
    """The next tokens of some sequences. `inputs(tiles)` is the step in the CUDA form, or not."""

    inputs: Callable[[bool], ForwardInputs]
    num_rows: int


def make_arena(device: torch.device) -> Arena:
    layer = SPEC.layer
    shapes = [linear.shape for linear in layer.linears.values()]
    adapters = random_adapters(RANKS, SPEC.num_layers, shapes, torch.float32, device)
    kv = KVLayout(SPEC.num_layers, BLOCK_TOKENS, layer.kv_heads, layer.head_dim)
    pool = torch.randn(PAGES, kv.page_elements).to(device)
    return Arena(pool=pool, flat=adapters.pool, kv=kv, table=adapters.table)


def steps(arena: Arena) -> Iterator[Step]:
    """One step a mix: sequences of any lengths, in pages of their own."""
    device = arena.pool.device
    for row_slot in MIXES:
        rows = len(row_slot)
        contexts = torch.randint(1, MAX_CONTEXT + 1, (rows,)).tolist()
        pages = iter(torch.randperm(PAGES).tolist())
        tables = [[next(pages) for _ in range(-(-c // BLOCK_TOKENS))] for c in contexts]
        slots = [
            table[-1] * BLOCK_TOKENS + (context - 1) % BLOCK_TOKENS
            for table, context in zip(tables, contexts, strict=True)
        ]
        tokens = torch.randint(0, SPEC.vocab, (rows,))

        def inputs(
            tiles: bool,
            tokens: Tensor = tokens,
            slots: list[int] = slots,
            contexts: list[int] = contexts,
            tables: list[list[int]] = tables,
            row_slot: tuple[int, ...] = row_slot,
        ) -> ForwardInputs:
            rows = torch.tensor(row_slot, dtype=torch.int32)
            layout = build_attention_layout([1] * len(slots), contexts, tables, device, tiles=tiles)
            return ForwardInputs(
                token_ids=tokens.to(device),
                positions=torch.tensor(contexts, device=device) - 1,
                slots=torch.tensor(slots, device=device),
                attention=layout,
                segments=build_segments(rows, arena.table, tiles=tiles),
            )

        yield Step(inputs, rows)


def check(
    device: torch.device,
    capture: Capture,
    eager_ops: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Raises AssertionError unless every replay gives what the decoder gives, in hidden states and
    in the KV it writes, and each bucket was captured once, with and without adapters."""
    torch.manual_seed(0)
    weights = read_weights(SPEC, RandomWeights(0), device, torch.float32, PlainLinear)
    decoder = Decoder(weights, MAX_CONTEXT)
    arena = make_arena(device)
    eager = replace(arena, pool=arena.pool.clone())
    captures = 0

    def counted(call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        nonlocal captures
        captures += 1
        return capture(call)

    runner = GraphRunner(decoder, arena, MAX_ROWS, MAX_CONTEXT, counted)
    kinds: set[tuple[bool, bool]] = set()
    with torch.inference_mode():
        for step in steps(arena):
            with eager_ops():
                expected = decoder.forward(step.inputs(device.type == "cuda"), eager)
            inputs = step.inputs(True)
            assert runner.can_run(inputs)
            hidden = runner.forward(inputs)
            torch.testing.assert_close(hidden, expected, atol=TOLERANCE, rtol=TOLERANCE)
            torch.testing.assert_close(arena.pool, eager.pool, atol=TOLERANCE, rtol=TOLERANCE)
            kinds.add((step.num_rows == 1, inputs.segments.any_adapter))
    assert captures == len(kinds)


@contextmanager
def ops(made: Callable[[], Implementation]) -> Iterator[None]:
    """Within it, every op is of this implementation, whatever the device."""
    with mock.patch.object(backend, "_chosen", return_value=made()):
        yield


if __name__ == "__main__":
    if torch.cuda.is_available():
        check(torch.device("cuda"), CudaCapture())
        sys.exit()
    torch.set_num_threads(1)
    with ops(backend.triton_implementation):
        check(torch.device("cpu"), again, lambda: ops(backend.torch_implementation))
