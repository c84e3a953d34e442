"""Service classes in the whole engine: deadlines, limits, chunks, charges, preemption, ageing."""

from __future__ import annotations

import math
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant, run
from tenora_engine.errors import DeadlineError, InvalidRequestError, QueueFullError
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.memory.costs import CostModel
from tenora_engine.request import LateAction, Tenant
from tenora_engine.scheduling.admission import Feasibility
from tenora_engine.scheduling.arrival_turns import MAX_COLD_ADAPTERS
from tenora_engine.scheduling.chunks import LATE_PART, MIN_PREFILL_PART, ChunkSizer
from tenora_engine.scheduling.class_queue import AGE_S, CLASS_WEIGHTS, CREDIT_TOKENS, LOWEST_CLASS
from tenora_engine.scheduling.forecast import StepForecast, StepLoad
from tenora_engine.scheduling.meters import DECODE_COST, Charges
from tenora_engine.scheduling.queue import FairQueue
from tenora_engine.scheduling.tpot_promises import MARGIN
from tenora_engine.sequence import Sequence, Service, Usage

NOW_S = 1000.0


def backlog(rig: Rig, requests: int, tenant: str = "promised") -> None:
    for number in range(requests):
        rig.engine.submit(
            make_request(
                f"b{number}", [1] * 30, tenant=make_tenant(tenant), max_tokens=2, ignore_eos=True
            )
        )


def promised(late: LateAction, ttft_ms: float = 100.0) -> Tenant:
    return make_tenant("promised", tier="default", ttft_ms=ttft_ms, late=late)


def test_what_cannot_be_in_time_is_refused_and_taken_after_the_time_it_was_told() -> None:
    """The clock gives a token a millisecond: the cost model's first guess."""
    rig = Rig.build(make_config(num_pages=64, max_running=1))
    backlog(rig, 20)
    with pytest.raises(
        DeadlineError, match=r"after \d+ ms, but this plan promises it within 100 ms"
    ) as refused:
        rig.engine.submit(make_request("late", [2] * 30, tenant=promised("refuse")))
    assert rig.engine.stats().counters["requests_refused"] == 1
    assert rig.engine.stats().waiting == 20
    rig.engine.check_integrity()
    told_s = refused.value.retry_after_ms / 1000
    assert 0 < told_s < 30 * 20 / 1000
    until_s = rig.now_s + told_s
    while rig.now_s < until_s:
        rig.engine.step()
        rig.now_s += rig.executor.plans[-1].num_tokens / 1000
    again = make_request("again", [2] * 30, tenant=promised("refuse"))
    rig.engine.submit(again)


def test_anothers_backlog_does_not_make_a_tenant_within_its_share_late() -> None:
    rig = Rig.build(make_config(num_pages=64, max_running=1))
    backlog(rig, 20, "noisy")
    rig.engine.submit(make_request("r", [2] * 30, tenant=promised("refuse")))
    done = [e.request_id for e in run(rig, 0.01) if isinstance(e, FinishEvent)]
    assert done.index("r") <= 1


def test_a_refused_requests_adapter_is_fetched_for_the_next_try() -> None:
    rig = Rig.build(make_config())
    rig.memory.costs.observe_load(1, 1e6)  # loads take for ever
    ref = make_ref("cold")
    with pytest.raises(DeadlineError):
        rig.engine.submit(make_request("r", [1], tenant=promised("refuse"), adapter=ref))
    assert rig.loader.started == [ref.digest]
    assert run(rig) == []
    rig.engine.submit(make_request("r", [1], tenant=promised("refuse"), adapter=ref))
    assert len(run(rig)) > 1


