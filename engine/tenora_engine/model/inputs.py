"""What one forward pass of the decoder reads beside the weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tenora_kernels.segments import AdapterSegments, AdapterTable, AttentionLayout, KVLayout
from tenora_kernels.tiles import Move


@dataclass(frozen=True)
class Arena:
    """The pages, and how to find KV and adapters in them."""

    pool: Tensor  # [num_pages, kv.page_elements], in the dtype of the KV
    flat: Tensor  # the same memory in the dtype of the adapters' pages, all elements
    kv: KVLayout
    table: AdapterTable


@dataclass(frozen=True)
class ForwardInputs:
    """One flat ragged batch: the rows of each sequence side by side, oldest first."""

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slots: Tensor  # [num_tokens] int64, page * block_tokens + offset, where the row's KV goes
    attention: AttentionLayout
    segments: AdapterSegments

    def moved(self, move: Move) -> ForwardInputs:
        """The CUDA form with all its tensors elsewhere, blocks last: of them there is any number,
        where all others are of the sizes that the numbers of rows and sequences give them."""
        return ForwardInputs(
            token_ids=move(self.token_ids),
            positions=move(self.positions),
            slots=move(self.slots),
            segments=self.segments.moved(move),
            attention=self.attention.moved(move),
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """Of the CUDA form all, in the order in which they are moved."""
        return (
            self.token_ids,
            self.positions,
            self.slots,
            *self.segments.tensors(),
            *self.attention.tensors(),
        )
