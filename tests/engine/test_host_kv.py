"""The host tier of KV: what goes there comes back where that takes less than computing it, beside
the steps, and to nobody else."""

from __future__ import annotations

import msgspec
import pytest

from engine_fakes import Rig, fix_step_time, make_config, make_ref, make_request, make_tenant
from tenora_engine.events import Event, FinishEvent
from tenora_engine.memory.kv_fetches import MAX_FETCHES, MAX_TENANT_FETCHES
from tenora_engine.memory.policies import make_policy
from tenora_engine.request import AdapterRef, Tenant
from tenora_engine.scheduling.intake import PERIOD_S

PREFIXES = [[number] * 32 for number in range(1, 20)]  # 8 blocks each
T0 = make_tenant("t0")


class World:
    """An arena of 14 pages, which holds one prefix, and a host for many; costs stay as they are at
    first, by which a fetch takes less than computing."""

    def __init__(
        self,
        *,
        num_pages: int = 14,
        host_pages: int = 200,
        instant: bool = False,
        policy: str = "joint",
        max_running: int = 8,
        max_step_tokens: int = 64,
        strict: bool = False,
    ) -> None:
        config = make_config(
            num_pages=num_pages,
            host_pages=host_pages,
            max_step_tokens=max_step_tokens,
            max_prefill_chunk=max_step_tokens,
            max_running=max_running,
            strict_isolation=strict,
        )
        self.rig = Rig.build(config, instant=instant, policy=make_policy(policy))
        self.rig.loader.instant = True
        fix_step_time(self.rig, 0.01)
        self.finished: dict[str, FinishEvent] = {}
        self.requests = 0

    def submit(
        self,
        prefix: list[int],
        tenant: Tenant = T0,
        adapter: AdapterRef | None = None,
        max_tokens: int = 1,
        salt: str = "",
    ) -> str:
        self.requests += 1
        name = f"r{self.requests}"
        tokens = [*prefix, 90 + self.requests % 7]
        request = make_request(
            name, tokens, tenant=tenant, adapter=adapter, max_tokens=max_tokens, ignore_eos=True
        )
        self.rig.engine.submit(msgspec.structs.replace(request, cache_salt=salt))
        return name

    def step(self) -> None:
        self.rig.now_s += 2 * PERIOD_S
        self._take(self.rig.engine.step())

    def run(self) -> None:
        while self.rig.engine.has_work or self.rig.copier.in_flight:
            for copy in list(self.rig.copier.in_flight):
                self.rig.copier.finish(copy)
            self.step()

    def serve(
        self,
        prefix: list[int],
        tenant: Tenant = T0,
        adapter: AdapterRef | None = None,
        salt: str = "",
    ) -> int:
        """Run one request; returns how many of its tokens were cached."""
        name = self.submit(prefix, tenant, adapter, salt=salt)
        self.run()
        return self.finished[name].usage.cached_tokens

    def count(self, name: str) -> float:
        return self.rig.engine.stats().counters[name]

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, FinishEvent):
                self.finished[event.request_id] = event
        self.rig.engine.check_integrity()


def test_an_evicted_prefix_comes_back() -> None:
    world = World()
    assert [world.serve(prefix) for prefix in PREFIXES[:4]] == [0, 0, 0, 0]
    computed = world.rig.executor.computed_tokens
    assert [world.serve(prefix) for prefix in PREFIXES[:4]] == [32, 32, 32, 32]
    assert world.rig.executor.computed_tokens == computed + 4
    assert world.count("kv_pages_fetched") > 0


def test_what_has_a_salt_is_shared_with_that_salt_alone() -> None:
    """On the device, and on the host once the others have taken its place."""
    world = World()
    first = PREFIXES[0]
    assert [world.serve(first, salt=salt) for salt in ("", "a", "b")] == [0, 0, 0]
    assert [world.serve(first, salt=salt) for salt in ("b", "c", "a", "")] == [32, 0, 32, 32]
    for prefix in PREFIXES[1:4]:
        world.serve(prefix)
    assert [world.serve(first, salt=salt) for salt in ("a", "d", "")] == [32, 0, 32]
    assert world.count("kv_pages_fetched") > 0


