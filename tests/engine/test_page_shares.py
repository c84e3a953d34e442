"""Pages are shared as places are: who waits below its share takes some of who is furthest beyond
its own, and who grows takes none of those that hold little."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest

from engine_fakes import Rig, fix_step_time, make_config, make_ref, make_request, make_tenant, run
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.memory.adapter_arrivals import AT_ONCE_BYTES
from tenora_engine.memory.adapter_cache import KEPT_STEPS
from tenora_engine.request import GenerationRequest, Tenant
from tenora_engine.scheduling.page_shares import PageShares
from tenora_engine.sequence import Sequence, SequenceState

NUM_PAGES = 200
MOST_STEPS = 8
_LONG: dict[str, Any] = {"max_tokens": 180, "ignore_eos": True}


def with_shares(tenant: Tenant, least: float, most: float = 1.0) -> Tenant:
    return msgspec.structs.replace(tenant, min_memory_share=least, max_memory_share=most)


def make_rig(num_pages: int = NUM_PAGES, **more: Any) -> Rig:
    at_once_bytes = more.pop("at_once_bytes", AT_ONCE_BYTES)
    config = make_config(
        num_pages=num_pages,
        max_running=more.pop("max_running", 64),
        max_step_tokens=512,
        max_prefill_chunk=256,
        max_waiting=500,
        max_tenant_waiting=300,
        context_tokens=400,
        **more,
    )
    rig = Rig.build(config, at_once_bytes=at_once_bytes)
    fix_step_time(rig, 0.03)
    return rig


def step(rig: Rig) -> list[Any]:
    rig.now_s += 0.03
    events = rig.engine.step()
    rig.engine.check_integrity()
    return list(events)


def sequence_state(rig: Rig, request_id: str) -> SequenceState:
    flight = rig.engine._scheduler.requests.flights.get(request_id)
    return SequenceState.FINISHED if flight is None else flight.sequences[0].state


def steps_until_started(rig: Rig, request_id: str, most: int = 100) -> int:
    for number in range(1, most + 1):
        step(rig)
        if sequence_state(rig, request_id) is not SequenceState.WAITING:
            return number
    return most + 1


def fill(rig: Rig, tenant: Tenant, count: int = 40, steps: int = 60) -> None:
    """The tenant's answers grow until they hold all the pages."""
    for number in range(count):
        prompt = [number % 90, *range(11)]
        rig.engine.submit(make_request(f"{tenant.key}/{number}", prompt, tenant=tenant, **_LONG))
    for _ in range(steps):
        step(rig)
    assert rig.memory.pool.num_free < count


