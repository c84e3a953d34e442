"""From what a plan says of its rows to the tensors of one forward pass in the CUDA form, on the
host. Knows arrays only, so that it runs where there are no plans (`make gpu`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from tenora_engine.model.inputs import ForwardInputs
from tenora_kernels.segments import (
    BASE_SLOT,
    PREFILL_TILE_TOKENS,
    AdapterTable,
    build_segments,
    tiled_attention_layout,
)
from tenora_kernels.tiles import max_parts

if TYPE_CHECKING:
    from tenora_engine.step import Rows

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

NOWHERE = -1
"""The KV slot of a row that only fills its bucket."""


@dataclass(frozen=True)
class StepArrays:
    """`step.Rows` as arrays."""

    query: Int64s  # [num_seqs]
    context: Int64s  # [num_seqs]
    num_samples: Int64s  # [num_seqs]
    adapter_slot: Int32s  # [num_seqs]
    token_ids: Int32s  # [num_tokens]
    num_blocks: Int64s  # [num_seqs]
    pages: Int32s  # [sum of num_blocks]

    @classmethod
    def of(cls, rows: Rows, block_tokens: int) -> StepArrays:
        context = np.frombuffer(rows.context_len, np.int32).astype(np.int64)
        return cls(
            query=np.frombuffer(rows.query_len, np.int32).astype(np.int64),
            context=context,
            num_samples=np.frombuffer(rows.num_samples, np.int32).astype(np.int64),
            adapter_slot=np.frombuffer(rows.adapter_slot, np.int32),
            token_ids=np.frombuffer(rows.token_ids, np.int32),
            num_blocks=-(-context // block_tokens),
            pages=np.frombuffer(rows.pages, np.int32),
        )

    @classmethod
    def idle(cls) -> StepArrays:
        """Without a row, and one block, so that its place has an address."""
        ints, longs = np.empty(0, np.int32), np.empty(0, np.int64)
        return cls(longs, longs, longs, ints, ints, longs, np.zeros(1, np.int32))

    @classmethod
    def trial(cls, num_tokens: int, max_context: int, adapter_slot: int) -> StepArrays:
        """A step of so many tokens: one token of a sequence, and prompts."""
        prompts = num_tokens - 1
        lengths = [max_context] * (prompts // max_context) + [prompts % max_context]
        query = np.array([1, *filter(None, lengths)])
        return cls(
            query=query,
            context=query,
            num_samples=np.zeros(len(query), np.int64),
            adapter_slot=np.full(len(query), adapter_slot, np.int32),
            token_ids=np.zeros(num_tokens, np.int32),
            num_blocks=query,  # a page holds a token at least
            pages=np.zeros(num_tokens, np.int32),
        )

    def drafts_in_rows(self, given: Iterable[int], block_tokens: int) -> StepArrays:
        """With a row for each draft that is to be verified, behind that of its sequence: each is a
        decode row, of one token more of context. Samples whose token is `given` are a prompt's,
        which is left whole. O(rows + their pages)."""
        wanted = (self.num_samples == self.query) & (self.query > 1)
        if wanted.any():
            first = self.num_samples.cumsum() - self.num_samples
            wanted &= ~np.isin(first, list(given))
        if not wanted.any():
            return self
        of = np.arange(self.num_seqs).repeat(np.where(wanted, self.query, 1))
        is_split = wanted[of]
        after = np.flip(_places(np.flip(np.bincount(of))))  # rows of the same sequence behind it
        context = self.context[of] - np.where(is_split, after, 0)
        num_blocks = -(-context // block_tokens)
        first_page = self.num_blocks.cumsum() - self.num_blocks
        return StepArrays(
            query=np.where(is_split, 1, self.query[of]),
            context=context,
            num_samples=np.where(is_split, 1, self.num_samples[of]),
            adapter_slot=self.adapter_slot[of],
            token_ids=self.token_ids,
            num_blocks=num_blocks,
            pages=self.pages[first_page[of].repeat(num_blocks) + _places(num_blocks)],
        )

    @property
    def num_seqs(self) -> int:
        return len(self.query)

    @property
    def is_decode(self) -> bool:
        """Whether each row runs one token."""
        return len(self.token_ids) == self.num_seqs

    def sampled(self) -> Int64s:  # [num_samples], the tokens' rows that sample
        first = self.query.cumsum() - self.num_samples.cumsum()
        rows: Int64s = first.repeat(self.num_samples) + np.arange(self.num_samples.sum())
        return rows

    def split(self, num_rows: int) -> Iterator[StepArrays]:
        """A step of decode in parts of at most so many rows."""
        if self.num_seqs <= num_rows:
            yield self
            return
        pages_before = np.concatenate([[0], self.num_blocks.cumsum()])
        for first in range(0, self.num_seqs, num_rows):
            rows = slice(first, min(first + num_rows, self.num_seqs))
            yield StepArrays(
                self.query[rows],
                self.context[rows],
                self.num_samples[rows],
                self.adapter_slot[rows],
                self.token_ids[rows],
                self.num_blocks[rows],
                self.pages[pages_before[rows.start] : pages_before[rows.stop]],
            )

    def filled_up(self, bucket: Bucket) -> StepArrays:
        """With sequences behind it that have no context, and so do nothing: in a step of decode of
        a token each, else of none, and tokens that are nobody's."""
        rows = bucket.seqs - self.num_seqs
        return StepArrays(
            query=_with(self.query, rows, int(bucket.is_decode)),
            context=_with(self.context, rows, 0),
            num_samples=self.num_samples,
            adapter_slot=_with(self.adapter_slot, rows, BASE_SLOT),
            token_ids=_with(self.token_ids, bucket.tokens - len(self.token_ids), 0),
            num_blocks=_with(self.num_blocks, rows, 0),
            pages=self.pages,
        )


