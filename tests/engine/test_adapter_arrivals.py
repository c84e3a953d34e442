"""Large adapters come into the arena beside the steps: nobody sees half of one, only who needs it
waits, and what is given up on the way gives everything back."""

from __future__ import annotations

import threading

import pytest
import torch

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import AdapterResidency, FinishEvent, TokenEvent
from tenora_engine.executor.page_copier import PageCopy, ThreadPageCopier
from tenora_engine.memory.adapter_arrivals import MAX_ARRIVALS, MAX_TENANT_ARRIVALS
from tenora_engine.pace import QUICK_BYTES, Pace

BIG = make_ref("big", rank=8)  # two pages
SMALL = make_ref("small", rank=3)  # one


def make_rig(config: ResolvedConfig | None = None) -> Rig:
    """What takes more than a page is copied beside the steps, until the test says so."""
    config = config or make_config()
    rig = Rig.build(config, at_once_bytes=config.page_bytes)
    rig.adapter_copier.instant = False
    return rig


def loading(rig: Rig) -> list[AdapterResidency]:
    return [item for item in rig.engine.stats().adapters if item.state == "loading"]


def finish_copy(rig: Rig) -> None:
    rig.adapter_copier.finish(next(iter(rig.adapter_copier.in_flight)))


def step(rig: Rig) -> list[FinishEvent]:
    events = rig.engine.step()
    rig.engine.check_integrity()
    return [event for event in events if isinstance(event, FinishEvent)]


def run(rig: Rig) -> dict[str, FinishEvent]:
    finished: dict[str, FinishEvent] = {}
    while rig.engine.has_work:
        finished |= {event.request_id: event for event in step(rig)}
    return finished


def test_a_large_adapter_comes_beside_the_steps_of_others() -> None:
    rig = make_rig()
    rig.engine.submit(make_request("stream", [1, 2], ignore_eos=True, max_tokens=40))
    rig.engine.submit(make_request("big", [3], adapter=BIG, tenant=make_tenant("b")))
    for _ in range(5):
        events = rig.engine.step()
        rig.engine.check_integrity()
        assert [e.request_id for e in events if isinstance(e, TokenEvent)] == ["stream"]
        (adapter,) = loading(rig)
        assert (adapter.digest, adapter.pages, adapter.references) == (BIG.digest, 2, 0)
        assert rig.memory.adapters.get(BIG.digest) is None
    assert rig.engine.stats().pool.adapter_pages == 2
    finish_copy(rig)
    names = {event.request_id for event in rig.engine.step()}
    assert names == {"stream", "big"}
    assert rig.engine.residency(BIG) == "device"
    assert run(rig)["big"].reason in ("stop", "length")
    assert rig.engine.stats().counters["adapter_copies"] == 1


def test_an_engine_that_only_waits_for_a_copy_is_woken_by_it() -> None:
    rig = make_rig()
    woken: list[bool] = []
    rig.engine.on_wake = lambda: woken.append(True)
    rig.engine.submit(make_request("a", [1], adapter=BIG))
    assert step(rig) == []
    step(rig)  # for the load that ended meanwhile
    assert not rig.engine.has_work
    woken.clear()
    finish_copy(rig)
    assert woken
    assert list(run(rig)) == ["a"]


def test_a_small_adapter_starts_in_the_step_of_its_turn() -> None:
    rig = make_rig()
    rig.engine.submit(make_request("a", [1], adapter=SMALL, ignore_eos=True))
    rig.engine.step()
    assert rig.engine.residency(SMALL) == "device"
    assert rig.engine.stats().counters["adapter_copies"] == 0


def test_two_who_need_it_share_one_copy_and_the_first_to_start_pays() -> None:
    rig = make_rig()
    charged: list[str] = []
    book = rig.engine._scheduler
    charge = book.queue.charge
    book.charges.load = lambda num_bytes, tier: 1000.0 * num_bytes  # type: ignore[method-assign]

    def note(sequence: object, cost: float) -> None:
        if cost >= 1000.0:
            charged.append(sequence.request.request_id)  # type: ignore[attr-defined]
        charge(sequence, cost)  # type: ignore[arg-type]

    book.queue.charge = note  # type: ignore[method-assign]
    for name in ("a", "b"):
        rig.engine.submit(make_request(name, [1], adapter=BIG, tenant=make_tenant(name)))
    step(rig)
    assert len(rig.adapter_copier.in_flight) == 1
    finish_copy(rig)
    assert len(run(rig)) == 2
    assert len(charged) == 1
    rig.engine.submit(make_request("c", [1], adapter=BIG))
    run(rig)
    assert len(charged) == 1