A, B = make_tenant("a"), make_tenant("b")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (A, B),
        (A, with_shares(B, 0.5)),
        (with_shares(A, 0.0, 0.4), with_shares(B, 0.3)),
        (A, make_tenant("b", tier="priority")),
        (A, make_tenant("b", weight=100.0)),
        (with_shares(make_tenant("a", weight=100.0), 0.0, 0.4), B),
    ],
    ids=["equal", "guaranteed", "beyond its maximum", "class", "weight", "beyond, and heavier"],
)
def test_who_waits_below_its_share_of_the_pages_takes_them(a: Tenant, b: Tenant) -> None:
    """A's answers hold all the pages, and go on for long; B's prompt needs a third."""
    rig = make_rig()
    fill(rig, a)
    rig.engine.submit(make_request("b", [5] * (NUM_PAGES * 4 // 3), tenant=b, max_tokens=2))
    assert steps_until_started(rig, "b") <= MOST_STEPS
    assert rig.engine._scheduler.running, "nobody gives up more than is needed"


def test_the_only_sequence_of_a_tenant_gives_way_and_comes_to_its_end() -> None:
    """It holds nearly all the pages; another's small requests come one after another."""
    rig = make_rig(num_pages=100)
    rig.engine.submit(make_request("a", [7] * 350, tenant=A, max_tokens=50, ignore_eos=True))
    for _ in range(40):
        step(rig)
    assert rig.memory.pool.num_free < 5
    for number in range(400):
        flights = rig.engine._scheduler.requests.flights
        if "a" not in flights:
            break
        if len(flights) == 1:
            request = make_request(
                f"b{number}", [number % 90] * 40, tenant=B, max_tokens=9, ignore_eos=True
            )
            rig.engine.submit(request)
            if number == 0:
                assert steps_until_started(rig, "b0") <= MOST_STEPS
        step(rig)
    assert "a" not in rig.engine._scheduler.requests.flights


@pytest.mark.parametrize("tier", ["default", "flex"])
def test_who_grows_takes_no_pages_of_those_that_hold_little(tier: str) -> None:
    """A's answers grow beyond all the pages there are; B holds a twentieth of them at most."""
    rig = make_rig()
    b = make_tenant("b", tier=tier)
    fill(rig, A)
    preempted: Counter[str] = Counter()
    for number in range(300):
        flights = rig.engine._scheduler.requests.flights
        if sum(name.startswith("b") for name in flights) < 2:
            prompt = [number % 90] * 6
            request = make_request(f"b{number}", prompt, tenant=b, max_tokens=14, ignore_eos=True)
            rig.engine.submit(request)
        if sum(name.startswith("a") for name in flights) < 40:
            more = make_request(f"a+{number}", [number % 90, 1, 2], tenant=A, **_LONG)
            rig.engine.submit(more)
        step(rig)
        meters = rig.engine._scheduler.telemetry._meters.values()
        preempted = Counter({meter.tenant: meter.preemptions for meter in meters})
    assert preempted["a"] > 20
    assert preempted["b"] == 0


def submit_large(rig: Rig, tenant: Tenant) -> None:
    ref = make_ref("large", rank=8)
    rig.loader.tiers[ref.digest] = "host"
    rig.engine.submit(make_request("b", [5] * 12, tenant=tenant, adapter=ref, max_tokens=2))


@pytest.mark.parametrize("copy_steps", [1, 20, 60])
def test_an_adapter_that_has_come_is_kept_for_who_waits_for_it(copy_steps: int) -> None:
    """Others' answers grow beyond all the pages there are while it is copied."""
    rig = make_rig(at_once_bytes=0, max_adapters=8)
    rig.adapter_copier.instant = False
    fill(rig, A)
    submit_large(rig, B)
    for number in range(10):
        if rig.adapter_copier.in_flight:
            break
        assert number < 9
        step(rig)
    for _ in range(copy_steps):
        step(rig)
    (copy,) = rig.adapter_copier.in_flight
    rig.adapter_copier.finish(copy)
    assert steps_until_started(rig, "b") <= MOST_STEPS
    assert rig.memory.arrivals.counters()["adapter_copies"] == 1


def test_who_grows_gives_up_what_comes_for_itself() -> None:
    """The only tenant's answers need the pages into which its adapter is being copied."""
    rig = make_rig(at_once_bytes=0, max_adapters=8)
    rig.adapter_copier.instant = False
    for number in range(20):
        rig.engine.submit(make_request(f"a/{number}", [number] * 12, tenant=A, **_LONG))
    step(rig)
    submit_large(rig, A)
    while not rig.adapter_copier.in_flight:
        step(rig)
    while not rig.memory.arrivals.counters()["adapter_copies_cancelled"]:
        step(rig)
    meters = rig.engine._scheduler.telemetry._meters.values()
    assert sum(meter.preemptions for meter in meters) == 0


def test_an_adapter_is_not_kept_for_ever_for_one_that_cannot_start() -> None:
    """All places are taken, so that it cannot start: its pages are of use to others again."""
    rig = make_rig(at_once_bytes=0, max_adapters=8, max_running=4)
    for number in range(4):
        rig.engine.submit(make_request(f"{number}", [number] * 4, tenant=A, **_LONG))
    step(rig)
    submit_large(rig, A)
    for _ in range(5):
        step(rig)
    kept = [item.kept_for for item in rig.memory.adapters.residents()]
    if kept == ["a"]:
        for _ in range(KEPT_STEPS):
            step(rig)
    assert not rig.memory.adapters.keeps_any
    assert sequence_state(rig, "b") is SequenceState.WAITING


class Others:
    """Tenants that ask for all kinds of things without end, in an arena that is too small."""

    def __init__(self, seed: int, *, strict: bool, guaranteed: float) -> None:
        self.random = pick = random.Random(seed)
        self.rig = make_rig(
            num_pages=pick.choice([100, 200, 400]),
            strict_isolation=strict,
            host_pages=pick.choice([0, 100]),
            prefix_caching=pick.random() < 0.8,
            at_once_bytes=pick.choice([0, AT_ONCE_BYTES]),
            max_adapters=32,
        )
        self.total = self.rig.config.num_pages
        self.tenants = [
            self._tenant(number, strict, (1 - guaranteed) / 4 - 0.01) for number in range(4)
        ]
        self.lengths: dict[Sequence, list[int]] = defaultdict(list)  # where they were preempted
        self.submitted = self.tokens = 0
        preempt = self.rig.engine._scheduler.requests.preempt

        def preempt_noted(sequence: Sequence) -> None:
            self.lengths[sequence].append(len(sequence.token_ids))
            preempt(sequence)

        self.rig.engine._scheduler.requests.preempt = preempt_noted  # type: ignore[method-assign]

    def _tenant(self, number: int, strict: bool, most: float) -> Tenant:
        pick = self.random
        tier = pick.choice(["default", "default", "priority", "flex"])
        tenant = make_tenant(f"t{number}", pick.choice([1.0, 1.0, 20.0]), tier=tier)
        if strict:
            return with_shares(tenant, most)
        least = pick.choice([0.0, 0.0, most])
        return with_shares(tenant, least, pick.choice([max(least, 0.3), 1.0]))

    def step(self) -> list[Any]:
        pick = self.random
        while len(self.rig.engine._scheduler.requests.flights) < 60:
            tenant = pick.choice(self.tenants)
            most = int(self.total * (tenant.min_memory_share if self._is_strict else 0.3)) * 4
            length = min(pick.choice([3, 10, 30, 100]), most // 3)
            request = make_request(
                f"r{self.submitted}",
                [pick.randint(0, 3), *([self.submitted % 90] * length)],
                tenant=tenant,
                adapter=pick.choice([None, None, make_ref(f"a{pick.randint(0, 3)}", 1)]),
                max_tokens=min(pick.choice([5, 50, 180]), most // 3),
                ignore_eos=True,
            )
            self.submitted += 1
            self.rig.engine.submit(request)
        events = step(self.rig)
        self.tokens += sum(len(e.token_ids) for e in events if isinstance(e, TokenEvent))
        return events

    @property
    def _is_strict(self) -> bool:
        return self.rig.config.engine.strict_isolation


@pytest.mark.parametrize("strict", [False, True], ids=["shared", "strict"])
@pytest.mark.parametrize("seed", range(5))
def test_within_its_guaranteed_pages_a_tenant_starts_whatever_others_run(
    seed: int, strict: bool
) -> None:
    guaranteed = 0.3
    others = Others(seed, strict=strict, guaranteed=guaranteed)
    rig, b = others.rig, with_shares(B, guaranteed)
    rig.engine.submit(make_request("first", [1], tenant=b, max_tokens=1))
    for number in range(4):
        for _ in range(20):
            others.step()
        request_id, most = f"b{number}", int(others.total * guaranteed) * 4
        length = others.random.randint(1, min(most, 400) - 8)
        rig.engine.submit(make_request(request_id, [number] * length, tenant=b, max_tokens=4))
        waited = 0
        while sequence_state(rig, request_id) is SequenceState.WAITING:
            others.step()
            waited += 1
            assert waited <= MOST_STEPS
        while request_id in rig.engine._scheduler.requests.flights:
            others.step()


@pytest.mark.parametrize(("least", "most"), [(0.0, 1.0), (0.0, 0.9), (0.1, 1.0)])
def test_a_long_prompt_is_not_passed_for_ever_by_tenants_with_partitions(
    least: float, most: float
) -> None:
    """They stay within their minimum now, and not with the pages that they ask for. Who lacks a
    page in the partition of the one that waits does not starve with it."""
    rig, number = make_rig(num_pages=100, prefix_caching=False), 0
    crowd = [with_shares(make_tenant(name), least, most) for name in "bcd"]
    long, small = make_tenant("long"), make_tenant("small")
    ended: Counter[str] = Counter()

    def ask(tenant: Tenant, name: str, prompt: int, output: int) -> None:
        request = make_request(
            name, [number % 90] * prompt, tenant=tenant, max_tokens=output, ignore_eos=True
        )
        rig.engine.submit(request)

    for now in range(400):
        flights = rig.engine._scheduler.requests.flights.values()
        running = Counter(flight.request.tenant.key for flight in flights)
        for place, tenant in enumerate(crowd):
            for _ in range(max(2 - running[tenant.key], 0) if now >= place * 13 else 0):
                number += 1
                ask(tenant, f"{tenant.key}/{number}", 80 + place, 40)
        if now == 90:
            ask(long, "long/0", 240, 4)
        if now >= 170 and not running["small"]:
            number += 1
            ask(small, f"small/{number}", 3, 3)
        for event in step(rig):
            if isinstance(event, FinishEvent):
                ended[event.request_id.partition("/")[0]] += 1
    assert ended["long"] == 1
    assert ended["small"] >= 50, "one in four steps"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_preempted_for_ever_and_most_of_what_is_computed_is_new(seed: int) -> None:
    others = Others(seed, strict=False, guaranteed=0.3)
    for _ in range(250):
        others.step()
    for lengths in others.lengths.values():
        in_vain = Counter(lengths)
        assert max(in_vain.values()) <= 4, "it goes on between two preemptions"
    assert others.rig.executor.computed_tokens < 8 * others.tokens
    run(others.rig, 0.03)
    assert not others.rig.engine.has_work


def test_two_tenants_with_equal_shares_do_not_preempt_each_other_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have more that waits than there are pages for."""
    rig = make_rig()
    given: list[Sequence] = []
    givers = PageShares.givers

    def givers_noted(*args: Any) -> list[Sequence] | None:
        found = givers(*args)
        given.extend(found or ())
        return found

    monkeypatch.setattr(PageShares, "givers", givers_noted)
    for number in range(300):
        for tenant in (A, B):
            flights = rig.engine._scheduler.requests.flights
            for place in range(sum(name.startswith(tenant.key) for name in flights), 20):
                request_id, prompt = f"{tenant.key}{number}/{place}", [number % 90] * 12
                rig.engine.submit(
                    make_request(request_id, prompt, tenant=tenant, ignore_eos=True, max_tokens=60)
                )
        step(rig)
    assert len(given) < rig.engine._scheduler.requests.counters.requests_finished / 4


def test_an_answer_is_the_same_whoever_took_its_pages() -> None:
    rig = make_rig()
    fill(rig, A)
    for number in range(6):
        rig.engine.submit(make_request(f"b{number}", [number] * 60, tenant=B, max_tokens=8))
    events = run(rig, 0.03)  # the executor reads every context back
    assert sum(isinstance(event, FinishEvent) for event in events) == 46


def submit_behind(rig: Rig, request: GenerationRequest) -> None:
    """Its tenant has had so much service that its turn is after everybody's."""
    first = msgspec.structs.replace(request, request_id="before", prompt_token_ids=[9])
    rig.engine.submit(first)
    (sequence,) = rig.engine._scheduler.requests.flights["before"].sequences
    rig.engine.abort("before")
    rig.engine._scheduler.queue.charge(sequence, 1e6)
    rig.engine.submit(request)


@pytest.mark.parametrize(("num_others", "resent"), [(1, True), (20, False)])
def test_claims_that_fail_take_nobody_elses(num_others: int, resent: bool) -> None:
    """Those of one tenant whose requests are cancelled and sent again, or of many tenants; each is
    so large that others would fall below their level by it. Whoever finds nothing is charged
    nothing, so their turns stay before those of a tenant that is within its guaranteed pages."""
    config = make_config(
        num_pages=1000,
        max_running=200,
        max_step_tokens=2000,
        max_prefill_chunk=500,
        max_waiting=4096,
        max_tenant_waiting=2000,
        context_tokens=3000,
    )
    rig, quiet = Rig.build(config, instant=True, eos_every=1 << 30), with_shares(B, 0.3)
    rig.engine.submit(make_request("first", [1], tenant=quiet, max_tokens=1))
    for number in range(40):
        request = make_request(
            f"a/{number}",
            [number, 1, 2, 3] * 10,
            tenant=with_shares(A, 0.05),
            max_tokens=2500,
            ignore_eos=True,
        )
        rig.engine.submit(request)
    for _ in range(100):
        step(rig)
    sent: list[str] = []
    for now in range(60):
        if not sent or resent:
            for request_id in sent:
                rig.engine.abort(request_id)
            sent = [f"large/{now}/{k}" for k in range(4 * num_others)]
            for k, request_id in enumerate(sent):
                tenant, prompt = make_tenant(f"large{k % num_others}"), [k, now, 7] * 540
                rig.engine.submit(make_request(request_id, prompt, tenant=tenant, max_tokens=4))
        if now == 20:
            submit_behind(rig, make_request("mine", [5, 6, 7, 8] * 280, tenant=quiet, max_tokens=4))
        step(rig)
        if now >= 20 and sequence_state(rig, "mine") is not SequenceState.WAITING:
            break
    assert now == 20


def test_what_is_cached_of_a_tenant_does_not_put_it_behind_who_lacks_pages() -> None:
    """All the pages that it is guaranteed are its own cache, which makes room for it."""
    rig, quiet = make_rig(num_pages=200), with_shares(B, 0.3)
    for number in range(8):
        rig.engine.submit(make_request(f"b{number}", [number] * 40, tenant=quiet, max_tokens=1))
    while rig.engine.has_work:
        step(rig)
    holder = make_tenant("holder")
    for number in range(2):
        prompt = [40 + number] * 200
        request = make_request(f"h{number}", prompt, tenant=holder, max_tokens=190, ignore_eos=True)
        rig.engine.submit(request)
    for _ in range(10):
        step(rig)
    rig.engine.submit(make_request("large", [80, 81] * 150, tenant=make_tenant("large")))
    waited = []
    for number in range(80):
        name = f"small{number}"
        submit_behind(rig, make_request(name, [number, 3] * 4, tenant=quiet, max_tokens=1))
        waited.append(steps_until_started(rig, name))
    assert max(waited) <= 2
