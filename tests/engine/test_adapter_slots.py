"""Installing adapters: on a GPU one copy of one row, whatever the table's parts are."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine_fakes import make_config, make_ref
from fake_loader import pack
from tenora_engine.executor.adapter_slots import AdapterSlots, granule_offsets
from tenora_kernels.segments import AdapterTable

CONFIG = make_config(max_rank=32, max_adapters=4)
CPU = torch.device("cpu")


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's own
    """Counts what crosses from the host to a device that has no memory of its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        read = {each.device.type for each in args if isinstance(each, Tensor)}
        if isinstance(result, Tensor) and result.is_meta and "cpu" in read:
            self.count += 1
        return result


def parts(table: AdapterTable) -> dict[str, Tensor]:
    values = {field.name: getattr(table, field.name) for field in fields(table)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def test_rows_hold_what_single_tensors_hold() -> None:
    """Of adapters of several ranks, one after another in the same slots."""
    apart = AdapterSlots(CONFIG, CPU, in_rows=False)
    rows = AdapterSlots(CONFIG, CPU, in_rows=True)
    for turn, (slot, rank) in enumerate(((0, 8), (3, 32), (0, 2), (1, 16), (3, 1))):
        packed = pack(CONFIG, make_ref(f"{turn}", rank))
        pages = range(turn, turn + packed.num_pages)
        offsets = granule_offsets(packed, list(pages), CONFIG.packed_page_elements)
        for slots in (apart, rows):
            slots.write(slot, packed, offsets)
        if turn == 3:
            for slots in (apart, rows):
                slots.clear(0)
        for name, expected in parts(apart.table).items():
            assert torch.equal(parts(rows.table)[name], expected), name
    assert not rows.table.rank[0].any()


def test_all_parts_have_the_strides_of_one() -> None:
    """Kernels take two strides for the four tensors of modules."""
    table = AdapterSlots(CONFIG, CPU, in_rows=True).table
    of_modules = (table.rank, table.a_offset, table.b_offset, table.scale)
    assert len({part.stride() for part in of_modules}) == 1
    for part in parts(table).values():
        assert part.stride()[1:] == (part.shape[2], 1)
        assert part.storage_offset() * part.element_size() % 64 == 0


def test_an_adapter_is_one_copy() -> None:
    slots = AdapterSlots(CONFIG, torch.device("meta"), in_rows=True)
    packed = pack(CONFIG, make_ref("a", 8))
    offsets = granule_offsets(packed, list(range(packed.num_pages)), CONFIG.packed_page_elements)
    with Copies() as copies:
        slots.write(2, packed, offsets)
    assert copies.count == 1