def test_a_relegated_request_is_metered_and_told_as_what_serves_it() -> None:
    """At submission and after it has waited; others as what they asked for."""
    rig = Rig.build(make_config(num_pages=64, max_running=1))
    backlog(rig, 20)
    late = make_tenant("promised", tier="priority", ttft_ms=1e-3, late="relegate")
    rig.engine.submit(make_request("at_once", [2] * 30, tenant=late, n=2))
    rig.engine.submit(make_request("later", [2] * 3, tenant=promised("relegate", ttft_ms=2e5)))
    rig.now_s += 200.0
    told: dict[str, str | None] = {}
    billed: dict[str, str] = {}
    for event in run(rig, 0.01):
        if isinstance(event, TokenEvent):
            told.setdefault(event.request_id, event.tier)
        elif isinstance(event, FinishEvent):
            billed[event.request_id] = event.usage.tier
    assert (told["at_once"], billed["at_once"]) == (LOWEST_CLASS, LOWEST_CLASS)
    assert (told["later"], billed["later"]) == (LOWEST_CLASS, LOWEST_CLASS)
    assert (told["b0"], billed["b0"]) == (None, "default")


@pytest.mark.parametrize(
    "field",
    [
        {"weight": weight}
        for weight in (1e-308, 0.0099, 100.1, 0.0, -1.0, math.inf, -math.inf, math.nan)
    ]
    + [{name: bad} for name in ("ttft_ms", "tpot_ms") for bad in (0.0, -1.0, math.nan, math.inf)]
    + [{"min_memory_share": math.nan}, {"min_memory_share": -0.1}, {"max_memory_share": 1.5}],
)
def test_a_plan_that_would_break_the_order_for_everybody_is_refused(
    field: dict[str, float],
) -> None:
    """A weight of 1e-308 made counters infinite, and then the engine divided itself to death."""
    rig = Rig.build(make_config())
    tenant = msgspec.structs.replace(make_tenant("odd"), **field)
    with pytest.raises(InvalidRequestError, match=next(iter(field))):
        rig.engine.submit(make_request("odd", [1] * 10, tenant=tenant))
    rig.engine.announce(make_request("odd", [1], tenant=tenant))
    rig.engine.submit(make_request("r", [1] * 10))
    assert {event.request_id for event in run(rig)} == {"r"}


@pytest.mark.parametrize("weight", [0.01, 100.0])
def test_the_least_and_the_greatest_weight_are_served(weight: float) -> None:
    rig = Rig.build(make_config(max_running=2))
    odd = make_tenant("odd", weight)
    for number in range(6):
        rig.engine.submit(make_request(f"o{number}", [1] * 10, tenant=odd, ignore_eos=True))
        rig.engine.submit(make_request(f"r{number}", [2] * 10, ignore_eos=True))
    done = [event for event in run(rig) if isinstance(event, FinishEvent)]
    assert len(done) == 12


@pytest.mark.parametrize("late", ["relegate", "best_effort"])
def test_what_is_late_is_relegated_or_keeps_its_place(late: LateAction) -> None:
    rig = Rig.build(make_config(num_pages=64, max_running=1))
    backlog(rig, 20)
    rig.engine.submit(make_request("late", [2] * 30, tenant=promised(late)))
    (sequence,) = [
        s for s in rig.engine._scheduler.queue.sequences() if s.request.request_id == "late"
    ]
    assert sequence.service.class_name == (LOWEST_CLASS if late == "relegate" else "default")
    done = [e for e in run(rig, 0.01) if isinstance(e, FinishEvent)]
    assert len(done) == 21


@pytest.mark.parametrize("is_late_at_once", [True, False])
def test_what_is_relegated_is_promised_nothing(is_late_at_once: bool) -> None:
    """Its plan's times keep no place and no part of a step from others any more."""
    rig = Rig.build(make_config(num_pages=64, max_running=8))
    tenant = make_tenant(
        "late", ttft_ms=1e-3 if is_late_at_once else 1e4, tpot_ms=20.0, late="relegate"
    )
    scheduler = rig.engine._scheduler
    rig.engine.submit(make_request("late", [2] * 30, tenant=tenant, max_tokens=9, ignore_eos=True))
    rig.engine.submit(make_request("other", [1] * 4, tenant=make_tenant("other"), max_tokens=9))
    (sequence,) = scheduler.requests.flights["late"].sequences
    if is_late_at_once:
        assert scheduler._chunks.promises.least_s(rig.now_s) == math.inf
    else:
        assert sequence.service.tpot_s == 0.02
        rig.now_s += 20
    rig.engine.step()
    assert (sequence.service.class_name, sequence.service.tpot_s) == (LOWEST_CLASS, math.inf)
    rig.engine.step()
    assert not scheduler.running.promised_tpots
    rig.engine.check_integrity()


