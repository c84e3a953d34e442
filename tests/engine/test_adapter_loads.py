"""Which adapters are on their way for whom: no tenant's loads keep another's waiting, and what the
host has waits for none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant, run
from tenora_engine.adapters.loader import LoadResult
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.events import Event, FinishEvent, Residency
from tenora_engine.request import AdapterRef
from tenora_engine.scheduling import loads
from tenora_engine.scheduling.load_places import MAX_TENANT_PENDING, LoadPlaces
from tenora_engine.scheduling.loads import PATIENCE_S, AdapterLoads
from tenora_engine.scheduling.scheduler import Scheduler


def rig_of(**sizes: int) -> Rig:
    return Rig.build(make_config(max_waiting=1000, **sizes), instant=False)


def loads_of(rig: Rig) -> AdapterLoads:
    return rig.engine._scheduler.loads


def submit(rig: Rig, name: str, tenant: str, adapter: AdapterRef) -> None:
    request = make_request(name, [1], tenant=make_tenant(tenant), adapter=adapter, max_tokens=1)
    rig.engine.submit(request)


def refs_of(tenant: str, count: int) -> list[AdapterRef]:
    return [make_ref(f"{tenant}-{number}") for number in range(count)]


def submit_all(rig: Rig, tenant: str, refs: Iterable[AdapterRef]) -> None:
    for ref in refs:
        submit(rig, ref.digest, tenant, ref)


def finishes(events: Iterable[Event]) -> dict[str, FinishEvent]:
    return {event.request_id: event for event in events if isinstance(event, FinishEvent)}


class Kept:
    """A loader that finds some adapters in host memory at once, and owns them."""

    def __init__(self, rig: Rig, *refs: AdapterRef) -> None:
        loader = rig.loader
        self.packed: dict[str, PackedAdapter] = {}
        start, take, has_tier = loader.start, loader.take_completed, loader.tier
        loader.instant = True
        for ref in refs:
            loader.start(ref)
        loader.instant = False
        for result in loader.take_completed():
            assert result.packed is not None
            self.packed[result.ref.digest] = result.packed
        loader.started.clear()
        found: list[LoadResult] = []

        def start_or_find(ref: AdapterRef, tenant_key: str = "") -> None:
            if ref.digest not in self.packed:
                start(ref, tenant_key)
                return
            loader.started.append(ref.digest)
            found.append(LoadResult(ref, self.packed[ref.digest], None, "host", 0.0))

        def take_all() -> list[LoadResult]:
            results = found + take()
            found.clear()
            return results

        loader.start = start_or_find  # type: ignore[method-assign]
        loader.take_completed = take_all  # type: ignore[method-assign]
        loader.tier = lambda d: "host" if d in self.packed else has_tier(d)  # type: ignore[method-assign]


def test_each_tenant_has_its_first_load_started_whatever_others_wait_for() -> None:
    rig = rig_of()
    for number in range(6):
        submit_all(rig, f"t{number}", refs_of(f"t{number}", 10))
    started = rig.loader.started
    assert len(started) == 6 * MAX_TENANT_PENDING
    (own,) = refs_of("other", 1)
    submit(rig, "other", "other", own)
    assert started[-1] == own.digest
    rig.loader.finish(own.digest)
    assert "other" in finishes([event for _ in range(2) for event in rig.engine.step()])


def test_a_host_hit_starts_whatever_is_loading() -> None:
    rig = rig_of()
    host = make_ref("host")
    Kept(rig, host)
    for tenant in ("t0", "t1", "t2"):
        submit_all(rig, tenant, refs_of(tenant, 10))
    submit(rig, "host", "t0", host)
    assert "host" in finishes([event for _ in range(2) for event in rig.engine.step()])


def test_a_host_hit_that_was_given_up_before_its_turn_is_loaded_again() -> None:
    rig = rig_of(max_running=1)
    host, running = make_ref("host"), make_request("runs", [1], max_tokens=20, ignore_eos=True)
    kept = Kept(rig, host)
    rig.engine.submit(running)
    rig.engine.step()
    submit(rig, "r", "t0", host)
    rig.engine.step()
    assert loads_of(rig).ready(host.digest) is not None
    kept.packed.clear()
    rig.engine.step()
    assert loads_of(rig).ready(host.digest) is None
    rig.engine.abort("runs")
    rig.engine.step()
    assert host.digest in rig.loader.in_flight
    rig.loader.finish(host.digest)
    assert finishes(run(rig))["r"].reason != "error"


def test_a_load_that_waits_begins_when_another_of_its_tenant_leaves() -> None:
    rig = rig_of()
    refs = refs_of("t0", MAX_TENANT_PENDING + 3)
    submit_all(rig, "t0", refs)
    waiting = [ref.digest for ref in refs[MAX_TENANT_PENDING:]]
    assert all(loads_of(rig).is_coming(digest) for digest in waiting)
    rig.engine.abort(waiting[1])  # which nobody wants any more
    rig.loader.bad.add(refs[0].digest)
    for ref in (refs[0], refs[1]):
        rig.loader.finish(ref.digest)
    ended = loads_of(rig).poll()
    assert [(digest, error is None) for digest, error in ended] == [
        (refs[0].digest, False),
        (refs[1].digest, True),
    ]
    assert rig.loader.started[-1] == waiting[0]
    rig.engine.abort(refs[1].digest)
    assert rig.loader.started[-1] == waiting[2]


def test_what_nobody_waits_for_takes_no_more_than_the_places() -> None:
    rig = rig_of()
    for ref in refs_of("t0", 3 * MAX_TENANT_PENDING):
        loads_of(rig).request(ref, "t0")
    assert len(rig.loader.in_flight) == MAX_TENANT_PENDING
    assert not loads_of(rig).is_coming(make_ref(f"t0-{MAX_TENANT_PENDING}").digest)


def test_ready_adapters_whose_turn_does_not_come_let_others_of_their_tenant_pass() -> None:
    rig = rig_of(max_running=1)
    rig.engine.submit(make_request("runs", [1, 2], max_tokens=50, ignore_eos=True))
    rig.engine.step()
    refs = refs_of("t0", MAX_TENANT_PENDING + 1)
    submit_all(rig, "t0", refs)
    for ref in refs[:-1]:
        rig.loader.finish(ref.digest)
    rig.engine.step()
    late = refs[-1].digest
    assert late not in rig.loader.in_flight
    rig.now_s += PATIENCE_S
    rig.loader.tiers = {ref.digest: "store" for ref in refs}  # the host has given them up
    rig.engine.step()
    assert late not in rig.loader.in_flight, "what came would have to come again"
    rig.now_s += PATIENCE_S
    rig.loader.tiers.clear()
    rig.engine.step()
    assert late in rig.loader.in_flight
    rig.engine.abort("runs")
    rig.loader.instant = True
    rig.loader.finish(late)
    assert finishes(run(rig)).keys() == {"runs", *(ref.digest for ref in refs)}


def test_who_holds_most_gives_way_where_ready_adapters_take_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = rig_of()
    size = 8 * 4 * 4 * 2  # two pages
    monkeypatch.setattr(loads, "READY_BYTES", 4 * size)
    own, (other,) = refs_of("t0", 4), refs_of("t1", 1)
    hold = loads_of(rig)
    for tenant, refs in (("t0", own), ("t1", [other])):
        for ref in refs:
            rig.memory.adapters.want(ref.digest)  # somebody waits, and is never looked at
            hold.request(ref, tenant)
            rig.loader.finish(ref.digest)
    hold.poll()
    ready = [ref.digest for ref in (*own, other) if hold.ready(ref.digest) is not None]
    assert ready == [*(ref.digest for ref in own[:3]), other.digest]


def test_a_load_goes_to_the_tenant_that_waits_for_less() -> None:
    rig = rig_of()
    refs = refs_of("t0", MAX_TENANT_PENDING + 4)
    submit_all(rig, "t0", refs)
    shared = refs[-1]
    assert shared.digest not in rig.loader.in_flight
    submit(rig, "other", "t1", shared)
    assert shared.digest in rig.loader.in_flight
    rig.engine.step()
    rig.loader.begun = set(rig.loader.in_flight)
    submit(rig, "again", "t2", refs[0])
    assert rig.loader.started.count(refs[0].digest) == 1, "it is being read"
    rig.loader.instant = True
    rig.loader.begun.clear()
    for digest in list(rig.loader.in_flight):
        rig.loader.finish(digest)
    assert len(finishes(run(rig))) == len(refs) + 2


def test_a_load_is_charged_and_written_down_by_its_work_and_tier() -> None:
    """However long it waited for others."""
    rig = rig_of()
    costs, ref = rig.memory.costs, make_ref("x")
    take = rig.loader.take_completed
    rig.loader.take_completed = lambda: [  # type: ignore[method-assign]
        replace(done, load_ms=24.0, wait_ms=60_000.0) for done in take()
    ]
    charged: list[tuple[int, str]] = []
    charges = rig.engine._scheduler.charges
    load = charges.load

    def note(num_bytes: int, tier: Residency) -> float:
        charged.append((num_bytes, tier))
        return load(num_bytes, tier)

    charges.load = note  # type: ignore[method-assign]
    rig.loader.instant = True
    submit(rig, "cold", "t0", ref)
    (cold,) = finishes(run(rig)).values()
    num_bytes = 2 * rig.config.page_bytes
    assert cold.usage.adapter_load_ms == 24.0
    assert costs.adapter_s(num_bytes, "store") == pytest.approx(0.024)
    paid = rig.engine._scheduler.queue.counter("t0", "default")
    assert paid > load(num_bytes, "store") == pytest.approx(0.024 / costs.token_s)
    rig.memory.remove_adapter(rig.memory.adapters.copies(ref.digest)[0])
    Kept(rig, ref)
    submit(rig, "again", "t0", ref)
    run(rig)
    assert charged == [(num_bytes, "store"), (num_bytes, "host")]
    assert costs.adapter_s(num_bytes, "store") == pytest.approx(0.024)


def test_a_promise_counts_the_load_from_the_tier_that_has_the_adapter() -> None:
    rig = rig_of()
    costs, gate = rig.memory.costs, rig.engine._scheduler.gate
    for tier, load_s in (("shared", 0.01), ("store", 0.2)):
        costs.observe_load(100, load_s, tier)
    sizes = {"host": 0.0, "shared": 0.01, "store": 0.2}
    for tier, load_s in sizes.items():
        per_byte = gate._load_s(make_ref("x"), tier) / gate._charges.adapter_bytes(make_ref("x"))
        assert per_byte == pytest.approx(load_s / 100)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "finish", "fail", "abort", "step", "later", "begin"]),
            st.integers(0, 3),
            st.integers(0, 13),
        ),
        max_size=60,
    )
)
def test_every_load_that_is_waited_for_comes_in_the_end(
    actions: list[tuple[str, int, int]],
) -> None:
    """Whatever happens meanwhile; and no tenant has more than its places, nor fewer than it can
    use."""
    rig = rig_of(max_running=2)
    in_flight, names = rig.loader.in_flight, []
    for number, (action, tenant, adapter) in enumerate(actions):
        digest = f"sha256:{adapter}"
        if action == "submit":
            names.append(f"{number}")
            submit(rig, names[-1], f"t{tenant}", make_ref(str(adapter)))
        elif action == "abort" and names:
            rig.engine.abort(names[adapter % len(names)])
        elif action == "step":
            rig.engine.step()
        elif action == "later":
            rig.now_s += PATIENCE_S
        elif digest in in_flight:
            if action == "begin":
                rig.loader.begun.add(digest)
            else:
                (rig.loader.bad.add if action == "fail" else rig.loader.bad.discard)(digest)
                rig.loader.begun.discard(digest)
                rig.loader.finish(digest)
        places: LoadPlaces = loads_of(rig)._places
        for key in {*places.who_waits(), *(f"t{n}" for n in range(4))}:
            held = len(places.placed(key))
            assert held <= MAX_TENANT_PENDING
            assert held == MAX_TENANT_PENDING or key not in places.who_waits()
    rig.loader.instant = True
    for digest in list(in_flight):
        rig.loader.finish(digest)
    run(rig)
    assert not rig.engine.stats().waiting
    scheduler: Scheduler = rig.engine._scheduler
    assert not scheduler.loads._places._owners
    assert (scheduler.loads._ready_bytes, scheduler.loads._ready) == (0, {})


def test_one_whose_turn_is_near_takes_the_place_of_what_the_host_keeps() -> None:
    rig = rig_of(max_running=1)
    refs = refs_of("pin", MAX_TENANT_PENDING)
    for ref in refs:
        rig.memory.adapters.want(ref.digest)
        loads_of(rig).request(ref, "t0")
        rig.loader.finish(ref.digest)
    rig.engine.step()
    own = make_ref("own")
    submit(rig, "r", "t0", own)
    rig.engine.step()
    assert own.digest in rig.loader.in_flight
