"""Places in the running batch are shared: a tenant beyond its share gives one up to a tenant below
its own, in the order of service, and nothing that is computed changes by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_fakes import (
    ExecutedPlan,
    Rig,
    expected_output,
    fix_step_time,
    make_config,
    make_request,
    make_tenant,
    run,
)
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.request import GenerationRequest
from tenora_engine.scheduling.class_queue import AHEAD_ROUNDS, CLASS_WEIGHTS
from tenora_engine.scheduling.places import EXPRESS_PLACES
from tenora_engine.scheduling.queue import ROUNDS_A_STEP
from tenora_engine.scheduling.running import Holder, fair_shares, holder_of
from tenora_engine.step import StepPlan, StepResult

CONFIG = make_config(
    num_pages=2048,
    block_tokens=4,
    max_running=64,
    max_step_tokens=128,
    max_prefill_chunk=64,
    max_waiting=1024,
    max_tenant_waiting=512,
    context_tokens=400,
)
NOISY = make_tenant("noisy")


def flood(rig: Rig, count: int = 64, max_tokens: int = 300, n: int = 1) -> None:
    """Streams of one tenant, that run already."""
    for number in range(count):
        rig.engine.submit(
            make_request(
                f"n{number}",
                [number % 96] * 5,
                tenant=NOISY,
                max_tokens=max_tokens,
                n=n,
                ignore_eos=True,
            )
        )
    for _ in range(24):
        rig.engine.step()


def steps_to_first_token(rig: Rig, request: GenerationRequest, most: int = 400) -> int:
    rig.engine.announce(request)
    rig.engine.step()  # it comes while this one runs
    rig.engine.submit(request)
    for number in range(1, most):
        if any(event.request_id == request.request_id for event in rig.engine.step()):
            return number
    pytest.fail(f"no token in {most} steps")


def running_of(rig: Rig) -> Counter[str]:
    return Counter(s.request.tenant.key for s in rig.engine._scheduler.running)


@pytest.mark.parametrize("can_preempt", [False, True])
@pytest.mark.parametrize("tier", ["priority", "default"])
@pytest.mark.parametrize(("count", "n"), [(64, 1), (2, 32)])
def test_a_flood_of_streams_gives_up_a_place_at_once(
    can_preempt: bool, tier: str, count: int, n: int
) -> None:
    """The first token of another tenant comes in the step after it came, as alone."""
    rig = Rig.build(CONFIG, can_preempt=can_preempt)
    flood(rig, count, n=n)
    assert running_of(rig) == {"noisy": 64}
    quiet = make_tenant("quiet", tier=tier)
    for number in range(5):
        request = make_request(
            f"q{number}", [90, number] * 5, tenant=quiet, max_tokens=4, ignore_eos=True
        )
        assert steps_to_first_token(rig, request) == 1
        for _ in range(6):
            rig.engine.step()
        assert sum(running_of(rig).values()) == 64, "and the place has gone back"
    assert rig.engine.stats().counters["places_given_up"] <= 10
    rig.engine.check_integrity()


def test_a_tenant_alone_has_all_places_and_gives_none_up() -> None:
    rig = Rig.build(CONFIG)
    flood(rig, 90, max_tokens=30)
    assert running_of(rig) == {"noisy": 64}
    done = [event for event in run(rig) if isinstance(event, FinishEvent)]
    assert len(done) == 90
    assert rig.engine.stats().counters["places_given_up"] == 0


def test_order_of_arrival_takes_no_ones_place() -> None:
    """It is what others are measured against."""
    engine = msgspec.structs.replace(CONFIG.engine, scheduling_policy="fcfs")
    rig = Rig.build(msgspec.structs.replace(CONFIG, engine=engine))
    flood(rig, max_tokens=60)
    quiet = make_request("q", [1], tenant=make_tenant("quiet"), max_tokens=1, ignore_eos=True)
    assert steps_to_first_token(rig, quiet) > 20
    assert rig.engine.stats().counters["places_given_up"] == 0


def test_places_lent_to_express_steps_are_given_back_before_everybodys() -> None:
    rig = Rig.build(CONFIG, can_preempt=True)
    flood(rig)
    arrivals = [
        make_request(f"q{i}", [90, i], tenant=make_tenant(f"quiet{i}"), max_tokens=4)
        for i in range(2 * EXPRESS_PLACES)
    ]
    rig.engine.announce(arrivals[0])
    rig.engine.step()
    assert rig.executor.preemptions == 1
    for request in arrivals:
        rig.engine.submit(request)
    rig.engine.step()
    assert sum(running_of(rig).values()) == 64 + EXPRESS_PLACES
    done = run(rig)  # the runner refuses a step of more than 64
    assert sum(isinstance(event, FinishEvent) for event in done) == 64 + len(arrivals)


def filled(capacity: float, demands: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Max-min fair parts by bisection over the water's level, each part `level * weight`."""
    low, high = 0.0, max((d / w for d, w in demands.values()), default=0.0)
    for _ in range(200):
        level = (low + high) / 2
        if sum(min(d, level * w) for d, w in demands.values()) > capacity:
            high = level
        else:
            low = level
    return {key: min(d, high * w) for key, (d, w) in demands.items()}