def test_a_single_token_is_promised_no_time_between_two() -> None:
    """Though its prompt has one token, so that it runs as if it decoded."""
    rig = Rig.build(make_config(num_pages=64, max_running=8))
    for most in (1, 2):
        tenant = make_tenant("quick", tpot_ms=20.0)
        rig.engine.submit(make_request(f"{most}", [7], tenant=tenant, max_tokens=most))
        (sequence,) = rig.engine._scheduler.requests.flights[f"{most}"].sequences
        assert (sequence.service.tpot_s == 0.02) == (most > 1)


def test_a_deadline_missed_while_waiting_relegates_and_nothing_is_lost() -> None:
    rig = Rig.build(make_config(max_running=1))
    rig.engine.submit(make_request("first", [1] * 4, ignore_eos=True))
    rig.engine.step()
    rig.engine.submit(make_request("late", [2] * 4, tenant=promised("relegate")))
    done = [e.request_id for e in run(rig, 1.0) if isinstance(e, FinishEvent)]
    assert done == ["first", "late"]
    assert rig.engine.stats().counters["relegations"] == 1


def test_a_tenants_queue_is_bounded_and_others_still_get_in() -> None:
    rig = Rig.build(make_config(max_waiting=10, max_tenant_waiting=3))
    for number in range(3):
        rig.engine.submit(make_request(f"r{number}", [1]))
    with pytest.raises(QueueFullError, match="limit of 3") as refused:
        rig.engine.submit(make_request("r3", [1]))
    assert refused.value.retry_after_ms >= 1
    rig.engine.submit(make_request("r4", [1], tenant=make_tenant("other"), n=3))
    with pytest.raises(QueueFullError):
        rig.engine.submit(make_request("r5", [1], tenant=make_tenant("other")))
    run(rig)
    rig.engine.submit(make_request("r5", [1], tenant=make_tenant("other")))


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 60)), max_size=20),
    st.floats(0, 1e6),
    st.floats(0, 10),
    st.floats(0, 1e5),
)
def test_predictions_are_finite_and_grow_with_what_comes_before(
    drains: list[tuple[float, float]], before: float, load_s: float, work: float
) -> None:
    feasibility = Feasibility(CostModel(make_config()))
    for drained, seconds in drains:
        feasibility.observe_drain(drained, seconds)
    ttft_s = feasibility.ttft_s(before, load_s, work)
    assert math.isfinite(ttft_s)
    assert load_s <= ttft_s <= feasibility.ttft_s(before + 1, load_s, work)
    assert 1 <= feasibility.drain_ms(before) <= 60_000


@given(
    st.lists(st.tuples(st.floats(1, 500), st.integers(1, 50), st.floats(0, 5)), max_size=8),
    st.floats(0, 0.1),
    st.integers(1, 4096),
    st.integers(0, 100_000),
)
def test_a_chunk_is_the_largest_that_keeps_every_stream_in_time(
    streams: list[tuple[float, int, float]], decode_s: float, most: int, context: int
) -> None:
    sizer = ChunkSizer(CostModel(make_config()))
    for _ in range(100):
        sizer.forecast.observe(StepLoad(4, 400), decode_s)
    decoding, slacks = [], []
    for tpot_ms, num_output, ago_s in streams:
        request = make_request("r", [1])
        tokens = [1] * (1 + num_output)
        decoding.append(
            Sequence(
                request,
                0,
                tokens,
                num_prompt=1,
                usage=Usage(first_token_s=NOW_S - ago_s),
                service=Service(tpot_s=tpot_ms / 1000),
            )
        )
        slacks.append(max(num_output * tpot_ms / 1000 - ago_s, LATE_PART * tpot_ms / 1000))
    forecast, seconds = sizer.forecast, sizer.step_s(decoding, 4, NOW_S, most)
    if not slacks:
        assert seconds == math.inf
        return
    least_s = forecast.prefill_s(math.ceil(most / MIN_PREFILL_PART))
    chunk = forecast.tokens_within(seconds, context)

    def step_s(chunk: int) -> float:
        return MARGIN * (forecast.decode_s(4) + forecast.prefill_s(chunk, context))

    assert seconds >= least_s
    if seconds > least_s:
        assert step_s(chunk) <= min(slacks) * (1 + 1e-6) + 1e-9
    assert step_s(chunk + 1) >= min(slacks) * (1 - 1e-6) - 1e-9