def test_without_a_host_tier_it_is_computed_again() -> None:
    world = World(host_pages=0)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    assert world.serve(PREFIXES[0]) == 0
    assert world.count("host_kv_writes") == 0


def test_a_fetch_is_charged_as_the_time_it_takes_and_metered_as_cached() -> None:
    world = World()
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    rig = world.rig
    rig.memory.costs.observe_fetch = lambda *_: None  # type: ignore[method-assign]
    (meter,) = rig.engine._scheduler.telemetry._meters.values()

    def serve(prefix: list[int]) -> tuple[float, float]:
        """What it was charged, and how many pages were fetched."""
        service, fetched = meter.service, world.count("kv_pages_fetched")
        assert world.serve(prefix) == 32
        return meter.service - service, world.count("kv_pages_fetched") - fetched

    (dear, pages), (cheap, none) = serve(PREFIXES[0]), serve(PREFIXES[0])
    assert (pages, none) == (8, 0)
    assert dear - cheap == pytest.approx(rig.engine._scheduler.charges.fetch(8))
    token_s = rig.memory.costs.token_s
    assert dear - cheap == pytest.approx(
        rig.memory.costs.fetch_s(8 * rig.config.page_bytes) / token_s
    )


def test_of_those_who_share_a_fetch_one_pays_and_nobody_twice() -> None:
    world = World(num_pages=60, policy="unified-lru")
    for prefix in PREFIXES[:12]:
        world.serve(prefix)
    charges = world.rig.engine._scheduler.charges
    paid: list[int] = []
    fetch = charges.fetch

    def note(num_pages: int) -> float:
        paid.append(num_pages)
        return fetch(num_pages)

    charges.fetch = note  # type: ignore[method-assign]
    for _ in range(3):
        world.submit(PREFIXES[0])
    world.step()
    world.rig.engine.abort("r13")  # who asked for it first
    world.run()
    assert sorted(paid) == [0, 8]
    assert world.count("kv_pages_fetched") == 8


def test_what_takes_less_is_done() -> None:
    world = World()
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    block_s = world.rig.memory.costs.block_s(0)
    page_bytes = world.rig.config.page_bytes
    for _ in range(200):  # a page now takes ten times as long to fetch as to compute
        world.rig.memory.costs.observe_fetch(page_bytes, 10 * block_s)
    written = world.count("host_kv_writes")
    assert world.serve(PREFIXES[0]) == 0
    assert world.count("host_kv_writes") == written, "nobody would want it back"
    for _ in range(200):
        world.rig.memory.costs.observe_fetch(page_bytes, block_s / 10)
    assert world.serve(PREFIXES[1]) == 32


def test_beside_a_step_a_fetch_is_not_sooner_than_the_step() -> None:
    world = World(num_pages=40, policy="unified-lru")
    for prefix in PREFIXES[:6]:
        world.serve(prefix)
    costs = world.rig.memory.costs
    world.submit([80], max_tokens=30)
    world.step()
    costs._step_s = 2 * costs.blocks_s(0, 8)
    name = world.submit(PREFIXES[0])
    world.run()
    assert world.finished[name].usage.cached_tokens == 0
    costs._step_s = 0.5 * costs.blocks_s(0, 8)
    world.submit([81], max_tokens=30)
    world.step()
    name = world.submit(PREFIXES[1])
    world.run()
    assert world.finished[name].usage.cached_tokens == 32


def test_a_fetch_that_lands_beside_who_computes_the_same_leaves_its_node_alone() -> None:
    world = World(num_pages=40, policy="unified-lru", max_step_tokens=9)
    for prefix in PREFIXES[:6]:
        world.serve(prefix)
    world.submit([80], max_tokens=30)
    world.step()
    world.rig.memory.costs._step_s = 1.0
    computes = world.submit(PREFIXES[0], max_tokens=4)
    world.step()
    world.rig.memory.costs._step_s = 0.0
    fetches = world.submit(PREFIXES[0])
    world.step()
    (copy,) = world.rig.copier.in_flight
    world.rig.copier.finish(copy)
    world.rig.memory.fetches.take(world.rig.executor.take_ended_copies())
    world.rig.engine.check_integrity()
    world.run()
    assert world.finished[computes].usage.cached_tokens == 0
    assert world.finished[fetches].usage.cached_tokens == 32
    assert world.rig.engine.stats().pool.live_kv_pages == 0