class Demand(NamedTuple):
    """How many sequences someone has, and the weight of them all."""

    sequences: int
    weight: float


def reference_shares(capacity: float, demands: Mapping[Holder, Demand]) -> dict[Holder, float]:
    classes: dict[str, tuple[int, float]] = {}
    for (name, _), demand in demands.items():
        total = classes.get(name, (0, 0.0))[0] + demand.sequences
        classes[name] = (total, CLASS_WEIGHTS[name])
    parts = filled(capacity, classes)
    return {
        (name, key): share
        for name, part in parts.items()
        for key, share in filled(
            part, {h[1]: (d.sequences, d.weight) for h, d in demands.items() if h[0] == name}
        ).items()
    }


@given(
    st.floats(1, 1024),
    st.dictionaries(
        st.tuples(st.sampled_from(sorted(CLASS_WEIGHTS)), st.sampled_from("abcdef")),
        st.builds(Demand, st.integers(1, 500), st.floats(0.01, 100)),
        max_size=12,
    ),
)
def test_shares_are_max_min_fair(capacity: float, demands: dict[Holder, Demand]) -> None:
    names = list(CLASS_WEIGHTS)
    vectors = (
        np.array([demand.sequences for demand in demands.values()], np.int64),
        np.array([demand.weight for demand in demands.values()], np.float64),
        np.array([names.index(name) for name, _ in demands], np.int64),
    )
    shares = dict(zip(demands, fair_shares(capacity, *vectors).tolist(), strict=True))
    expected = reference_shares(capacity, demands)
    assert shares == pytest.approx(expected, rel=1e-6, abs=1e-6)  # bisection of floats
    total = sum(demand.sequences for demand in demands.values())
    assert sum(shares.values()) == pytest.approx(min(capacity, total) if demands else 0.0)


def filled_one_by_one(capacity: float, demands: Mapping[Holder, Demand]) -> dict[Holder, float]:
    """Progressive filling as it is told: who asks for least, over its weight, has it all, while
    what is left would give everybody after it more than that."""
    shares = {holder: float(demand.sequences) for holder, demand in demands.items()}
    by_need = sorted(demands, key=lambda h: demands[h].sequences / demands[h].weight)
    left = capacity
    for place, holder in enumerate(by_need):
        behind = by_need[place:]
        level = left / sum(demands[h].weight for h in reversed(behind))
        if demands[holder].sequences > level * demands[holder].weight:
            return shares | {h: level * demands[h].weight for h in behind}
        left -= demands[holder].sequences
    return shares


@given(
    st.integers(1, 1024),
    st.dictionaries(
        st.tuples(st.sampled_from(sorted(CLASS_WEIGHTS)), st.integers(0, 40).map(str)),
        st.builds(Demand, st.integers(1, 50), st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0])),
        max_size=90,
    ),
)
def test_shares_of_all_classes_at_once_are_those_of_one_after_the_other(
    capacity: int, demands: dict[Holder, Demand]
) -> None:
    """To the bit, since sums of such weights are exact: who gives up a place hangs on comparisons
    of shares that are often equal."""
    names = list(CLASS_WEIGHTS)
    classes = {name: [h for h in demands if h[0] == name] for name in names}
    totals = {
        (name, ""): Demand(sum(demands[h].sequences for h in own), CLASS_WEIGHTS[name])
        for name, own in classes.items()
    }
    parts = filled_one_by_one(capacity, totals)
    expected = {
        holder: share
        for name, own in classes.items()
        for holder, share in filled_one_by_one(
            parts[name, ""], {holder: demands[holder] for holder in own}
        ).items()
    }
    vectors = (
        np.array([demand.sequences for demand in demands.values()], np.int64),
        np.array([demand.weight for demand in demands.values()], np.float64),
        np.array([names.index(name) for name, _ in demands], np.int64),
    )
    shares = dict(zip(demands, fair_shares(capacity, *vectors).tolist(), strict=True))
    assert shares == expected


@dataclass(frozen=True)
class Arrival:
    step: int
    tenant: int
    prompt_tokens: int
    max_tokens: int
    n: int


PLACES = 6
BLOCK = 4
STEP_TOKENS = 24
MOST_TOKENS = 40
LONGEST_STAY = 30
"""Steps: who has given up a place keeps the next for a block, or for half of what it has to compute
again without a cache, 26 tokens at most; it is charged for what it decodes a block later."""