def test_prefill_waits_for_streams_that_would_be_late() -> None:
    config = make_config(
        num_pages=256, max_step_tokens=200, max_prefill_chunk=200, context_tokens=400
    )
    rig = Rig.build(config)
    stream = make_tenant("stream", tpot_ms=60.0)
    rig.engine.submit(make_request("s", [1], tenant=stream, max_tokens=90, ignore_eos=True))
    rig.engine.step()
    rig.engine._scheduler._chunks.forecast = StepForecast(rig.memory.costs)  # 1 ms a token
    rig.engine.submit(make_request("long", [2] * 300, ignore_eos=True))
    rig.engine.step()
    chunk = max(item.num_tokens for item in rig.executor.plans[-1].scheduled)
    assert 200 // MIN_PREFILL_PART <= chunk <= 60 / MARGIN


def test_only_so_many_adapters_come_onto_the_device_in_one_step() -> None:
    rig = Rig.build(make_config(num_pages=64, max_adapters=20, max_running=20, max_step_tokens=20))
    number = MAX_COLD_ADAPTERS + 3
    for i in range(number):
        rig.engine.submit(make_request(f"r{i}", [1], adapter=make_ref(f"a{i}"), ignore_eos=True))
    rig.engine.step()
    assert rig.engine.stats().running == MAX_COLD_ADAPTERS
    rig.engine.step()
    assert rig.engine.stats().running == number


def test_preemption_takes_the_lowest_class_and_there_the_cheapest() -> None:
    rig = Rig.build(make_config(num_pages=20, max_prefill_chunk=16, max_step_tokens=60))
    priority = make_tenant("p", tier="priority")
    flex = make_tenant("f", tier="flex")
    rig.engine.submit(make_request("short", [1] * 5, tenant=priority, max_tokens=40))
    rig.engine.submit(make_request("long", [2] * 15, tenant=flex, max_tokens=40))
    rig.engine.submit(make_request("cheap", [3] * 7, tenant=flex, max_tokens=40))
    rig.executor.eos_every = 1 << 30
    gone: list[str] = []
    while rig.engine.has_work and not gone:
        before = {s.request.request_id for s in rig.engine._scheduler.running}
        rig.engine.step()
        if rig.engine.stats().counters["preemptions"]:
            gone += before - {s.request.request_id for s in rig.engine._scheduler.running}
    assert gone == ["cheap"]


def test_a_tenant_is_charged_for_what_it_used() -> None:
    config = make_config()
    rig = Rig.build(config)
    ref = make_ref("x", rank=8)
    charges = Charges(config, rig.memory.costs)
    rig.memory.costs.observe_load(1000, 1.0)
    rig.engine.submit(make_request("r", [1] * 6, adapter=ref, max_tokens=3, ignore_eos=True))
    scheduler = rig.engine._scheduler
    token = charges.token(ref)
    assert token == pytest.approx(1 + 8 * 7 * 8 / 1000)
    loads = []
    while rig.engine.has_work:
        plan = scheduler.schedule()
        loads.append(charges.load(2 * config.page_bytes, "store"))  # as the rates are now
        rig.executor.stage(rig.memory.operations.take_staged())
        result = rig.executor.execute(plan)
        assert result is not None
        scheduler.commit(plan, result, step_s=0.0)  # pages held for no time cost nothing
    paid = rig.engine._scheduler.queue.counter("t0", "default")
    rejected = rig.engine.stats().counters["drafts_rejected"]
    assert paid == pytest.approx(token * (6 + DECODE_COST * 3 + rejected) + loads[0])
    assert charges.kv_price == 0
    charges.observe_step(1.0)
    assert charges.kv_price * config.num_pages * rig.memory.costs.token_s == pytest.approx(1.0)


