"""What the page arena holds, as the engine tells it to a dashboard: whose each page is, what would
go next and why, and which adapters are kept on the device by the operator."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenora_engine.events import AdapterResidency
from tenora_engine.request import AdapterRef, Tenant

TakenBy = Literal[
    "anyone", "common", "own", "own_limit", "own_partition", "above_guarantee", "above_limit"
]
"""Why the one who needs a page may take this one: nobody has a share of the arena; neither of
the two has one, and they live on the rest together; it is its own;
it holds its maximum and takes from itself; strict isolation; the holder has more than is guaranteed
to it; the holder has more than its maximum."""


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A run of cached KV under one adapter, or an adapter, that would be given up. `value` is the
    policy's, the least goes first; of KV all but `pages` is about the last block."""

    kind: Literal["kv", "adapter"]
    namespace: str
    digest: str  # of the adapter, "BASE" without
    pages: list[int]  # in the order in which they go
    value: float
    again_s: float | None  # to have it back; None: nothing is known to bring it back
    again_by: Literal["compute", "copy"]
    again_bytes: int
    last_used_s: float
    heat: float  # recent uses, fading
    visits: int
    weight: float
    wanted: bool  # a waiting request needs it
    taken_by: TakenBy


class PageOwner(msgspec.Struct, frozen=True, array_like=True):
    """Of KV: the cache's namespace and the adapter it was computed with. Of an adapter's pages: the
    namespace it was loaded for, and the adapter."""

    namespace: str
    digest: str


class PartitionPages(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's share against what it holds. `namespace` None: all tenants without a share (then
    only `used` says something), or with policies that part the arena by kind, of all."""

    namespace: str | None
    min_pages: int  # nobody takes of these
    max_pages: int
    used: int
    evictable: int
    pinned: int
    hard: bool  # it can neither take nor be taken from


class ArenaAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter on the device, or on its way."""

    digest: str
    namespace: str
    rank: int
    num_pages: int
    references: int
    last_used_s: float
    pinned: bool
    arriving: bool


class Pin(msgspec.Struct, frozen=True):
    """An adapter that is to stay on the device, for a tenant."""

    tenant: Tenant
    adapter: AdapterRef


class PinState(msgspec.Struct, frozen=True):
    """What has become of a pin. "loading": it comes, as soon as there is room. "refused" and
    "failed" say why, and are tried again when the pins are told again."""

    namespace: str
    digest: str
    state: Literal["pinned", "loading", "refused", "failed"]
    num_pages: int = 0
    reason: str | None = None


class ArenaPages(msgspec.Struct, frozen=True, kw_only=True):
    """The arena at one moment, whole.

    `runs` has four numbers for each run of equal neighbours, in page order: how many pages, their
    kind as an index into `KINDS`, their owner (an index into `owners`; 0 is nobody), and of cached
    KV the unix second since which nobody uses it, else 0.
    """

    at_s: float
    policy: str
    total_pages: int
    page_bytes: int
    kinds: list[int]  # pages of each of KINDS
    runs: list[int]
    owners: list[PageOwner]
    partitions: list[PartitionPages]
    adapters: list[ArenaAdapter]
    host: list[AdapterResidency]
    departures: list[Departure]  # in order
    departures_for: str  # the namespace that would need the pages; "" is any without a share
    pins: list[PinState]
    pinned_pages: int
    pinnable_pages: int  # how many more
    slots: int  # adapters that fit at one time
    shared_prefix: str = ""  # of the Redis keys of packed adapters; empty without Redis


KINDS = ("free", "live", "cached", "adapter")
