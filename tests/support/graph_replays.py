"""A tiny model run by CudaSteps through steps whose rows, adapters and contexts change from one to
the next, beside the decoder run as usual on the same arrays. On CUDA with captured graphs.
Elsewhere, as a program of its own with TRITON_INTERPRET=1, the captured call is made again instead
of replayed: that proves what lies in the static tensors, and the kernels that read it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tenora_engine.executor.cuda import CudaSteps
from tenora_engine.executor.cuda_inputs import StepArrays
from tenora_engine.executor.graphs import Capture, CudaCapture, again, decode_buckets
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.families import spec_of
from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.layers import read_weights
from tenora_engine.model.linear import PlainLinear
from tenora_engine.model.weights import RandomWeights
from tenora_engine.step import Bits, LogitChanges, Masks, Sampling
from tenora_kernels import BASE_SLOT, KVLayout, backend, build_attention_layout, build_segments
from tenora_kernels.backend import Implementation
from tenora_kernels.synthetic import random_adapters

BLOCK_TOKENS, PAGES, MAX_CONTEXT, BUCKET = 4, 64, 40, 7
TOKENS = (8, 32)  # of steps with prompts, of which some here have more: these run eagerly
PARTS = 3  # contexts here are too short to be cut: tests/kernels has those that are
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
# The adapter of each row, and of how many tokens it is. Numbers of rows share a bucket, in which
# rows come and go, adapters change places, runs get longer than others were, and none is left at
# all; the largest has more rows than the largest bucket. Beside them prompts, with decode rows.
MIXES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((0, 1, 2, 3, BASE_SLOT, 0, 2), ()),
    ((3, 3, 3, 3, 3, 3, 3), ()),
    ((BASE_SLOT, 1, 1, 0, 2), (1, 5, 19, 1, 2)),
    ((BASE_SLOT, 1, 1, 0, 2), ()),
    ((2,), ()),
    ((BASE_SLOT, BASE_SLOT, BASE_SLOT, BASE_SLOT, BASE_SLOT), ()),
    ((2, 2), (17, 17)),
    ((BASE_SLOT, 0, 3), (1, 2, 4)),
    ((BASE_SLOT, BASE_SLOT), (9, 12)),
    ((0, 0, 1, 3), (1, 1, 4, 1)),
    ((3, 1), (31, 1)),
    ((1, 0, 3, 2, 1, 0, BASE_SLOT), ()),
    (tuple(3 - place % 5 for place in range(11)), ()),
)
TOLERANCE = 1e-4  # float32: sums in another order


def make_arena(device: torch.device) -> Arena:
    layer = SPEC.layer
    shapes = [linear.shape for linear in layer.linears.values()]
    adapters = random_adapters(RANKS, SPEC.num_layers, shapes, torch.float32, device)
    kv = KVLayout(SPEC.num_layers, BLOCK_TOKENS, layer.kv_heads, layer.head_dim)
    pool = torch.randn(PAGES, kv.page_elements).to(device)
    return Arena(pool=pool, flat=adapters.pool, kv=kv, table=adapters.table)


def steps() -> Iterator[StepArrays]:
    """One step a mix: sequences of any lengths, in pages of their own; the last of each samples."""
    for adapter_slot, lengths in MIXES:
        query = np.array(lengths or [1] * len(adapter_slot))
        rows = len(query)
        context = np.minimum(query + np.random.randint(0, 20, rows), MAX_CONTEXT)
        num_blocks = -(-context // BLOCK_TOKENS)
        samples = np.ones(rows, np.int64)
        samples[0] = int(not lengths)  # more of that prompt is to come
        yield StepArrays(
            query=query,
            context=context,
            num_samples=samples,
            adapter_slot=np.array(adapter_slot, np.int32),
            token_ids=np.random.randint(0, SPEC.vocab, query.sum()).astype(np.int32),
            num_blocks=num_blocks,
            pages=np.random.permutation(PAGES)[: num_blocks.sum()].astype(np.int32),
        )


def plain_inputs(step: StepArrays, arena: Arena, tiles: bool) -> tuple[ForwardInputs, Tensor]:
    """A step's inputs token by token, and the rows that sample."""
    device, ends = arena.pool.device, step.num_blocks.cumsum()
    tables = [
        step.pages[end - count : end].tolist()
        for end, count in zip(ends, step.num_blocks, strict=True)
    ]
    positions, slots, rows = [], [], []
    for table, query, context, samples in zip(
        tables, step.query, step.context, step.num_samples, strict=True
    ):
        for position in range(context - query, context):
            positions.append(position)
            offset = position % BLOCK_TOKENS
            slots.append(table[position // BLOCK_TOKENS] * BLOCK_TOKENS + offset)
        rows += [len(slots) - 1] * samples
    row_slot = torch.from_numpy(step.adapter_slot.repeat(step.query))
    inputs = ForwardInputs(
        token_ids=torch.from_numpy(step.token_ids).long().to(device),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        attention=build_attention_layout(step.query, step.context, tables, device, tiles=tiles),
        segments=build_segments(row_slot, arena.table, tiles=tiles),
    )
    return inputs, torch.tensor(rows, device=device)


def check(
    device: torch.device,
    capture: Capture,
    eager_ops: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Raises AssertionError unless every step gives what the decoder gives, in logits and in the KV
    it writes, and each bucket was captured once, with and without adapters."""
    torch.manual_seed(0)
    np.random.seed(0)
    weights = read_weights(SPEC, RandomWeights(0), device, torch.float32, PlainLinear)
    decoder = Decoder(weights, MAX_CONTEXT)
    arena = make_arena(device)
    captures = 0

    def counted(call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        nonlocal captures
        captures += 1
        return capture(call)

    cuda = CudaSteps(
        decoder,
        arena,
        parts=PARTS,
        max_seqs=11,
        max_tokens=8,  # of which a step here may have more: it is copied in more than one piece
        max_context=MAX_CONTEXT,
        largest_bucket=BUCKET,
        tokens=TOKENS,
        capture=counted,
    )
    before = arena.pool.clone()
    cuda.prepare()
    torch.testing.assert_close(arena.pool, before, atol=0, rtol=0)
    captured = captures
    eager = replace(arena, pool=arena.pool.clone())
    with torch.inference_mode():
        for step in steps():
            with eager_ops():
                inputs, rows = plain_inputs(step, arena, device.type == "cuda")
                expected = decoder.next_logits(inputs, eager, rows)
            logits, _ = cuda.next_logits(step)
            torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
            torch.testing.assert_close(arena.pool, eager.pool, atol=TOLERANCE, rtol=TOLERANCE)
    assert captures == captured == 2 * (len(decode_buckets(BUCKET)) + len(TOKENS))
    check_masks(cuda)


class LateMasks(Masks):
    """Each of which allows one token; there once the step has been launched."""

    def __init__(self, tokens: list[int], num_launched: Callable[[], int]) -> None:
        allowed = np.zeros((len(tokens), -(-SPEC.vocab // 32)), np.uint32)
        for row, token in enumerate(tokens):
            allowed[row, token // 32] = 1 << token % 32
        super().__init__(allowed.view(np.int32).reshape(-1))
        self._num_launched, self._before = num_launched, num_launched()

    @property
    def bits(self) -> Bits:
        assert self._num_launched() > self._before
        return super().bits


def check_masks(cuda: CudaSteps) -> None:
    """Masks are made beside the forward pass: nobody waits for them before it is launched."""
    forward, passes = cuda._decoder.forward, 0

    def counted(inputs: ForwardInputs, arena: Arena) -> Tensor:
        nonlocal passes
        passes += 1
        return forward(inputs, arena)

    with mock.patch.object(cuda._decoder, "forward", counted):
        for step in steps():
            if cuda._arena.pool.is_cuda and len(step.token_ids) <= TOKENS[-1]:
                continue  # a replay makes no call
            count = int(step.num_samples.sum())
            tokens = [(7 * row + 3) % SPEC.vocab for row in range(count)]
            masks = LateMasks(tokens, lambda: passes)
            changes = LogitChanges(None, None, None, None, None, None, np.arange(count), masks)
            assert cuda.run_arrays(step, Sampling(changes, None, {})).token_ids == tokens


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
