"""GraphRunner: steps of one model as captured CUDA graphs, one for each bucket of decode rows, and
one for each bucket of tokens where prompts are among them.

A graph's launches are fixed; what changes from step to step lies in tensors that stay where they
are. So a step's metadata is copied over that of the one before (`staging`) and the graph replayed:
any mix and number of adapters, on any slots, in contexts of any lengths, is the same graph. Needs
nothing but torch and the model, no plans and no requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tenora_engine.executor.cuda_inputs import Bucket, CudaInputs, StepArrays
from tenora_engine.executor.staging import Staging
from tenora_engine.model.decoder import Decoder
from tenora_engine.model.inputs import Arena
from tenora_kernels.segments import SMALL_TILES_MAX

LARGEST_BUCKET = SMALL_TILES_MAX
"""Steps of more rows run in several replays: a decode step takes the time of reading the weights
once more, which at so many rows is a small part of it."""

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Takes a call over fixed tensors; gives back how to make it again, and where its result lies."""


def decode_buckets(max_rows: int) -> tuple[int, ...]:
    """Powers of two up to 32, then multiples of 32, until `max_rows` fit. The rows that fill up a
    bucket cost next to nothing: a decode step takes the time of reading weights and KV."""
    sizes = [1, 2, 4, 8, 16, *range(32, LARGEST_BUCKET + 1, 32)]
    needed = [size for size in sizes if size < max_rows]
    return tuple(needed + sizes[len(needed) : len(needed) + 1])


TOKEN_BUCKETS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Of steps with prompts: launched one by one, 32 layers take the host 10 to 20 ms, as long as a GPU
computes a thousand tokens of an 8B model."""

FILLERS_MAX = 256
"""A step that would be filled up with more tokens than this is launched as it is: the device would
compute them for longer than the host launches."""


def token_buckets(max_tokens: int) -> tuple[int, ...]:
    """As many as hold every step of up to `max_tokens`, where there are such."""
    needed = [size for size in TOKEN_BUCKETS if size < max_tokens]
    return tuple(needed + list(TOKEN_BUCKETS[len(needed) : len(needed) + 1]))


class CudaCapture:
    """Captures calls as CUDA graphs; all share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch's own

    def __call__(self, call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        # Twice as usual first: kernels are compiled, libraries choose and take their workspaces,
        # which must not happen during capture.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = call()
        return graph.replay, output


def again(call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A capture where there is no CUDA: a replay makes the same call over the same tensors."""
    output = call()

    def run() -> None:
        output.copy_(call())

    return run, output


@dataclass(frozen=True)
class Replay:
    """One captured step: `run()`, and then `hidden` holds the result."""

    run: Callable[[], None]
    hidden: Tensor  # [tokens of the bucket, hidden]
    blocks_begin: int  # in what is sent, behind all that has a fixed size


class GraphRunner:
    """Runs decode steps, in parts of up to `max_rows` rows, and others of up to `max_seqs`
    sequences and as many tokens as the largest of `tokens`."""

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        inputs: CudaInputs,
        staging: Staging,
        max_rows: int,
        *,
        max_seqs: int,
        tokens: Sequence[int],  # buckets of steps with prompts, rising
        capture: Capture | None = None,  # None: CUDA graphs
    ) -> None:
        self._decoder = decoder
        self._arena = arena
        self._inputs = inputs
        self._staging = staging
        self._capture = capture or CudaCapture()
        self._decode = [Bucket(rows, rows, True) for rows in decode_buckets(max_rows)]
        self._mixed = [Bucket(count, max_seqs, False) for count in tokens]
        self._replays: dict[tuple[Bucket, bool], Replay] = {}

    @property
    def max_rows(self) -> int:
        return self._decode[-1].seqs

    @property
    def any_hidden(self) -> Tensor:  # [rows, hidden]
        """Some graph's result, once all have been captured."""
        return next(iter(self._replays.values())).hidden

    @torch.inference_mode()
    def capture_all(self) -> None:
        """Capture every bucket, with and without adapters, the largest first: the smaller ones
        then live in its memory."""
        for bucket in sorted([*self._decode, *self._mixed], reverse=True):
            for adapted in (True, False):
                self._replays[bucket, adapted] = self._record(bucket, adapted)

    @torch.inference_mode()
    def put(self, step: StepArrays) -> Replay | None:
        """Put a step where its graph reads it, as the first thing since `Staging.begin`. Once that
        has been sent, it can be run; rows of the result beyond the step's mean nothing, and a later
        run overwrites it. None: no graph is for such steps; a step of decode of up to `max_rows`
        rows has one."""
        bucket = self._bucket(step)
        if bucket is None:
            return None
        inputs = self._inputs.build_in(step, bucket)
        key = (bucket, inputs.segments.any_adapter)
        if key not in self._replays:
            self._replays[key] = self._record(*key)
            self._staging.begin()
        begins = [self._staging.write(tensor) for tensor in inputs.tensors()]
        replay = self._replays[key]
        assert begins[-1] == replay.blocks_begin  # and so nothing before them has moved either
        return replay

    def _bucket(self, step: StepArrays) -> Bucket | None:
        if step.is_decode:
            return next(bucket for bucket in self._decode if bucket.seqs >= step.num_seqs)
        count = len(step.token_ids)
        for bucket in self._mixed:
            if bucket.tokens >= count and bucket.seqs >= step.num_seqs:
                return bucket if bucket.tokens - count <= FILLERS_MAX else None
        return None

    def _record(self, bucket: Bucket, adapted: bool) -> Replay:
        # Nothing is said to be there: a captured step reads and writes no page.
        self._staging.begin()
        inputs = self._inputs.build_in(StepArrays.idle(), bucket).moved(self._staging.put)
        inputs = replace(inputs, segments=replace(inputs.segments, any_adapter=adapted))
        self._staging.send()
        run, hidden = self._capture(lambda: self._decoder.forward(inputs, self._arena))
        run()  # the first launch of a graph uploads it
        first, last = inputs.token_ids.data_ptr(), inputs.attention.block_table.data_ptr()
        return Replay(run, hidden, last - first)
