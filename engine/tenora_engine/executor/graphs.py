"""GraphRunner: decode steps of one model as captured CUDA graphs, one for each bucket of rows.

A graph's launches are fixed; what changes from step to step lies in tensors that stay where they
are. So a step's metadata is copied over that of the one before (`staging`) and the graph replayed:
any mix and number of adapters, on any slots, in contexts of any lengths, is the same graph. Needs
nothing but torch and the model, no plans and no requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tenora_engine.executor.cuda_inputs import CudaInputs, StepArrays
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
    hidden: Tensor  # [bucket, hidden]
    blocks_begin: int  # in what is sent, behind all that has a fixed size


class GraphRunner:
    """Runs decode steps, in parts of up to `max_rows` rows."""

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        inputs: CudaInputs,
        staging: Staging,
        max_rows: int,
        capture: Capture | None = None,  # None: CUDA graphs
    ) -> None:
        self._decoder = decoder
        self._arena = arena
        self._inputs = inputs
        self._staging = staging
        self._capture = capture or CudaCapture()
        self._buckets = decode_buckets(max_rows)
        self._replays: dict[tuple[int, bool], Replay] = {}

    @property
    def max_rows(self) -> int:
        return self._buckets[-1]

    @torch.inference_mode()
    def capture_all(self) -> None:
        """Capture every bucket, with and without adapters, the largest first: the smaller ones
        then live in its memory."""
        for bucket in reversed(self._buckets):
            for adapted in (True, False):
                self._replays[bucket, adapted] = self._record(bucket, adapted)

    @property
    def any_hidden(self) -> Tensor:  # [rows, hidden]
        """Some graph's result, once all have been captured."""
        return next(iter(self._replays.values())).hidden

    @torch.inference_mode()
    def put(self, step: StepArrays) -> Replay:
        """Put a step of decode of up to `max_rows` rows where its graph reads it, as the first
        thing since `Staging.begin`. Once that has been sent, it can be run; rows of the result
        beyond the step's mean nothing, and a later run overwrites it."""
        bucket = next(size for size in self._buckets if size >= step.num_seqs)
        inputs = self._inputs.build_decode(step, bucket)
        key = (bucket, inputs.segments.any_adapter)
        if key not in self._replays:
            self._replays[key] = self._record(*key)
            self._staging.begin()
        begins = [self._staging.write(tensor) for tensor in inputs.tensors()]
        replay = self._replays[key]
        assert begins[-1] == replay.blocks_begin  # and so nothing before them has moved either
        return replay

    def _record(self, bucket: int, adapted: bool) -> Replay:
        # Nothing is said to be there: a captured step reads and writes no page.
        self._staging.begin()
        inputs = self._inputs.build_decode(StepArrays.idle(), bucket).moved(self._staging.put)
        inputs = replace(inputs, segments=replace(inputs.segments, any_adapter=adapted))
        self._staging.send()
        run, hidden = self._capture(lambda: self._decoder.forward(inputs, self._arena))
        run()  # the first launch of a graph uploads it
        first, last = inputs.token_ids.data_ptr(), inputs.attention.block_table.data_ptr()
        return Replay(run, hidden, last - first)
