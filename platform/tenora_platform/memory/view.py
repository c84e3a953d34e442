"""The engine's arena with names to it, as HTTP shows it. Arithmetic and names; it asks nobody."""

from __future__ import annotations

from collections.abc import Sequence

from tenora_engine.events import AdapterResidency
from tenora_engine.pages import ArenaAdapter, ArenaPages, PartitionPages, PinState
from tenora_engine.pages import Departure as EngineDeparture
from tenora_platform.memory.names import HOST_SHOWN_MAX, Names
from tenora_platform.memory.schemas import (
    AdapterPlace,
    Departure,
    EnginePages,
    PageCounts,
    PageOwner,
    TenantMemory,
    Tier,
)
from tenora_platform.memory.words import per_mib_ms, reason

_KINDS = ("free", "live_kv", "cached_kv", "adapter")


def engine_pages(pages: ArenaPages, names: Names) -> EnginePages:
    return EnginePages(
        at=pages.at_s,
        policy=pages.policy,
        total_pages=pages.total_pages,
        page_bytes=pages.page_bytes,
        counts=counts(pages),
        runs=pages.runs,
        owners=owners(pages, names),
        tenants=tenants(pages, names),
        departures=departures(pages, names),
        departures_for=names.tenant(pages.departures_for)[0],
        adapters=places(pages, names),
        slots=pages.slots,
        pinned_pages=pages.pinned_pages,
        pinnable_pages=pages.pinnable_pages,
    )


def counts(pages: ArenaPages) -> PageCounts:
    return PageCounts(**dict(zip(_KINDS, pages.kinds, strict=True)))


def owners(pages: ArenaPages, names: Names) -> list[PageOwner]:
    found = []
    for owner in pages.owners:
        tenant_id, tenant = names.tenant(owner.namespace)
        has_adapter = owner.digest not in ("", "BASE")
        found.append(
            PageOwner(
                namespace=owner.namespace,
                tenant_id=tenant_id,
                tenant=tenant,
                adapter=_label(names, owner.digest, owner.namespace) if has_adapter else None,
                digest=owner.digest if has_adapter else None,
            )
        )
    return found


def tenants(pages: ArenaPages, names: Names) -> list[TenantMemory]:
    """All who hold a page or have a share, by name."""
    held: dict[str, list[int]] = {}
    runs = pages.runs
    for at in range(0, len(runs), 4):
        count, kind, owner, _ = runs[at : at + 4]
        if kind:
            kinds = held.setdefault(pages.owners[owner].namespace, [0, 0, 0, 0])
            kinds[kind] += count
    shares = {each.namespace: each for each in pages.partitions if each.namespace is not None}
    found = [
        _tenant(name, held.get(name, [0, 0, 0, 0]), shares.get(name), names)
        for name in held.keys() | shares.keys()
    ]
    return sorted(found, key=lambda each: (each.tenant is None, each.tenant or "", each.namespace))


def _tenant(
    namespace: str, kinds: Sequence[int], share: PartitionPages | None, names: Names
) -> TenantMemory:
    tenant_id, tenant = names.tenant(namespace)
    return TenantMemory(
        namespace=namespace,
        tenant_id=tenant_id,
        tenant=tenant,
        live_kv=kinds[1],
        cached_kv=kinds[2],
        adapter=kinds[3],
        min_pages=None if share is None else share.min_pages,
        max_pages=None if share is None else share.max_pages,
        evictable=None if share is None else share.evictable,
        pinned=None if share is None else share.pinned,
    )


def departures(pages: ArenaPages, names: Names) -> list[Departure]:
    return [_departure(order, each, pages, names) for order, each in enumerate(pages.departures, 1)]


def _departure(order: int, each: EngineDeparture, pages: ArenaPages, names: Names) -> Departure:
    tenant_id, tenant = names.tenant(each.namespace)
    is_base = each.digest == "BASE"
    return Departure(
        order=order,
        kind="cached_kv" if each.kind == "kv" else "adapter",
        tenant_id=tenant_id,
        tenant=tenant,
        adapter=None if is_base else _label(names, each.digest, each.namespace),
        pages=each.pages,
        again_ms=None if each.again_s is None else each.again_s * 1000,
        again_by=each.again_by,
        again_ms_per_mib=per_mib_ms(each),
        last_used_at=each.last_used_s,
        visits=each.visits,
        wanted=each.wanted,
        taken_by=each.taken_by,
        reason=reason(each, pages.policy, pages.at_s, tenant),
    )


def places(pages: ArenaPages, names: Names) -> list[AdapterPlace]:
    """On the device and on the way there, pinned ones that are not there yet, then host memory's
    most recently used."""
    pins = {each.digest: each for each in pages.pins}
    found = [device_place(each, names, pins.get(each.digest)) for each in pages.adapters]
    here = {each.digest for each in pages.adapters}
    for pin in pages.pins:
        if pin.digest not in here:
            found.append(_waiting_place(pin, names))
            here.add(pin.digest)
    host = [each for each in pages.host if each.digest not in here]
    host.sort(key=lambda each: each.last_used_s, reverse=True)
    return found + [host_place(each, names) for each in host[:HOST_SHOWN_MAX]]


def device_place(adapter: ArenaAdapter, names: Names, pin: PinState | None) -> AdapterPlace:
    return _place(
        names,
        adapter.digest,
        adapter.namespace,
        "loading" if adapter.arriving else "device",
        rank=adapter.rank,
        pages=adapter.num_pages,
        references=adapter.references,
        last_used_at=adapter.last_used_s,
        pinned=adapter.pinned,
        pin=pin,
    )


def host_place(adapter: AdapterResidency, names: Names) -> AdapterPlace:
    used_s = adapter.last_used_s or None
    return _place(
        names, adapter.digest, "", "host", rank=adapter.rank, pages=adapter.pages,
        last_used_at=used_s,
    )  # fmt: skip


def _waiting_place(pin: PinState, names: Names) -> AdapterPlace:
    tier: Tier = "loading" if pin.state == "loading" else "store"
    return _place(names, pin.digest, pin.namespace, tier, pin=pin)


def _place(
    names: Names,
    digest: str,
    namespace: str,
    tier: Tier,
    *,
    rank: int = 0,
    pages: int = 0,
    references: int = 0,
    last_used_at: float | None = None,
    pinned: bool = False,
    pin: PinState | None = None,
) -> AdapterPlace:
    version = names.version(digest, namespace)
    return AdapterPlace(
        id=digest if version is None else version.id,
        adapter_id=None if version is None else version.adapter_id,
        name=None if version is None else version.name,
        version=None if version is None else version.number,
        tenant_id=None if version is None else version.tenant_id,
        tenant=None if version is None else names.tenant_name(version.tenant_id),
        digest=digest,
        rank=rank,
        tier=tier,
        pages=pages,
        references=references,
        last_used_at=last_used_at,
        pinned=pinned,
        pin_state=None if pin is None else pin.state,
        pin_reason=None if pin is None else pin.reason,
    )


def _label(names: Names, digest: str, namespace: str) -> str:
    version = names.version(digest, namespace)
    return digest.removeprefix("sha256:")[:12] if version is None else version.label
