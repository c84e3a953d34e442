"""The operator's view of memory over HTTP: the arena page by page, what goes next, and adapters by
where they are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from tenora_platform.schemas import IdItem, ListPage

Tier = Literal["device", "loading", "host", "shared", "store"]


class PageOwner(BaseModel):
    """The owner of pages. For a trust group `tenant_id` is null and `tenant` lists the names of its
    tenants; both are null if the owner is no longer known. `adapter` is the `name@version` that
    computed the KV, or that is stored in the pages; null for the base model."""

    namespace: str
    tenant_id: str | None
    tenant: str | None
    adapter: str | None
    digest: str | None


class PageCounts(BaseModel):
    """The kinds add up to the pages of the arena."""

    free: int
    live_kv: int
    cached_kv: int
    adapter: int


class TenantMemory(BaseModel):
    """What a tenant (or trust group) holds against its share. Nobody can take its first
    `min_pages`; above `max_pages` it only keeps what nobody else needs; both null without a share.
    `evictable` and `pinned` count pages of its share; null without a share."""

    namespace: str
    tenant_id: str | None
    tenant: str | None
    live_kv: int
    cached_kv: int
    adapter: int
    min_pages: int | None
    max_pages: int | None
    evictable: int | None
    pinned: int | None


class Departure(BaseModel):
    """The `order`th candidate for eviction: a run of cached KV, its last pages first, or an
    adapter. `again_ms` is the time needed to bring back its last page, or the adapter; null if
    nothing could bring it back. `reason` explains it in words."""

    order: int
    kind: Literal["cached_kv", "adapter"]
    tenant_id: str | None
    tenant: str | None
    adapter: str | None
    pages: list[int]
    again_ms: float | None
    again_by: Literal["compute", "copy"]
    again_ms_per_mib: float | None
    last_used_at: float
    visits: int
    wanted: bool
    taken_by: Literal[
        "anyone", "common", "own", "own_limit", "own_partition", "above_guarantee", "above_limit"
    ]
    reason: str


class AdapterPlace(IdItem):
    """An adapter version and where it is. `id` is the version's. On the device it uses `pages`, and
    `references` running sequences use it. `pin_state` is the progress of a pin, `pin_reason` why it
    has failed. `last_used_at` (Unix time) is null if nobody has requested it here."""

    adapter_id: str | None
    name: str | None
    version: int | None
    tenant_id: str | None
    tenant: str | None
    digest: str
    rank: int
    tier: Tier
    pages: int
    references: int
    last_used_at: float | None
    pinned: bool
    pin_state: Literal["pinned", "loading", "refused", "failed"] | None = None
    pin_reason: str | None = None


class AdapterPlacePage(ListPage[AdapterPlace]):
    """By time of upload, newest first."""


class EnginePages(BaseModel):
    """The arena at one moment. `runs` has four numbers for each run of equal neighbouring pages, in
    page order: the number of pages; their kind (0 free, 1 live KV, 2 cached KV, 3 adapter); their
    owner, an index into `owners` (0: nobody); and for cached KV the Unix second since which nobody
    has used it, else 0. `departures` lists what would be evicted next, once no page is free, if
    `departures_for` (null: any tenant without a share) needed one page of KV after another."""

    object: Literal["engine.pages"] = "engine.pages"
    at: float
    policy: str
    total_pages: int
    page_bytes: int
    counts: PageCounts
    runs: list[int]
    owners: list[PageOwner]
    tenants: list[TenantMemory]
    departures: list[Departure]
    departures_for: str | None
    adapters: list[AdapterPlace]
    slots: int
    pinned_pages: int
    pinnable_pages: int


class PageSample(PageCounts):
    at: float


class PageHistory(BaseModel):
    """Samples of the last hour, oldest first, `every_s` seconds apart while a worker runs. `pages`
    is the arena at the requested time."""

    object: Literal["list"] = "list"
    every_s: int
    data: list[PageSample]
    pages: EnginePages | None = None


class AdapterPin(BaseModel):
    """`pinnable_pages` is how many more pages can be pinned now."""

    object: Literal["adapter.pin"] = "adapter.pin"
    id: str
    pinned: bool
    state: Literal["pinned", "loading"] | None
    pages: int
    pinned_pages: int
    pinnable_pages: int


class AdapterEviction(BaseModel):
    """`pages` is the number of pages freed; 0 if the version was not on the device."""

    object: Literal["adapter.eviction"] = "adapter.eviction"
    id: str
    pages: Annotated[int, Field(ge=0)]
