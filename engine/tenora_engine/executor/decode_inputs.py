"""The tensors of a step in which every sequence decodes one token, on the CPU. They are written in
full in every step, over those of the step before where the shapes are the same: the weights drive
everything out of the caches between two steps, and then a tensor made or a numpy call costs 20 to
50 us, a loop over a few Python objects less than one of them."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from tenora_engine.model.inputs import ForwardInputs
from tenora_engine.step import Rows
from tenora_kernels.segments import BASE_SLOT, AdapterSegments, AdapterTable, AttentionLayout


class DecodeInputs:
    """Writes the inputs of one decode step after another for one arena and one adapter table."""

    def __init__(self, block_tokens: int, table: AdapterTable) -> None:
        self._block_tokens = block_tokens
        self._table = table
        self._memory = _Memory(1, 1)

    def write(
        self, rows: Rows
    ) -> tuple[ForwardInputs, Tensor]:  # inputs, [num_seqs] int64: the rows, all of which sample
        """One token of each sequence; its page is the last of the row. Valid until the next
        call."""
        size, count = self._block_tokens, len(rows)
        contexts, pages = rows.context_len, rows.pages
        longest = max(contexts)
        max_blocks = -(-longest // size)
        positions, slots = array("q"), array("q")
        padded, padding = array("i"), array("i", bytes(4 * max_blocks))
        first = 0
        for context in contexts:
            end = first - (-context // size)
            positions.append(context - 1)
            slots.append(pages[end - 1] * size + (context - 1) % size)
            padded += pages[first:end]
            padded += padding[end - first :]
            first = end

        memory = self._memory
        if memory.shape != (count, max_blocks):
            memory = self._memory = _Memory(count, max_blocks)
        memory.int64s[:] = array("q", rows.token_ids) + positions + slots
        memory.int32s[:] = contexts + rows.adapter_slot + padded
        inputs = ForwardInputs(
            token_ids=memory.token_ids,
            positions=memory.positions,
            slots=memory.slots,
            attention=AttentionLayout(
                query_start=memory.query_start,
                context_len=memory.context_len,
                block_table=memory.block_table,
                max_query_len=1,
                max_context_len=longest,
                num_rows=count,
            ),
            segments=AdapterSegments(
                num_rows=count,
                any_adapter=max(rows.adapter_slot) != BASE_SLOT,
                row_slot=memory.row_slot,
                table=self._table,
            ),
        )
        return inputs, memory.rows


class _Memory:
    """Arrays, and the tensors that see the same memory; `rows` and `query_start` never change."""

    def __init__(self, num_seqs: int, max_blocks: int) -> None:
        self.shape = (num_seqs, max_blocks)
        self.int64s = array("q", bytes(8 * 3 * num_seqs))
        self.int32s = array("i", bytes(4 * (2 + max_blocks) * num_seqs))
        rows = torch.frombuffer(self.int64s, dtype=torch.int64).view(3, num_seqs)
        self.token_ids, self.positions, self.slots = rows.unbind(0)
        of_sequences = torch.frombuffer(self.int32s, dtype=torch.int32)
        self.context_len, self.row_slot = of_sequences[: 2 * num_seqs].view(2, num_seqs).unbind(0)
        self.block_table = of_sequences[2 * num_seqs :].view(num_seqs, max_blocks)
        self.rows = torch.arange(num_seqs)
        self.query_start = torch.arange(num_seqs + 1, dtype=torch.int32)
