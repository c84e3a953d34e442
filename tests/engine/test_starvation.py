"""Nobody waits for what it does not need: whatever other tenants wait for, a request that needs
nothing but its turn starts at once while there is a place for it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant
from tenora_engine.errors import QueueFullError
from tenora_engine.events import FinishEvent
from tenora_engine.memory.adapter_arrivals import AT_ONCE_BYTES
from tenora_engine.memory.kv_fetches import MAX_FETCHES
from tenora_engine.request import Tenant
from tenora_engine.scheduling.loads import PATIENCE_S
from tenora_engine.scheduling.slot_turns import SLOT_PATIENCE_STEPS
from tenora_engine.sequence import SequenceState

MOST_STEPS = 4
MOST_WAITING = 1024
SLOTS = 4
_FOREVER: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
"""Of those who hold something: longer than a test looks."""


def with_shares(name: str, least: float, most: float) -> Tenant:
    return msgspec.structs.replace(make_tenant(name), min_memory_share=least, max_memory_share=most)


def make_rig(
    num_pages: int = 1000,
    max_adapters: int = SLOTS,
    strict_isolation: bool = False,
    at_once_bytes: float = AT_ONCE_BYTES,
    host_pages: int = 0,
) -> Rig:
    config = make_config(
        num_pages=num_pages,
        max_running=200,
        max_step_tokens=2000,
        max_prefill_chunk=500,
        max_waiting=MOST_WAITING,
        max_tenant_waiting=300,
        max_adapters=max_adapters,
        context_tokens=256,
        strict_isolation=strict_isolation,
        host_pages=host_pages,
    )
    return Rig.build(config, instant=False, at_once_bytes=at_once_bytes)


def submit_last(rig: Rig, request_id: str, prompt: list[int], tenant: Tenant, **more: Any) -> None:
    """A request of a tenant that has had more service than all others: everybody's turn is before
    its own."""
    rig.engine.submit(make_request(f"{request_id}/before", [9], tenant=tenant, max_tokens=1))
    requests = rig.engine._scheduler.requests
    (sequence,) = requests.flights[f"{request_id}/before"].sequences
    rig.engine.abort(f"{request_id}/before")
    rig.engine._scheduler.queue.charge(sequence, 1_000_000.0)
    rig.now_s += 20.0
    rig.engine.submit(make_request(request_id, prompt, tenant=tenant, **more))


def started_after(rig: Rig, request_id: str, most: int = MOST_STEPS) -> int | None:
    """Steps until the request runs, or has run; None: more than `most`."""
    for number in range(1, most + 1):
        rig.engine.step()
        rig.engine.check_integrity()
        flight = rig.engine._scheduler.requests.flights.get(request_id)
        if flight is None or flight.sequences[0].state is not SequenceState.WAITING:
            return number
    return None


def hold_all_slots(rig: Rig) -> None:
    """Every slot is used by a request that runs for long."""
    for i in range(SLOTS):
        ref = make_ref(f"held{i}")
        tenant = make_tenant(f"holder{i}")
        rig.engine.submit(
            make_request(
                f"hold{i}", [1], tenant=tenant, adapter=ref, ignore_eos=True, max_tokens=200
            )
        )
        rig.loader.finish(ref.digest)
    rig.engine.step()
    rig.engine.step()
    assert len(rig.engine._scheduler.running) == SLOTS


def test_a_tenant_beyond_its_share_of_the_memory_keeps_nobody_waiting() -> None:
    """A's share is full and 39 of its requests wait; B's strict share is empty."""
    config = make_config(num_pages=100, max_running=64, max_step_tokens=256, strict_isolation=True)
    rig = Rig.build(config)
    a, b = with_shares("a", 0.3, 0.3), with_shares("b", 0.6, 0.6)
    for i in range(42):
        prompt = [i % 90] * 24
        rig.engine.submit(make_request(f"a{i}", prompt, tenant=a, **_FOREVER))
    for _ in range(3):
        rig.engine.step()
    assert rig.engine.stats().waiting >= 36
    submit_last(rig, "b", [5] * 8, b)
    assert started_after(rig, "b") == 1


def test_twenty_tenants_at_their_limits_keep_nobody_waiting() -> None:
    rig = make_rig(num_pages=500, strict_isolation=True)
    full = [with_shares(f"t{i}", 0.04, 0.04) for i in range(20)]
    for tenant in full:
        for turn in range(6):
            request_id = f"{tenant.key}/{turn}"
            prompt = [int(tenant.key[1:]), turn] * 10
            rig.engine.submit(make_request(request_id, prompt, tenant=tenant, **_FOREVER))
    for _ in range(3):
        rig.engine.step()
    assert len(rig.engine.stats().waiting_by_tenant) == 20
    submit_last(rig, "b", [5] * 8, with_shares("b", 0.15, 1.0))
    assert started_after(rig, "b") == 1


@pytest.mark.parametrize("own", [False, True], ids=["others'", "its own"])
def test_loads_that_hang_keep_nobody_waiting_who_needs_none(own: bool) -> None:
    """4 tenants with 64 requests each for adapters that never come, or one tenant's own."""
    rig = make_rig()
    for t in range(4):
        for i in range(64):
            ref = make_ref(f"cold{t}/{0 if own else i}")
            tenant = make_tenant("me" if own else f"t{t}")
            rig.engine.submit(make_request(f"{t}/{i}", [1] * 4, tenant=tenant, adapter=ref))
    rig.engine.step()
    submit_last(rig, "base", [2] * 4, make_tenant("me"))
    assert started_after(rig, "base") == 1