@dataclass(frozen=True, order=True)
class Bucket:
    """Steps whose tensors have the same sizes, but for the blocks: of up to so many tokens of up to
    so many sequences. In a step of decode they are as many."""

    tokens: int
    seqs: int
    is_decode: bool


class CudaInputs:
    """Builds inputs for one adapter table; `parts` is what the contexts of decode rows are cut
    into, see `cut_contexts`. `fixed_tile`: a row has the same bits whatever the step has besides
    it, see `tiled_attention_layout`."""

    def __init__(
        self,
        block_tokens: int,
        table: AdapterTable,
        parts: int,
        fixed_tile: int | None = None,
    ) -> None:
        self.block_tokens = block_tokens
        self._table = table
        self._parts = parts if fixed_tile is None else 1
        self._fixed_tile = fixed_tile

    def build(self, step: StepArrays) -> ForwardInputs:
        """Of any step, in tensors of just its size."""
        return self._build(step, None)

    def build_in(self, step: StepArrays, bucket: Bucket) -> ForwardInputs:
        """In tensors that have the same sizes for all steps of the bucket, but for the blocks."""
        return self._build(step.filled_up(bucket), bucket)

    def num_bytes(self, num_seqs: int, num_tokens: int, max_blocks: int) -> int:
        """At least what the inputs of so many sequences take, and what comes with them but
        sampling's options."""
        of_tokens = 3 * 8 + 4 + 2 * 4 * 4  # ids, positions, slots; adapter slot; tiles of each kind
        of_sequences = 4 * 4 + 5 * 4 + 8 + 4 * max_blocks
        rows = max(num_seqs, num_tokens)
        return rows * of_tokens + num_seqs * of_sequences + self._parts * 5 * 4 + _SLACK

    def _build(self, step: StepArrays, bucket: Bucket | None) -> ForwardInputs:
        ends, num_tokens = step.query.cumsum(), len(step.token_ids)
        positions = np.zeros(num_tokens, np.int64)
        owned = int(ends[-1])
        positions[:owned] = np.arange(owned) + (step.context - ends).repeat(step.query)
        positions = positions.clip(min=0)
        real = int(step.query[step.context > 0].sum())
        first_block = (step.num_blocks.cumsum() - step.num_blocks).repeat(step.query)[:real]
        block, offset = np.divmod(positions[:real], self.block_tokens)
        slots = np.full(num_tokens, NOWHERE)
        slots[:real] = step.pages[first_block + block]
        slots[:real] *= self.block_tokens
        slots[:real] += offset
        row_slot = np.full(num_tokens, BASE_SLOT, np.int32)
        row_slot[:owned] = step.adapter_slot.repeat(step.query)
        layout = tiled_attention_layout(
            step.query,
            step.context,
            step.pages,
            step.num_blocks,
            parts=self._parts,
            room=None if bucket is None else max_parts(bucket.seqs, self._parts),
            tile_room=self._tile_room(bucket),
            fixed_tile=self._fixed_tile,
        )
        return ForwardInputs(
            token_ids=torch.from_numpy(step.token_ids.astype(np.int64)),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            attention=replace(layout, num_rows=num_tokens),
            segments=build_segments(
                torch.from_numpy(row_slot),
                self._table,
                max_segments=None if bucket is None else bucket.seqs,
                tiles=True,
                device=torch.device("cpu"),
                fixed_order=self._fixed_tile is not None,
            ),
        )

    def _tile_room(self, bucket: Bucket | None) -> int | None:
        """The most tiles of queries: one more a sequence than its tokens fill, none empty."""
        if bucket is None or bucket.is_decode:
            return None
        size = self._fixed_tile or PREFILL_TILE_TOKENS
        return min(bucket.tokens, bucket.tokens // size + bucket.seqs)


_SLACK = 1 << 16  # alignment; sampling's options as a rule


def _places(counts: Int64s) -> Int64s:
    """0, 1, 2... for each count."""
    return np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)


def _with(values: npt.NDArray[np.generic], count: int, value: int) -> npt.NDArray[Any]:
    return np.concatenate([values, np.full(count, value, values.dtype)])
