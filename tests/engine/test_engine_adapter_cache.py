"""Adapter slots: what is written where, who may be evicted, and forgetting."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from fake_loader import pack, tag
from tenora_engine.events import FinishEvent
from tenora_engine.memory.pool import IntegrityError


def test_every_granule_is_where_the_table_says() -> None:
    rig = Rig.build(make_config())
    ref = make_ref("x", rank=8)
    packed = pack(rig.config, ref)
    pages = rig.memory.allocator.try_allocate(packed.num_pages + 3, "adapter", "")
    assert pages is not None
    scattered = [pages[4], pages[1]]
    resident = rig.memory.adapters.install(packed, scattered, 1.0, 0.0)
    rig.apply_operations()
    table = rig.executor.memory.table
    flat = rig.executor.pool.view(-1)
    for row in range(8):
        offset = int(table.granule_offset[resident.slot, 0, row])
        assert offset == scattered[row // 5] * rig.config.page_elements + row % 5 * 2
        assert int(flat[offset]) == tag(ref.digest)
    assert bool((table.rank[resident.slot] == 8).all())
    assert torch.equal(table.b_offset[resident.slot], packed.b_offset)


def test_rows_that_no_module_has_point_nowhere() -> None:
    rig = Rig.build(make_config())
    packed = pack(rig.config, make_ref("x", rank=4))
    absent = packed.granule_page.clone()
    absent[0, 3] = -1
    pages = rig.memory.allocator.try_allocate(1, "adapter", "")
    assert pages is not None
    packed = replace(packed, granule_page=absent)
    resident = rig.memory.adapters.install(packed, pages, 1.0, 0.0)
    rig.apply_operations()
    assert int(rig.executor.memory.table.granule_offset[resident.slot, 0, 3]) == 0


def test_what_was_packed_for_another_engine_is_refused() -> None:
    rig = Rig.build(make_config())
    other = pack(make_config(block_tokens=8), make_ref("x"))
    with pytest.raises(ValueError, match="was packed for pages of 64"):
        rig.memory.adapters.check_fits(other)
    with pytest.raises(ValueError, match="rank 9 exceeds 8"):
        rig.memory.adapters.check_fits(pack(rig.config, make_ref("x", rank=9)))


def test_a_used_adapter_cannot_be_evicted_and_an_unused_slot_is_reused() -> None:
    rig = Rig.build(make_config(max_adapters=1))
    first = make_request("a", [1, 2], adapter=make_ref("a"), ignore_eos=True, max_tokens=4)
    second = make_request("b", [1, 2], adapter=make_ref("b"), ignore_eos=True, max_tokens=4)
    rig.engine.submit(first)
    rig.engine.submit(second)
    rig.engine.step()
    resident = rig.memory.adapters.get("sha256:a")
    assert resident is not None
    with pytest.raises(IntegrityError, match="in use"):
        rig.memory.adapters.evict(resident)
    assert rig.memory.adapters.get("sha256:b") is None
    finished = run_until_idle(rig)
    assert sorted(event.request_id for event in finished) == ["a", "b"]
    assert {event.reason for event in finished} == {"length"}
    assert rig.memory.adapters.get("sha256:a") is None
    assert rig.memory.adapters.get("sha256:b") is not None
    assert rig.engine.stats().counters["adapter_evictions"] == 1


def test_forget_waits_for_those_who_use_it() -> None:
    rig = Rig.build(make_config())
    ref, tenant = make_ref("x"), make_tenant("t")
    for name in ("running", "waiting"):
        rig.engine.submit(
            make_request(name, [1] * 9, tenant=tenant, adapter=ref, ignore_eos=True, max_tokens=3)
        )
    rig.engine.step()
    rig.engine.forget_adapter(tenant.namespace, ref.digest)
    assert rig.loader.forgotten == []
    finished = run_until_idle(rig)
    assert {event.reason for event in finished} == {"length"}
    assert rig.loader.forgotten == [ref.digest]
    pool = rig.engine.stats().pool
    assert pool.free_pages == pool.total_pages
    assert rig.engine.residency(ref) == "host"


def test_forget_on_the_device_only_keeps_the_copies() -> None:
    rig = Rig.build(make_config())
    ref, tenant = make_ref("x"), make_tenant("t")
    rig.engine.submit(make_request("a", [1] * 9, tenant=tenant, adapter=ref))
    run_until_idle(rig)
    assert rig.engine.residency(ref) == "device"
    rig.engine.forget_adapter(tenant.namespace, ref.digest, device_only=True)
    assert rig.loader.forgotten == []
    assert rig.engine.residency(ref) == "host"
    pool = rig.engine.stats().pool
    assert pool.free_pages == pool.total_pages
    rig.engine.forget_adapter(tenant.namespace, ref.digest, device_only=True)
    rig.engine.forget_adapter(tenant.namespace, ref.digest)
    assert rig.loader.forgotten == [ref.digest]


def test_forget_of_one_namespace_leaves_the_cache_of_another() -> None:
    rig = Rig.build(make_config())
    ref = make_ref("x")
    for name in ("a", "b"):
        rig.engine.submit(make_request(name, [1] * 9, tenant=make_tenant(name), adapter=ref))
    run_until_idle(rig)
    rig.engine.forget_adapter("ns-a", ref.digest)
    tenants = rig.engine.stats().pool.tenants
    assert "ns-a" not in tenants
    assert tenants["ns-b"]["cached_kv"] >= 2
    rig.engine.check_integrity()


def test_stats_show_what_is_on_its_way() -> None:
    rig = Rig.build(make_config(), instant=False)
    ref = make_ref("x", rank=3)
    assert rig.engine.residency(ref) == "store"
    rig.engine.submit(make_request("a", [1], adapter=ref))
    rig.engine.step()
    (loading,) = rig.engine.stats().adapters
    assert (loading.digest, loading.state, loading.rank) == (ref.digest, "loading", 3)
    rig.loader.finish(ref.digest)
    rig.engine.step()
    (resident,) = rig.engine.stats().adapters
    assert (resident.state, resident.pages, resident.references) == ("resident", 1, 1)
    assert rig.engine.residency(ref) == "device"


def run_until_idle(rig: Rig) -> list[FinishEvent]:
    events: list[FinishEvent] = []
    while rig.engine.has_work:
        events += [e for e in rig.engine.step() if isinstance(e, FinishEvent)]
        rig.engine.check_integrity()
    return events
