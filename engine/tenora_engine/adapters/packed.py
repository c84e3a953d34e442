"""PackedAdapter: an adapter in the form every tier keeps, pages of granules plus their table.

See docs/decisions/0001-adapter-granules.md for the layout. Knows nothing of slots or page numbers
on a device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PackedAdapter:
    """One adapter cut into arena pages.

    Granule (layer l, rank row r) lies in page `granule_page[l, r]` at element
    `granule_start[l, r]`; both are -1 where no module of that layer has that rank row. It never
    straddles pages. Within it, module m's A row starts at `a_offset[l, m]` (in elements) and its
    B^T row at `b_offset[l, m]`, for r < `rank[l, m]`. In int8 each row has its float32 scale in the
    4 bytes before it (docs/decisions/0006-int8-adapter-pages.md).
    """

    digest: str
    layout_key: str  # model dims, page size and dtype it was packed for
    pages: Tensor  # [num_pages, page_elements], the model's dtype or int8, host memory
    granule_page: Tensor  # [layers, max_rank_used] int32
    granule_start: Tensor  # [layers, max_rank_used] int32
    rank: Tensor  # [layers, modules] int32
    a_offset: Tensor  # [layers, modules] int32
    b_offset: Tensor  # [layers, modules] int32
    scale: Tensor  # [layers, modules] float32

    @property
    def num_pages(self) -> int:
        return self.pages.shape[0]

    @property
    def max_rank(self) -> int:
        return self.granule_page.shape[1]
