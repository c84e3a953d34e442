"""GraphRunner: decode steps of one model as captured CUDA graphs, one for each bucket of rows.

A graph's launches are fixed; what changes from step to step lies in tensors that stay where they
are. So a step copies its metadata over them and replays: any mix and number of adapters, on any
slots, is the same graph. Needs nothing but torch and the model, no plans and no requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tenora_engine.model.decoder import Decoder
from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_kernels.segments import BASE_SLOT, AdapterSegments, AttentionLayout, RowTiles

LARGEST_BUCKET = 256
"""Steps of more rows run eagerly: their launches cost little beside their work. Up to here adapter
tiles have the same size whatever the number of rows (`build_segments`)."""

NOWHERE = -1
"""The KV slot of a row that only fills its bucket."""

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


class GraphRunner:
    """Runs decode steps of up to `max_rows` rows and `max_context_tokens` tokens a sequence."""

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        max_rows: int,
        max_context_tokens: int,
        capture: Capture | None = None,  # None: CUDA graphs
    ) -> None:
        self._decoder = decoder
        self._arena = arena
        self._capture = capture or CudaCapture()
        self._buckets = decode_buckets(max_rows)
        max_blocks = -(-max_context_tokens // arena.kv.block_tokens)
        self._static = static_inputs(
            self._buckets[-1], max_blocks, arena.kv.block_tokens, arena.pool.device
        )
        self._replays: dict[tuple[int, bool], Replay] = {}

    @property
    def max_rows(self) -> int:
        return self._buckets[-1]

    def can_run(self, inputs: ForwardInputs) -> bool:
        """Whether the step is decode alone, and small enough."""
        return inputs.attention.max_query_len == 1 and inputs.attention.num_rows <= self.max_rows

    @torch.inference_mode()
    def capture_all(self) -> None:
        """Capture every bucket, with and without adapters, the largest first: the smaller ones
        then live in its memory."""
        for bucket in reversed(self._buckets):
            for adapted in (True, False):
                self._replays[bucket, adapted] = self._record(bucket, adapted)

    @torch.inference_mode()
    def forward(self, inputs: ForwardInputs) -> Tensor:
        """`Decoder.forward` of inputs for which `can_run`. The result is overwritten by a later
        call."""
        num_rows = inputs.attention.num_rows
        bucket = next(size for size in self._buckets if size >= num_rows)
        key = (bucket, inputs.segments.any_adapter)
        if key not in self._replays:
            self._replays[key] = self._record(*key)
        copy_inputs(self._static, inputs, bucket)
        self._replays[key].run()
        return self._replays[key].hidden[:num_rows]

    @torch.inference_mode()
    def next_logits(self, inputs: ForwardInputs, rows: Tensor) -> Tensor:  # [num_samples, vocab]
        """`forward`, and the LM head for `rows` outside of the graph."""
        return self._decoder.logits(self.forward(inputs), rows)

    def _record(self, bucket: int, adapted: bool) -> Replay:
        # While nothing is said to be there, a captured step reads and writes no page.
        self._static.slots.fill_(NOWHERE)
        for tiles in (self._static.attention.decode, self._static.segments.tiles):
            assert tiles is not None
            tiles.count.zero_()
        inputs = first_rows(self._static, bucket, adapted)
        return Replay(*self._capture(lambda: self._decoder.forward(inputs, self._arena)))


def static_inputs(
    rows: int, max_blocks: int, block_tokens: int, device: torch.device
) -> ForwardInputs:
    """A decode step's tensors for `rows` sequences, each with one row and up to `max_blocks`
    blocks. Nothing in them is meant yet."""

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def tiles(rows_per_tile: int, size: int = rows) -> RowTiles:
        return RowTiles(zeros(size), zeros(size), zeros(size), zeros(1), rows_per_tile)

    return ForwardInputs(
        token_ids=zeros(rows, dtype=torch.int64),
        positions=zeros(rows, dtype=torch.int64),
        slots=zeros(rows, dtype=torch.int64).fill_(NOWHERE),
        attention=AttentionLayout(
            query_start=torch.arange(rows + 1, dtype=torch.int32, device=device),
            context_len=zeros(rows),
            block_table=zeros(rows, max_blocks),
            max_query_len=1,
            max_context_len=max_blocks * block_tokens,
            num_rows=rows,
            decode=tiles(1),
            prefill=tiles(1, 0),
        ),
        segments=AdapterSegments(
            num_rows=rows,
            any_adapter=True,
            row_slot=zeros(rows).fill_(BASE_SLOT),
            tiles=tiles(ADAPTER_TILE_ROWS),
        ),
    )


ADAPTER_TILE_ROWS = 16  # what `build_segments` cuts up to LARGEST_BUCKET rows into


def first_rows(static: ForwardInputs, rows: int, adapted: bool) -> ForwardInputs:
    """The same memory, seen as a step of `rows` rows, on the base model alone unless `adapted`."""
    attention, segments = static.attention, static.segments
    assert attention.decode is not None
    assert segments.tiles is not None
    return ForwardInputs(
        token_ids=static.token_ids[:rows],
        positions=static.positions[:rows],
        slots=static.slots[:rows],
        attention=replace(
            attention,
            query_start=attention.query_start[: rows + 1],
            context_len=attention.context_len[:rows],
            block_table=attention.block_table[:rows],
            num_rows=rows,
            decode=_first_tiles(attention.decode, rows),
        ),
        segments=replace(
            segments,
            num_rows=rows,
            any_adapter=adapted,
            row_slot=segments.row_slot[:rows],
            tiles=_first_tiles(segments.tiles, rows),
        ),
    )


def _first_tiles(tiles: RowTiles, size: int) -> RowTiles:
    return replace(
        tiles, start=tiles.start[:size], length=tiles.length[:size], owner=tiles.owner[:size]
    )


def copy_inputs(static: ForwardInputs, inputs: ForwardInputs, bucket: int) -> None:
    """Write a decode step over the static tensors; its rows beyond, up to `bucket`, store no KV.

    Raises KernelInputError when the step's tiles do not fit.
    """
    rows, blocks = inputs.attention.block_table.shape
    static.token_ids[:rows].copy_(inputs.token_ids, non_blocking=True)
    static.positions[:rows].copy_(inputs.positions, non_blocking=True)
    static.slots[:rows].copy_(inputs.slots, non_blocking=True)
    static.slots[rows:bucket].fill_(NOWHERE)
    attention, new = static.attention, inputs.attention
    attention.context_len[:rows].copy_(new.context_len, non_blocking=True)
    attention.block_table[:rows, :blocks].copy_(new.block_table, non_blocking=True)
    for mine, theirs in (
        (attention.decode, new.decode),
        (static.segments.tiles, inputs.segments.tiles),
    ):
        assert mine is not None
        assert theirs is not None
        mine.copy_from(theirs)