def test_only_who_needs_a_fetch_waits_for_it() -> None:
    world = World(num_pages=30)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    waits = world.submit(PREFIXES[0])
    other = world.submit([85, 86])
    world.step()
    assert len(world.rig.copier.in_flight) == 1
    world.step()
    assert other in world.finished
    assert waits not in world.finished
    assert not world.rig.engine.has_work
    world.run()
    assert world.finished[waits].usage.cached_tokens == 32


def test_two_who_need_the_same_prefix_share_a_fetch() -> None:
    world = World(num_pages=30)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    names = [world.submit(PREFIXES[0]), world.submit(PREFIXES[0])]
    world.step()
    assert world.count("kv_fetches") == 1
    world.run()
    assert [world.finished[name].usage.cached_tokens for name in names] == [32, 32]
    assert world.count("kv_fetches") == 1


def test_a_fetch_ends_with_the_last_who_waits_for_it() -> None:
    world = World(num_pages=30)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    names = [world.submit(PREFIXES[0]), world.submit(PREFIXES[0])]
    world.step()
    assert world.rig.engine.stats().pool.live_kv_pages > 0
    world.rig.engine.abort(names[0])
    assert len(world.rig.copier.in_flight) == 1
    world.rig.engine.abort(names[1])
    world.step()
    assert not world.rig.copier.in_flight
    world.step()
    assert world.rig.engine.stats().pool.live_kv_pages == 0
    assert world.count("kv_fetches_cancelled") == 1
    assert world.serve(PREFIXES[0]) == 32


def test_a_fetch_that_came_too_late_is_nothing() -> None:
    world = World(num_pages=30)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    name = world.submit(PREFIXES[0])
    world.step()
    world.rig.copier.finish(next(iter(world.rig.copier.in_flight)))
    world.rig.engine.abort(name)  # before the scheduler has seen that it came
    world.step()
    assert world.rig.engine.stats().pool.live_kv_pages == 0
    assert world.count("kv_pages_fetched") == 0


def test_what_a_failed_fetch_was_to_bring_is_fetched_again_or_computed() -> None:
    world = World(num_pages=30)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    name = world.submit(PREFIXES[0])
    for _ in range(3):
        world.step()
        world.rig.copier.fail_next = True
        for copy in list(world.rig.copier.in_flight):
            world.rig.copier.finish(copy)
    world.run()
    assert world.finished[name].reason == "length"
    assert world.finished[name].usage.cached_tokens < 32
    assert world.count("kv_pages_fetched") == 0


def test_purge_reaches_both_tiers_and_what_is_in_flight() -> None:
    world = World(num_pages=30)
    ref = make_ref("a", 1)
    for prefix in PREFIXES[:4]:
        world.serve(prefix, adapter=ref)
    name = world.submit(PREFIXES[0], adapter=ref)
    world.step()
    assert len(world.rig.copier.in_flight) == 1
    world.rig.engine.forget_adapter(T0.namespace, ref.digest)
    world.step()
    assert not world.rig.copier.in_flight
    assert world.count("host_kv_bytes") == 0
    assert world.rig.engine.has_work, "who waited is looked at again"
    world.run()
    assert world.finished[name].usage.cached_tokens == 0
    assert world.serve(PREFIXES[1], adapter=ref) == 0


def test_no_other_tenant_and_no_other_adapter_finds_it() -> None:
    world = World()
    a, b = make_ref("a", 1), make_ref("b", 1)
    for prefix in PREFIXES[:3]:
        world.serve(prefix, adapter=a)
    assert world.serve(PREFIXES[0], adapter=b) == 0
    assert world.serve(PREFIXES[0], tenant=make_tenant("t1"), adapter=a) == 0
    assert world.serve(PREFIXES[0]) == 0
    assert world.serve(PREFIXES[0], adapter=a) == 32
    # A namespace and a digest that end and begin elsewhere but read the same together.
    joined = Tenant(key="x", namespace=T0.namespace + "sha")
    assert world.serve(PREFIXES[0], joined, AdapterRef(a.digest.removeprefix("sha"), 1)) == 0


