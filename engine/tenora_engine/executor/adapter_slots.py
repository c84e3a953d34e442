"""AdapterSlots: the adapter table and what is written into it as adapters come and go. It knows
slots and offsets, no owners."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import LORA_MODULES, ResolvedConfig
from tenora_engine.pinned import allocate_pinned
from tenora_kernels.segments import AdapterTable, common_alignment

_ALIGNMENT = 64  # bytes; Triton compiles a kernel anew for a pointer that is aligned otherwise


class AdapterSlots:
    """`max_adapters` slots, empty at first. On a GPU a slot is one row of bytes, there and in
    page-locked memory, so that an adapter is installed by one copy that nobody waits for."""

    def __init__(self, config: ResolvedConfig, device: torch.device, *, in_rows: bool) -> None:
        slots, layers = config.engine.max_adapters, config.model.num_layers
        modules = len(LORA_MODULES)
        fields = (
            ("granule_offset", config.engine.max_rank, torch.int64),
            ("rank", modules, torch.int32),
            ("a_offset", modules, torch.int32),
            ("b_offset", modules, torch.int32),
            ("scale", modules, torch.float32),
        )
        alignment = common_alignment(
            [
                config.packed_page_elements,
                *(size for shape in config.model.modules.values() for size in shape),
            ]
        )
        self._rows: tuple[Tensor, Tensor] | None = None  # [slots, bytes], on the host and there
        self._written: dict[int, torch.cuda.Event] = {}
        if not in_rows:
            made = {
                name: torch.zeros((slots, layers, last), dtype=dtype, device=device)
                for name, last, dtype in fields
            }
            self.table = self._host = AdapterTable(**made, alignment=alignment)
            return
        starts, end = [], 0
        for _, last, dtype in fields:
            starts.append(end)
            end += layers * last * dtype.itemsize
            end += -end % _ALIGNMENT
        host = torch.zeros((slots, end), dtype=torch.uint8)
        if device.type == "cuda":
            host = allocate_pinned((slots, end), torch.uint8).zero_()
        there = torch.zeros((slots, end), dtype=torch.uint8, device=device)

        def view(rows: Tensor) -> AdapterTable:
            parts = {
                name: rows[:, start : start + layers * last * dtype.itemsize]
                .view(dtype)
                .view(slots, layers, last)
                for (name, last, dtype), start in zip(fields, starts, strict=True)
            }
            return AdapterTable(**parts, alignment=alignment)

        self._rows = host, there
        self.table, self._host = view(there), view(host)

    @classmethod
    def allocate(cls, config: ResolvedConfig) -> AdapterSlots:
        """On the configured device."""
        device = torch.device(config.engine.device)
        return cls(config, device, in_rows=device.type == "cuda")

    def write(
        self,
        slot: int,
        packed: PackedAdapter,
        offsets: Tensor,  # [layers, packed.max_rank] int64
    ) -> None:
        """An adapter whose granules lie at these offsets of the arena is in the slot from the next
        step on."""
        if slot in self._written:  # what the row said before is still on its way, at the earliest
            self._written[slot].synchronize()
        table = self._host
        table.granule_offset[slot, :, : packed.max_rank] = offsets
        for target, source in (
            (table.a_offset, packed.a_offset),
            (table.b_offset, packed.b_offset),
            (table.scale, packed.scale),
            (table.rank, packed.rank),
        ):
            target[slot] = source
        if self._rows is None:
            return
        host, there = self._rows
        there[slot].copy_(host[slot], non_blocking=True)
        if there.is_cuda:
            self._written[slot] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._written[slot].record()

    def clear(self, slot: int) -> None:
        """No row computes with what the slot held."""
        self.table.rank[slot] = 0


def granule_offsets(
    packed: PackedAdapter,
    pages: Sequence[int],  # of the arena, [packed.num_pages]
    page_elements: int,
) -> Tensor:  # [layers, packed.max_rank] int64
    """Where each granule lies in the arena, 0 where there is none."""
    numbers = torch.tensor(pages, dtype=torch.int64)
    page = numbers[packed.granule_page.clamp(min=0).long()]
    return torch.where(packed.granule_page >= 0, page * page_elements + packed.granule_start, 0)