def test_a_class_alone_has_the_whole_engine() -> None:
    rig = Rig.build(make_config(num_pages=64))
    for number in range(8):
        tenant = make_tenant(tier=LOWEST_CLASS)
        rig.engine.submit(make_request(f"r{number}", [1, 2], tenant=tenant, ignore_eos=True))
    rig.engine.step()
    assert rig.engine.stats().running == 8


@given(
    st.sampled_from(sorted(CLASS_WEIGHTS)),
    st.lists(st.integers(1, 60), min_size=3, max_size=12),
    st.integers(1, 60),
    st.integers(1, 100),
    st.integers(0, 20),
)
@settings(max_examples=60)
def test_nobody_waits_past_the_ageing_bound(
    tier: str, costs: list[int], own: int, quantum: int, ahead: int
) -> None:
    """One request that its own tenant's later ones always beat on deadline, in a queue that two
    tenants of every class keep full of requests more urgent than it. Once it has aged, it starts
    before the engine has served: the work of its own tenant that came before it, as much again,
    and a quantum and a request twice, for each tenant by weight; over the share of its class, and
    what the classes may be owed from before."""
    queue = FairQueue(quantum)
    numbers = count()
    tenants = [make_tenant(f"{name}{i}", tier=name) for name in CLASS_WEIGHTS for i in (0, 1)]
    victim = next(tenant for tenant in tenants if tenant.tier == tier)

    def push(tenant: Tenant, cost: int, due_s: float, now_s: float) -> Sequence:
        sequence = Sequence(
            request=make_request("r", [1], tenant=tenant),
            index=0,
            token_ids=[1],
            num_prompt=1,
            number=next(numbers),
            service=Service(class_name=tenant.tier, work=float(cost), due_s=due_s),
        )
        queue.push(sequence, now_s)
        return sequence

    for _ in range(ahead):
        push(victim, costs[0], NOW_S, NOW_S)
    patient = push(victim, own, NOW_S + 1e9, NOW_S)
    largest = max(*costs, own)
    each = ahead * costs[0] + 2 * (quantum + largest)
    total = sum(CLASS_WEIGHTS.values())
    bound = (
        (2 * each + len(CLASS_WEIGHTS) * (CREDIT_TOKENS + largest)) * total / CLASS_WEIGHTS[tier]
    )
    now_s, served = NOW_S, 0.0
    while served <= bound:
        for tenant in tenants:
            if queue.waiting_of(tenant.key) < 3:
                push(tenant, costs[int(now_s * 10) % len(costs)], now_s, now_s)
        sequence = next(queue.candidates())
        queue.start(sequence)
        queue.charge(sequence, sequence.service.work)
        if sequence is patient:
            break
        if now_s - NOW_S > AGE_S:
            served += sequence.service.work
        now_s += 0.1
    assert sequence is patient, f"still waiting after {served} of {bound}"


def test_a_half_computed_prompt_lets_pass_whose_turn_it_is() -> None:
    """A tenant that has had its rounds is in the middle of a long prompt when another comes: the
    step's room goes to the other first, and the long prompt gets what is left."""
    config = make_config(
        num_pages=256, max_step_tokens=16, max_prefill_chunk=16, context_tokens=200
    )
    rig = Rig.build(config)
    rig.engine.submit(make_request("long", [1] * 150, tenant=make_tenant("noisy"), max_tokens=1))
    for _ in range(3):
        rig.engine.step()
    rig.engine.submit(make_request("short", [2] * 10, tenant=make_tenant("quiet"), max_tokens=1))
    rig.engine.step()
    planned = {
        i.sequence.request.request_id: i.num_tokens for i in rig.executor.plans[-1].scheduled
    }
    assert planned == {"short": 10, "long": 6}
    done = [e.request_id for e in run(rig) if isinstance(e, FinishEvent)]
    assert done[-1] == "long"