def submit_copies(rig: Rig, tenant: str, count: int) -> None:
    """Requests for as many large adapters in host memory, whose copies hang."""
    rig.loader.instant, rig.adapter_copier.instant = True, False
    for i in range(count):
        ref = make_ref(f"large {tenant}/{i}", rank=8)
        rig.loader.tiers[ref.digest] = "host"  # so that it needs none of the tenant's places
        rig.engine.submit(
            make_request(f"{tenant}/{i}", [1] * 4, tenant=make_tenant(tenant), adapter=ref)
        )


@pytest.mark.parametrize("own", [False, True], ids=["others'", "its own"])
def test_copies_of_large_adapters_keep_nobody_waiting_who_needs_none(own: bool) -> None:
    rig = make_rig(max_adapters=64, at_once_bytes=0)
    for tenant in ("me",) if own else ("a", "b", "c"):
        submit_copies(rig, tenant, 299)
    for _ in range(12):
        rig.engine.step()
    assert rig.memory.arrivals.in_flight
    submit_last(rig, "base", [2] * 4, make_tenant("me"))
    assert started_after(rig, "base") == 1
    while rig.engine.has_work or rig.adapter_copier.in_flight:
        for copy in list(rig.adapter_copier.in_flight):
            rig.adapter_copier.finish(copy)
        rig.engine.step()
        rig.engine.check_integrity()
    assert not rig.engine.stats().waiting


def test_small_adapters_that_take_turns_to_come_keep_nobody_waiting_who_needs_none() -> None:
    rig = make_rig(num_pages=2000, max_adapters=400)
    rig.loader.instant = True
    for i in range(299):
        ref, tenant = make_ref(f"small{i}"), make_tenant("me")
        rig.loader.tiers[ref.digest] = "host"
        rig.engine.submit(make_request(f"{i}", [1] * 4, tenant=tenant, adapter=ref, **_FOREVER))
    rig.engine.step()
    submit_last(rig, "base", [2] * 4, make_tenant("me"))
    assert started_after(rig, "base") is not None


def keep_on_host(rig: Rig, tenant: Tenant, prefixes: list[list[int]]) -> None:
    """Serve prompts until the KV of the first ones is in host memory alone."""
    rig.copier.instant = True
    for number, prefix in enumerate(prefixes):
        request_id = f"{tenant.key}/kept{number}"
        rig.engine.submit(make_request(request_id, prefix, tenant=tenant, max_tokens=1))
        while rig.engine.has_work:
            rig.engine.step()
    rig.copier.instant = False