@dataclass
class Watch:
    """What of the rules can be seen in each step of a rig, once it is planned."""

    rig: Rig
    waits: Counter[Holder] = field(default_factory=Counter)  # steps in a row
    longest: int = 0

    def __post_init__(self) -> None:
        run_step = self.rig.executor.run

        def run(executed: ExecutedPlan) -> StepResult | None:
            self._look(executed.plan)
            return run_step(executed)

        self.rig.executor.run = run  # type: ignore[method-assign]

    def _look(self, plan: StepPlan) -> None:
        running: Counter[Holder] = Counter()
        weights: dict[Holder, float] = {}
        queue = self.rig.engine._scheduler.queue
        for sequence in self.rig.engine._scheduler.running:
            running[holder_of(sequence)] += 1
            weights[holder_of(sequence)] = sequence.request.tenant.weight
        waiting: Counter[Holder] = Counter()
        for sequence in queue.sequences():
            waiting[holder_of(sequence)] += 1
            weights[holder_of(sequence)] = sequence.request.tenant.weight
        assert running.total() <= PLACES
        demands = {h: Demand(running[h] + waiting[h], weights[h]) for h in weights}
        shares = reference_shares(PLACES, demands)
        excess = {holder: running[holder] - shares[holder] for holder in weights}
        for holder in weights:
            most = max((excess[h] for h in weights if self._may_ask(holder, h)), default=0.0)
            is_due = running[holder] == 0 and shares[holder] >= 1
            is_far = most - excess[holder] > (1 if is_due else 2) + 1e-6
            if waiting[holder] and is_far and self._is_in_turn(holder, excess):
                self.waits[holder] += 1
            else:
                del self.waits[holder]
        self.longest = max(self.longest, *self.waits.values(), 0)
        is_used = running.total() == PLACES or plan.num_tokens == STEP_TOKENS
        assert is_used or not waiting, "there is a place for what waits"

    def _may_ask(self, holder: Holder, other: Holder) -> bool:
        return CLASS_WEIGHTS[other[0]] <= CLASS_WEIGHTS[holder[0]]

    def _is_in_turn(self, holder: Holder, excess: Mapping[Holder, float]) -> bool:
        """Whether nobody in the class who has about its share, or more, has had so much less
        service over its weight that it would go first."""
        quantum = STEP_TOKENS / ROUNDS_A_STEP
        counter = self.rig.engine._scheduler.queue.counter
        return all(
            counter(key, name) // quantum <= counter(other, its) // quantum + AHEAD_ROUNDS
            for name, key in (holder,)
            for its, other in excess
            if its == name and excess[its, other] > -1
        )


@given(
    weights=st.lists(st.sampled_from((0.5, 1.0, 1.0, 3.0)), min_size=2, max_size=4),
    tiers=st.lists(st.sampled_from(sorted(CLASS_WEIGHTS)), min_size=4, max_size=4),
    one_class=st.booleans(),
    arrivals=st.lists(
        st.builds(
            Arrival,
            st.integers(0, 60),
            st.integers(0, 3),
            st.integers(1, 12),
            st.integers(1, MOST_TOKENS),
            st.sampled_from((1, 1, 2, 6)),
        ),
        min_size=1,
        max_size=16,
    ),
    caching=st.booleans(),
)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_places_are_shared_and_nothing_is_lost(
    weights: list[float],
    tiers: list[str],
    one_class: bool,
    arrivals: list[Arrival],
    caching: bool,
) -> None:
    """Nobody is below its share while another is beyond it, by two places between them (one where
    it has none and is due one), for longer than the order of service asks for; no place is empty
    while anything waits; what comes out is what each sequence gives alone; and places change hands
    only so often."""
    config = make_config(
        num_pages=1024,
        block_tokens=BLOCK,
        max_running=PLACES,
        max_step_tokens=STEP_TOKENS,
        max_prefill_chunk=STEP_TOKENS,
        max_waiting=512,
        max_tenant_waiting=512,
        context_tokens=200,
        prefix_caching=caching,
    )
    rig = Rig.build(config)
    fix_step_time(rig, 0.001)
    watch = Watch(rig)
    requests: dict[str, GenerationRequest] = {}
    events: list[Event] = []
    for number in range(61):
        for arrival in [a for a in arrivals if a.step == number]:
            place = arrival.tenant % len(weights)
            name = f"r{len(requests)}"
            requests[name] = make_request(
                name,
                [len(requests) % 90] * arrival.prompt_tokens,
                tenant=make_tenant(
                    f"t{place}", weights[place], tier="default" if one_class else tiers[place]
                ),
                max_tokens=arrival.max_tokens,
                n=arrival.n,
                ignore_eos=True,
            )
            rig.engine.submit(requests[name])
        events += rig.engine.step()
    while rig.engine.has_work:
        events += rig.engine.step()
        rig.engine.check_integrity()
    tokens: dict[tuple[str, int], list[int]] = {}
    for event in events:
        if isinstance(event, TokenEvent):
            tokens.setdefault((event.request_id, event.index), []).extend(event.token_ids)
    for name, request in requests.items():
        for index in range(request.sampling.n):
            assert tokens[name, index] == expected_output(request, index, 200, 11)[0]
    assert watch.longest <= LONGEST_STAY
    each = [(r, index) for r in requests.values() for index in range(r.sampling.n)]
    given_up = rig.engine.stats().counters["places_given_up"]
    assert given_up <= sum(1 + r.sampling.max_tokens // BLOCK for r, _ in each)
    if caching:
        needed = sum(len(r.prompt_token_ids) + r.sampling.max_tokens for r, _ in each)
        assert rig.executor.computed_tokens <= needed + given_up * BLOCK
