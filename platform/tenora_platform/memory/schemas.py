"""The operator's view of memory over HTTP: the arena page by page, what goes next, and adapters by
where they are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from tenora_platform.schemas import IdItem, ListPage

Tier = Literal["device", "loading", "host", "shared", "store"]


class PageOwner(BaseModel):
    """Whose pages are: `tenant_id` null and `tenant` the names of all in it for a trust group, both
    null for who is not known any more. `adapter` is `name@version`, with which the KV was computed
    or which lies in the pages; null for the base model."""

    namespace: str
    tenant_id: str | None
    tenant: str | None
    adapter: str | None
    digest: str | None


class PageCounts(BaseModel):
    """They add up to the arena's pages."""

    free: int
    live_kv: int
    cached_kv: int
    adapter: int


class TenantMemory(BaseModel):
    """What a tenant (or trust group) holds against its share: nobody takes of the first
    `min_pages`, and beyond `max_pages` it lives on what nobody else needs; null without a share.
    `evictable` and `pinned` are of its share's pages, null without."""

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
    """The `order`th thing that would be given up: a run of cached KV, its last pages first, or an
    adapter. `again_ms` is what it would take to have the last page, or the adapter, back; null if
    nothing could bring it. `reason` says it in words."""

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
    """An adapter version and where it is. `id` is the version's. On the device it takes `pages`,
    and `references` live sequences hold it. `pin_state` says how far a pin has come, `pin_reason`
    why it has not. `last_used_at` (unix seconds) null: nobody has asked for it here."""

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
    """The arena at one moment.

    `runs` has four numbers for each run of equal neighbours, in page order: how many pages; their
    kind (0 free, 1 live KV, 2 cached KV, 3 adapter); their owner, an index into `owners` (0:
    nobody); of cached KV the unix second since which nobody uses it, else 0. `departures` are what
    would go next if `departures_for` (null: any tenant without a share) needed one page of KV after
    another once no page is free.
    """

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
    """Samples of the last hour, oldest first, `every_s` apart while a worker runs. `pages` is the
    arena at the moment that was asked for."""

    object: Literal["list"] = "list"
    every_s: int
    data: list[PageSample]
    pages: EnginePages | None = None


class AdapterPin(BaseModel):
    """`pinnable_pages` is how many more could be pinned now."""

    object: Literal["adapter.pin"] = "adapter.pin"
    id: str
    pinned: bool
    state: Literal["pinned", "loading"] | None
    pages: int
    pinned_pages: int
    pinnable_pages: int


class AdapterEviction(BaseModel):
    """`pages` that are free since; 0: it was not on the device."""

    object: Literal["adapter.eviction"] = "adapter.eviction"
    id: str
    pages: Annotated[int, Field(ge=0)]
