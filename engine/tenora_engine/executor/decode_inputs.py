"""The tensors of a step in which every sequence decodes, one token or its drafts too, on the CPU.
They are written in full in every step, over those of a step before where the shapes are the same:
the weights drive everything out of the caches between two steps, and then a tensor made or a numpy
call costs 20 to 50 us, a loop over a few Python objects less than one of them."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from tenora_engine.model.inputs import ForwardInputs
from tenora_engine.step import Rows
from tenora_kernels.segments import BASE_SLOT, AdapterSegments, AdapterTable, AttentionLayout

SHAPES_KEPT = 16


class DecodeInputs:
    """Writes the inputs of one decode step after another for one arena and one adapter table."""

    def __init__(self, block_tokens: int, table: AdapterTable) -> None:
        self._block_tokens = block_tokens
        self._table = table
        self._memories: dict[tuple[int, int, int], _Memory] = {}

    def write(
        self, rows: Rows
    ) -> tuple[ForwardInputs, Tensor]:  # inputs, [num_tokens] int64: all of them sample
        """One token of each sequence, and its drafts; the page of the last is the last of the row.
        Valid until the next call."""
        size, contexts, counts, pages = (
            self._block_tokens,
            rows.context_len,
            rows.query_len,
            rows.pages,
        )
        max_blocks = -(-max(contexts) // size)
        positions, slots = array("q"), array("q")
        starts, row_slot = array("i", [0]), array("i")
        padded, padding = array("i"), array("i", bytes(4 * max_blocks))
        first = 0
        for context, count, slot in zip(contexts, counts, rows.adapter_slot, strict=True):
            for position in range(context - count, context):
                positions.append(position)
                slots.append(pages[first + position // size] * size + position % size)
                row_slot.append(slot)
            end = first - (-context // size)
            padded += pages[first:end]
            padded += padding[end - first :]
            starts.append(len(positions))
            first = end

        memory = self._memory((len(rows), len(positions), max_blocks))
        memory.int64s[:] = array("q", rows.token_ids) + positions + slots
        memory.int32s[:] = starts + contexts + row_slot + padded
        inputs = ForwardInputs(
            token_ids=memory.token_ids,
            positions=memory.positions,
            slots=memory.slots,
            attention=AttentionLayout(
                query_start=memory.query_start,
                context_len=memory.context_len,
                block_table=memory.block_table,
                max_query_len=max(counts),
                max_context_len=max(contexts),
                num_rows=len(positions),
            ),
            segments=AdapterSegments(
                num_rows=len(positions),
                any_adapter=max(row_slot) != BASE_SLOT,
                row_slot=memory.row_slot,
                table=self._table,
            ),
        )
        return inputs, memory.rows

    def _memory(self, shape: tuple[int, int, int]) -> _Memory:
        """With drafts shapes take turns: the last ones are kept."""
        memory = self._memories.get(shape)
        if memory is None:
            if len(self._memories) == SHAPES_KEPT:
                self._memories.clear()
            memory = self._memories[shape] = _Memory(*shape)
        return memory


class _Memory:
    """Arrays, and the tensors that see the same memory; `rows` never changes."""

    def __init__(self, num_seqs: int, num_tokens: int, max_blocks: int) -> None:
        self.int64s = array("q", bytes(8 * 3 * num_tokens))
        self.int32s = array("i", bytes(4 * (1 + 2 * num_seqs + num_tokens + num_seqs * max_blocks)))
        rows = torch.frombuffer(self.int64s, dtype=torch.int64).view(3, num_tokens)
        self.token_ids, self.positions, self.slots = rows.unbind(0)
        of_sequences = torch.frombuffer(self.int32s, dtype=torch.int32)
        sizes = [num_seqs + 1, num_seqs, num_tokens, num_seqs * max_blocks]
        self.query_start, self.context_len, self.row_slot, table = torch.split(of_sequences, sizes)
        self.block_table = table.view(num_seqs, max_blocks)
        self.rows = torch.arange(num_tokens)