def test_what_nobody_waits_for_any_more_is_given_up_at_once() -> None:
    rig = make_rig()
    for name in ("a", "b"):
        rig.engine.submit(make_request(name, [1], adapter=BIG))
    step(rig)
    rig.engine.abort("a")
    step(rig)
    assert len(rig.memory.arrivals) == 1
    rig.engine.abort("b")
    assert len(rig.memory.arrivals) == 0
    step(rig)
    assert not rig.adapter_copier.in_flight
    step(rig)
    stats = rig.engine.stats()
    assert (stats.pool.free_pages, loading(rig)) == (stats.pool.total_pages, [])
    assert stats.counters["adapter_copies_cancelled"] == 1
    rig.engine.submit(make_request("c", [1], adapter=BIG))
    step(rig)
    finish_copy(rig)
    assert list(run(rig)) == ["c"]


def test_a_revoked_adapter_leaves_nothing_behind_when_its_copy_is_given_up() -> None:
    rig = make_rig()
    tenant = make_tenant("t")
    rig.engine.submit(make_request("a", [1], adapter=BIG, tenant=tenant))
    step(rig)
    rig.engine.forget_adapter(tenant.namespace, BIG.digest)
    assert rig.loader.forgotten == []  # who waits for it may still run
    rig.engine.abort("a")
    assert rig.loader.forgotten == [BIG.digest]
    assert rig.engine.stats().pool.adapter_pages == 0
    assert rig.memory.adapters.get(BIG.digest) is None
    rig.engine.check_integrity()


def test_a_running_sequence_that_needs_pages_goes_before_a_copy() -> None:
    rig = make_rig(make_config(num_pages=6, prefix_caching=False))
    rig.engine.submit(make_request("stream", [1] * 7, ignore_eos=True, max_tokens=13))
    rig.engine.submit(make_request("big", [3], adapter=BIG, tenant=make_tenant("b")))
    step(rig)
    assert len(rig.memory.arrivals) == 1
    while "stream" not in (ended := [event.request_id for event in step(rig)]):
        assert ended == []
    counters = rig.engine.stats().counters
    assert counters["adapter_copies_cancelled"] >= 1
    assert counters["preemptions"] == 0
    step(rig)
    finish_copy(rig)
    assert list(run(rig)) == ["big"]


def test_copies_in_flight_are_bounded_in_all_and_by_tenant() -> None:
    rig = make_rig(make_config(num_pages=64, max_adapters=16))
    for number in range(12):
        tenant = make_tenant(f"t{number % 3}")
        adapter = make_ref(f"x{number}")
        rig.engine.submit(make_request(f"r{number}", [1], adapter=adapter, tenant=tenant))
    step(rig)
    arrivals = list(rig.memory.arrivals)
    assert len(arrivals) == MAX_ARRIVALS
    for number in range(3):
        own = sum(arrival.tenant_key == f"t{number}" for arrival in arrivals)
        assert 1 <= own <= MAX_TENANT_ARRIVALS
    finished = 0
    while rig.adapter_copier.in_flight:
        finish_copy(rig)
        finished += len(run(rig))
    assert finished == 12


def test_a_copy_that_fails_ends_those_who_wait_for_it() -> None:
    rig = make_rig()
    rig.engine.submit(make_request("a", [1], adapter=BIG))
    rig.engine.submit(make_request("other", [1], ignore_eos=True, max_tokens=4))
    step(rig)
    rig.adapter_copier.fail_next = True
    finish_copy(rig)
    finished = run(rig)
    assert finished["a"].reason == "error"
    assert "could not be copied to the device" in (finished["a"].error or "")
    assert finished["a"].usage.prompt_tokens == 0
    assert finished["other"].reason == "length"
    assert rig.engine.stats().pool.adapter_pages == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_a_paced_copy_is_whole_and_rests_between_its_pieces(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    worked = iter(range(1000))
    monkeypatch.setattr("tenora_engine.executor.page_copier.perf_counter", lambda: sum(rests))
    pace = Pace(lambda: 0.0, lambda: float(next(worked)), rests.append)
    pace.begin_step()
    page = QUICK_BYTES // 4 // dtype.itemsize
    host = torch.arange(12 * page).to(dtype).view(12, page)
    device = torch.zeros((16, page), dtype=dtype)
    copier = ThreadPageCopier(device, 2, pace)
    done = threading.Event()
    copier.on_complete = done.set
    targets = [15, 3, 4, 9, 0, 1, 2, 14, 8, 7, 6, 5]
    copy = PageCopy(host, range(12), targets)
    copier.start(copy)
    assert done.wait(20)
    assert copy.seconds == 0, "the clock moves on with the rests alone"
    copier.close()
    assert torch.equal(device[targets], host)
    assert rests == [2.0] * 3  # three times QUICK_BYTES: a third of a core