def test_kv_that_comes_from_the_host_keeps_nobody_waiting_who_needs_none() -> None:
    """Each of 290 requests waits for one of the fetches in flight, or for a place among them."""
    rig = make_rig(num_pages=250, host_pages=4000)
    me, prefixes = make_tenant("me"), [[number] * 100 for number in range(1, 21)]
    keep_on_host(rig, me, prefixes)
    for i in range(290):
        rig.engine.submit(make_request(f"{i}", [*prefixes[i % 8], i % 90], tenant=me))
    for _ in range(4):
        rig.engine.step()
    assert 0 < len(rig.memory.fetches) <= MAX_FETCHES
    rig.engine.submit(make_request("base", [2] * 4, tenant=me))
    assert started_after(rig, "base") == 1
    while rig.engine.has_work or rig.copier.in_flight:
        for copy in list(rig.copier.in_flight):
            rig.copier.finish(copy)
        rig.now_s += 0.1
        rig.engine.step()
        rig.engine.check_integrity()
    assert not rig.engine.stats().waiting


def test_without_a_free_slot_who_needs_none_starts() -> None:
    """All slots are held, and 70 requests of one tenant want another one for longer than others may
    pass them: the base model and adapters on the device are served all the same."""
    rig = make_rig()
    hold_all_slots(rig)
    many = make_tenant("many")
    for i in range(70):
        ref = make_ref(f"cold{i}")
        rig.engine.submit(make_request(f"cold{i}", [1], tenant=many, adapter=ref, max_tokens=1))
    for _ in range(2 * SLOT_PATIENCE_STEPS):
        for digest in list(rig.loader.in_flight):
            rig.loader.finish(digest)
        rig.engine.step()
    submit_last(rig, "base", [2] * 4, many)
    assert started_after(rig, "base") == 1
    resident = make_ref(f"held{SLOTS - 1}")  # the first one is drained for the tenant by now
    submit_last(rig, "resident", [3], make_tenant("r"), adapter=resident)
    assert started_after(rig, "resident") == 1


def test_a_stream_for_one_adapter_shares_its_slots_with_others_and_delays_nobody_else() -> None:
    """One slot and two streams, each for an adapter of its own: they take turns, while requests for
    the base model start at once."""
    rig = make_rig(max_adapters=1)
    rig.loader.instant = True
    done = {"x": 0, "y": 0, "base": 0}
    for number in range(600):
        for name in ("x", "y"):
            if number % 3 == 0:
                ref, tenant = make_ref(name), make_tenant(name)
                request_id = f"{name}{number}"
                rig.engine.submit(
                    make_request(request_id, [1], tenant=tenant, adapter=ref, ignore_eos=True)
                )
        if number % 50 == 10:
            rig.engine.submit(make_request(f"base{number}", [1], tenant=make_tenant("base")))
            assert started_after(rig, f"base{number}", 1) == 1
        for event in rig.engine.step():
            if isinstance(event, FinishEvent):
                done[event.request_id.rstrip("0123456789")] += 1
    assert min(done["x"], done["y"]) > 60


def test_while_a_slot_cannot_be_given_up_yet_who_ends_before_starts_on_it() -> None:
    """One slot, on which its tenant has a long stream and short requests; another tenant waits for
    it. The short ones wait only once they would keep the slot longer than the stream does."""
    rig = make_rig(max_adapters=1)
    rig.loader.instant = True
    own, ref = make_tenant("own"), make_ref("own")
    stream = make_request("stream", [1], tenant=own, adapter=ref, max_tokens=200, ignore_eos=True)
    rig.engine.submit(stream)
    rig.engine.step()
    rig.engine.step()
    other = make_request("other", [1], tenant=make_tenant("other"), adapter=make_ref("other"))
    rig.engine.submit(other)
    for _ in range(2 * SLOT_PATIENCE_STEPS):
        rig.engine.step()
    rig.engine.submit(make_request("short", [2], tenant=own, adapter=ref, max_tokens=8))
    assert started_after(rig, "short") == 1
    more = make_request("more", [3], tenant=own, adapter=ref, max_tokens=180, ignore_eos=True)
    rig.engine.submit(more)
    assert started_after(rig, "more", 30) is None
    states = {"other": 0, "more": 0}
    for number in range(1, 400):
        for event in rig.engine.step():
            if isinstance(event, FinishEvent) and event.request_id in states:
                states[event.request_id] = number
    assert 0 < states["other"] < states["more"]