def test_strict_isolation_has_no_host_tier() -> None:
    tenant = Tenant(key="t", namespace="ns-t", min_memory_share=1.0)
    world = World(strict=True)
    for prefix in PREFIXES[:3]:
        world.serve(prefix, tenant)
    assert world.serve(PREFIXES[0], tenant) == 0
    assert world.count("host_kv_writes") == 0


def test_a_full_host_keeps_what_is_worth_most() -> None:
    world = World(host_pages=16)
    for _ in range(4):
        world.serve(PREFIXES[0])
        world.serve(PREFIXES[1])
    for prefix in PREFIXES[2:6]:
        world.serve(prefix)
    assert world.count("host_kv_bytes") == 16 * world.rig.config.page_bytes
    assert world.count("host_kv_evictions") > 0
    assert world.serve(PREFIXES[0]) == 32, "used four times, it outlived what was used once"


def test_running_sequences_take_pages_back_from_fetches() -> None:
    world = World(num_pages=16)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    runs = world.submit([80] * 27, max_tokens=30)  # 7 pages now, 15 in the end
    world.step()
    waits = world.submit(PREFIXES[0])
    world.step()
    assert len(world.rig.copier.in_flight) == 1
    while runs not in world.finished:
        world.step()
    assert world.finished[runs].usage.output_tokens == 30
    assert world.count("kv_fetches_cancelled") >= 1
    assert world.count("preemptions") == 0
    world.run()
    assert world.finished[waits].reason == "length"


def test_fetches_run_ahead_of_their_turn() -> None:
    world = World(num_pages=60, max_running=1, policy="unified-lru")
    for prefix in PREFIXES[:12]:
        world.serve(prefix)
    runs = world.submit([80], max_tokens=20)
    world.step()
    waits = [world.submit(PREFIXES[0]), world.submit(PREFIXES[1])]
    world.step()
    copies = list(world.rig.copier.in_flight)
    assert sum(len(copy.targets) for copy in copies) == 60 // 4, "no more of the arena than that"
    world.rig.copier.finish(copies[0])
    world.step()
    assert world.count("kv_pages_fetched") == 8
    assert runs not in world.finished
    world.run()
    assert [world.finished[name].usage.cached_tokens for name in waits] == [32, 32]


def test_ahead_of_its_turn_nothing_goes_that_somebody_waits_for() -> None:
    world = World(num_pages=14, max_running=1)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    world.submit([80], max_tokens=20)
    world.step()
    first = world.submit(PREFIXES[3])  # cached: it lies on the device
    world.submit(PREFIXES[0])
    for _ in range(3):
        world.step()
        for copy in list(world.rig.copier.in_flight):
            world.rig.copier.finish(copy)
    assert world.count("kv_fetches") > 0
    world.run()
    assert world.finished[first].usage.cached_tokens == 32


def test_fetches_are_bounded_in_all_and_by_tenant() -> None:
    world = World(num_pages=400, host_pages=400)
    tenants = [make_tenant(f"t{number}") for number in range(4)]
    for prefix in PREFIXES[:12]:
        for tenant in tenants:
            world.serve(prefix, tenant)
    for tenant in tenants:
        for prefix in PREFIXES[:6]:
            world.submit(prefix, tenant)
    world.step()
    flights = [fetch.tenant_key for fetch in world.rig.memory.fetches]
    assert len(flights) <= MAX_FETCHES
    assert max(map(flights.count, flights), default=0) <= MAX_TENANT_FETCHES
    world.run()
    assert all(event.reason == "length" for event in world.finished.values())


@pytest.mark.parametrize("policy", ["joint", "elora"])
def test_what_lies_on_the_host_is_worth_less_on_the_device(policy: str) -> None:
    world = World(policy=policy)
    for prefix in PREFIXES[:4]:
        world.serve(prefix)
    world.serve(PREFIXES[0])
    memory = world.rig.memory
    nodes = [node for root in memory.tree.roots() for node in root.evictable()]
    mirrored = [node for node in nodes if node in memory.host]
    assert mirrored
    page_bytes = world.rig.config.page_bytes
    described = memory._evictor.describe(mirrored[0])
    assert described.reload_s == memory.costs.fetch_s(page_bytes) < described.recompute_s
