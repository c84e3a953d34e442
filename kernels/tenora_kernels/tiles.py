"""Rows and contexts cut into the pieces that programs of a GPU take, on the host, for launch grids
that may be larger: a count is read on the device, so a captured graph runs with new contents.

Each kind is one tensor, whose rows begin at multiples of 16 bytes: Triton compiles a kernel anew
for a pointer that is aligned otherwise than the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenora_kernels.checks import KernelInputError

Int64s = npt.NDArray[np.int64]
Move = Callable[[Tensor], Tensor]

CONTEXT_STEP = 128
"""Parts of a context begin at multiples of it: no part ends within what a kernel reads at once."""

PART_TOKENS_MIN = CONTEXT_STEP
"""Contexts are not cut finer than this. One row of 1,024 tokens is then read by 64 programs where
there are 8 KV heads."""


@dataclass(frozen=True)
class RowTiles:
    """Runs of rows cut into tiles of at most `rows_per_tile`. Only the first `count[0]` entries are
    meant."""

    packed: Tensor  # [4, room] int32: start, length, owner; then the count
    rows_per_tile: int

    @property
    def room(self) -> int:
        """How many there may be; nothing is launched, and no count kept, where that is 0."""
        return self.packed.shape[1]

    @cached_property
    def start(self) -> Tensor:
        """[room] int32, the tile's first row."""
        return self.packed[0]

    @cached_property
    def length(self) -> Tensor:
        """[room] int32, its rows, 1..rows_per_tile."""
        return self.packed[1]

    @cached_property
    def owner(self) -> Tensor:
        """[room] int32, the adapter slot or the sequence the rows belong to."""
        return self.packed[2]

    @cached_property
    def count(self) -> Tensor:
        """[1] int32."""
        return self.packed[3, :1]

    def moved(self, move: Move) -> RowTiles:
        return replace(self, packed=move(self.packed))


@dataclass(frozen=True)
class ContextParts:
    """The contexts of sequences with one query row, cut into parts of about the same size, those of
    a sequence next to each other. Only the first `count[0]` entries are meant."""

    packed: Tensor  # [5, room] int32: sequence, start, stop, siblings; then the count

    @property
    def room(self) -> int:
        """How many there may be; nothing is launched, and no count kept, where that is 0."""
        return self.packed.shape[1]

    @cached_property
    def sequence(self) -> Tensor:
        """[room] int32."""
        return self.packed[0]

    @cached_property
    def start(self) -> Tensor:
        """[room] int32, the part's first token of context."""
        return self.packed[1]

    @cached_property
    def stop(self) -> Tensor:
        """[room] int32, the token behind its last."""
        return self.packed[2]

    @cached_property
    def siblings(self) -> Tensor:
        """[room] int32, the parts of the same sequence, itself among them."""
        return self.packed[3]

    @cached_property
    def count(self) -> Tensor:
        """[1] int32."""
        return self.packed[4, :1]

    def moved(self, move: Move) -> ContextParts:
        return ContextParts(move(self.packed))


def cut_into_tiles(
    starts: Int64s,  # [num_runs]
    lengths: Int64s,  # [num_runs], each at least 1
    owners: Int64s,  # [num_runs]
    rows_per_tile: int,
    max_tiles: int | None = None,
) -> RowTiles:
    """Cut each run into tiles, the last one of a run shorter where it does not divide. None makes
    room for just those there are.

    Raises KernelInputError when they are more than `max_tiles`.
    """
    per_run = -(-lengths // rows_per_tile)
    total = int(per_run.sum())
    if max_tiles is not None and total > max_tiles:
        raise KernelInputError(f"{total} tiles, at most {max_tiles} were allowed for")
    packed = _room(4, total if max_tiles is None else max_tiles)
    within = _places(per_run) * rows_per_tile
    packed[0, :total] = starts.repeat(per_run) + within
    packed[1, :total] = np.minimum(lengths.repeat(per_run) - within, rows_per_tile)
    packed[2, :total] = owners.repeat(per_run)
    packed[3, :1] = total
    return RowTiles(torch.from_numpy(packed), rows_per_tile)


def cut_contexts(
    sequences: Int64s,  # [num_rows]
    contexts: Int64s,  # [num_rows], 0 where a row only fills a bucket: it gets no part
    parts: int,
    room: int | None = None,
) -> ContextParts:
    """Cut contexts into about `parts` parts in all, however they are spread over the rows, but a
    part for each row at least, and none of less than PART_TOKENS_MIN: `max_parts` of them at most.
    None makes room for just those there are."""
    total = int(contexts.sum())
    size_max = max(PART_TOKENS_MIN, _rounded_up(-(-total // parts)))
    per_row = -(-contexts // size_max)
    size = -(-contexts // np.maximum(per_row, 1))
    size += -size % CONTEXT_STEP
    count = int(per_row.sum())
    packed = _room(5, count if room is None else room)
    start = _places(per_row) * size.repeat(per_row)
    packed[0, :count] = sequences.repeat(per_row)
    packed[1, :count] = start
    packed[2, :count] = np.minimum(start + size.repeat(per_row), contexts.repeat(per_row))
    packed[3, :count] = per_row.repeat(per_row)
    packed[4, :1] = count
    return ContextParts(torch.from_numpy(packed))


def max_parts(num_rows: int, parts: int) -> int:
    """The most parts that `cut_contexts` makes of so many rows."""
    return num_rows + parts


def _places(per_run: Int64s) -> Int64s:
    """0, 1, 2... within each run."""
    return np.arange(per_run.sum()) - (per_run.cumsum() - per_run).repeat(per_run)


def _room(rows: int, columns: int) -> npt.NDArray[np.int32]:
    """Zeros whose rows are multiples of 16 bytes."""
    return np.zeros((rows, columns + -columns % 4), np.int32)


def _rounded_up(tokens: int) -> int:
    return tokens + -tokens % CONTEXT_STEP