def test_a_tenant_with_many_adapters_takes_no_slots_of_who_has_no_more() -> None:
    """Each of four tenants uses one slot all the time; one of them wants 30 adapters more. The
    others' requests never wait."""
    rig = make_rig()
    rig.loader.instant = True
    for number in range(400):
        if number % 5 == 0:
            for t in range(SLOTS):
                rig.engine.submit(
                    make_request(
                        f"{t}/{number}",
                        [1],
                        tenant=make_tenant(f"t{t}"),
                        adapter=make_ref(f"own{t}"),
                        ignore_eos=True,
                        max_tokens=12,
                    )
                )
        if number % 10 == 5:
            ref = make_ref(f"more{number % 30}")
            more = make_request(f"more{number}", [1], tenant=make_tenant("t0"), adapter=ref)
            rig.engine.submit(more)
        rig.engine.step()
        for t in range(1, SLOTS):
            own = [
                flight.sequences[0].state
                for request_id, flight in rig.engine._scheduler.requests.flights.items()
                if request_id.startswith(f"{t}/")
            ]
            assert SequenceState.WAITING not in own


def test_a_drain_ends_when_who_it_is_for_lacks_its_adapter_again() -> None:
    """While A waits for the only slot its adapter goes from host memory, and its next load hangs.
    B's requests for the adapter on the device, which was drained for A, go on."""
    rig = make_rig(max_adapters=1)
    a, b, held = make_tenant("a"), make_tenant("b"), make_ref("held")
    stream = make_request("hold", [1], tenant=b, adapter=held, max_tokens=150, ignore_eos=True)
    rig.engine.submit(stream)
    finish_loads(rig)
    rig.engine.step()
    for i in range(10):
        cold = make_ref(f"hanging once more/{i}")
        rig.engine.submit(make_request(f"a{i}", [1], tenant=a, adapter=cold))
    for wait_s in (0.0, 0.0, 2 * PATIENCE_S):  # then what is ready is left to host memory
        for digest in list(rig.loader.in_flight):
            rig.loader.finish(digest)
        rig.now_s += wait_s
        rig.engine.step()
    done: set[str] = set()
    for number in range(400):
        finish_loads(rig)
        if number % 20 == 0 and number < 300:
            later = make_request(f"b{number}", [1], tenant=b, adapter=held, max_tokens=5)
            rig.engine.submit(later)
        done |= {event.request_id for event in rig.engine.step() if isinstance(event, FinishEvent)}
        rig.engine.check_integrity()
    assert {f"b{number}" for number in range(0, 300, 20)} <= done
    assert not rig.engine.has_work, "all that waits, waits for loads that hang"


def test_a_drained_slot_is_not_kept_for_one_that_finds_no_pages() -> None:
    """A's long prompt finds no pages while its own stream runs; the slot that was given up for it
    is used by those who can start meanwhile."""
    rig = make_rig(num_pages=105, max_adapters=1)
    rig.loader.instant = True
    a, b, c = with_shares("a", 0.01, 0.6), with_shares("b", 0.3, 0.5), with_shares("c", 0.3, 0.5)
    long: dict[str, Any] = {"max_tokens": 105, "ignore_eos": True}
    came: dict[str, int] = {}
    took: dict[str, int] = {}
    for number in range(400):
        if number % 10 == 0 and number < 300:
            own = make_request(
                f"b{number}",
                [number % 90],
                tenant=b,
                adapter=make_ref("x"),
                max_tokens=12,
                ignore_eos=True,
            )
            rig.engine.submit(own)
            came[own.request_id] = number
        if number == 3:
            own = make_request("own", [3] * 8, tenant=a, max_tokens=240, ignore_eos=True)
            rig.engine.submit(own)
            rig.engine.submit(make_request("other", [5] * 100, tenant=c, **long))
        if number == 5:
            ref = make_ref("z")
            rig.engine.submit(make_request("a", [4] * 200, tenant=a, adapter=ref, max_tokens=2))
        for event in rig.engine.step():
            if isinstance(event, FinishEvent):
                took[event.request_id] = number - came.get(event.request_id, 0)
    assert "a" in took
    assert max(took[request_id] for request_id in came) < 40


