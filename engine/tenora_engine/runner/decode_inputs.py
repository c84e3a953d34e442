"""The tensors of a step in which every sequence decodes one token, on the CPU. They are written in
full in every step, over those of the step before where the shapes are the same: the weights drive
everything out of the caches between two steps, and then a tensor made or a numpy call costs 20 to
50 us, a loop over a few Python objects less than one of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from tenora_engine.model.inputs import ForwardInputs
from tenora_engine.sequence import Sequence
from tenora_kernels.segments import BASE_SLOT, AdapterSegments, AdapterTable, AttentionLayout


class DecodeInputs:
    """Writes the inputs of one decode step after another for one arena and one adapter table."""

    def __init__(self, block_tokens: int, table: AdapterTable) -> None:
        self._block_tokens = block_tokens
        self._table = table
        self._memory = _Memory(1, 1)

    def write(
        self, sequences: Rows[Sequence]
    ) -> tuple[ForwardInputs, Tensor]:  # inputs, [num_seqs] int64: the rows, all of which sample
        """The next token of each sequence; its page is in the block table. Valid until the next
        call."""
        size = self._block_tokens
        token_ids, positions, slots, contexts, adapters = [], [], [], [], []
        for sequence in sequences:
            position = sequence.num_computed
            block, offset = divmod(position, size)
            token_ids.append(sequence.token_ids[position])
            positions.append(position)
            slots.append(sequence.block_table[block] * size + offset)
            contexts.append(position + 1)
            adapters.append(sequence.adapter_slot)
        longest = max(contexts)
        max_blocks = -(-longest // size)
        pages = array("i")
        padding = array("i", bytes(4 * max_blocks))
        for sequence, context in zip(sequences, contexts, strict=True):
            count = -(-context // size)
            pages += sequence.block_table[:count]
            pages += padding[count:]

        memory = self._memory
        if memory.shape != (len(sequences), max_blocks):
            memory = self._memory = _Memory(len(sequences), max_blocks)
        memory.int64s[:] = array("q", token_ids + positions + slots)
        memory.int32s[:] = array("i", contexts + adapters) + pages
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
                num_rows=len(sequences),
            ),
            segments=AdapterSegments(
                num_rows=len(sequences),
                any_adapter=max(adapters) != BASE_SLOT,
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