def test_a_turn_for_a_slot_that_nobody_could_give_up_holds_up_nobodys_behind_it() -> None:
    """A shares one adapter with C, so that none can be drained for its second one; B, whose turn is
    after A's, uses none and gets a slot of another's."""
    rig = make_rig(max_adapters=2)
    rig.loader.instant = True
    first = make_tenant("a", tier="priority")

    def stream(number: int) -> None:
        for name, ref, tenant in (
            ("a", "both", first),
            ("c", "both", make_tenant("c")),
            ("d", "d", make_tenant("d")),
        ):
            rig.engine.submit(
                make_request(
                    f"{name}{number}", [1], tenant=tenant, adapter=make_ref(ref), ignore_eos=True
                )
            )

    for number in range(400):
        if number % 3 == 0:
            stream(number)
        if number == 10:
            more = make_request("more", [1], tenant=first, adapter=make_ref("more"))
            rig.engine.submit(more)
        if number == 20:
            rig.engine.submit(
                make_request("b", [1], tenant=make_tenant("b"), adapter=make_ref("b"))
            )
        rig.engine.step()
    assert "b" not in rig.engine._scheduler.requests.flights


def test_however_many_flood_the_queue_there_is_room_for_the_next_tenant() -> None:
    rig = make_rig()
    for t in range(20):
        with contextlib.suppress(QueueFullError):
            for i in range(300):
                ref, tenant = make_ref(f"hanging/{t}/{i % 20}"), make_tenant(f"t{t}")
                rig.engine.submit(make_request(f"{t}/{i}", [1], tenant=tenant, adapter=ref))
    rig.engine.submit(make_request("mine", [1], tenant=make_tenant("mine")))
    assert started_after(rig, "mine") == 1


@dataclass(frozen=True)
class Crowd:
    """What one tenant waits for, and how many requests of it."""

    waits_for: str
    count: int


CROWDS = st.builds(
    Crowd,
    st.sampled_from(["hanging load", "coming load", "full share", "slot", "grammar", "own slot"]),
    st.integers(1, MOST_WAITING // 50),
)


def submit_crowd(rig: Rig, number: int, crowd: Crowd) -> None:
    share = 0.0125 if crowd.waits_for == "full share" else 0.0
    tenant = with_shares(f"t{number}", share, share or 0.6)
    for i in range(crowd.count):
        adapter, prompt = None, [number % 90, i % 90, 3]
        if crowd.waits_for == "full share":
            prompt = [number % 90, i % 90] * 4
        elif crowd.waits_for == "own slot":
            adapter = make_ref(f"own{number}")
        elif crowd.waits_for != "grammar":
            adapter = make_ref(f"{crowd.waits_for}/{number}/{i % 20}")
        rig.engine.submit(
            make_request(f"{number}/{i}", prompt, tenant=tenant, adapter=adapter, **_FOREVER)
        )


def finish_loads(rig: Rig) -> None:
    for digest in list(rig.loader.in_flight):
        if "hanging" not in digest:
            rig.loader.finish(digest)


@settings(max_examples=25)
@given(st.lists(CROWDS, min_size=1, max_size=50), st.integers(0, 6))
@example([Crowd("hanging load", 20)] * 50, 1)
@example([Crowd("slot", 20)] * 50, 6)
@example([Crowd("full share", 20)] * 50, 2)
def test_whatever_fifty_tenants_wait_for_who_needs_none_of_it_starts_within_four_steps(
    crowds: list[Crowd], steps_before: int
) -> None:
    rig = make_rig()
    hold_all_slots(rig)
    for number, crowd in enumerate(crowds):
        if crowd.waits_for != "grammar":  # compiled before it comes to the scheduler
            submit_crowd(rig, number, crowd)
    for _ in range(steps_before):
        finish_loads(rig)
        rig.engine.step()
    free = rig.config.engine.max_running - len(rig.engine._scheduler.running)
    mine = with_shares("mine", 0.2, 1.0)
    submit_last(rig, "mine", [7] * 9, mine)
    steps = started_after(rig, "mine")
    assert steps is not None or free <= 0
