"""The fair queue: shares between classes, rounds between tenants, a tenant's own order, ageing."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import make_ref, make_request, make_tenant
from tenora_engine.request import Tenant
from tenora_engine.scheduling.class_queue import (
    AGE_S,
    AHEAD_ROUNDS,
    BACKLOG_ROUNDS,
    CLASS_WEIGHTS,
    CREDIT_ROUNDS,
    CREDIT_TOKENS,
    ClassShares,
)
from tenora_engine.scheduling.parked import Need
from tenora_engine.scheduling.queue import FairQueue
from tenora_engine.sequence import Sequence, Service

NOW_S = 1000.0
_numbers = count()


def make_sequence(
    tenant: Tenant,
    length: int = 1,
    due_s: float = NOW_S,
    tier: str | None = None,
    adapter: str | None = None,
) -> Sequence:
    ref = None if adapter is None else make_ref(adapter)
    request = make_request("r", [1] * length, tenant=tenant, adapter=ref)
    return Sequence(
        request=request,
        index=0,
        token_ids=[1] * length,
        num_prompt=length,
        number=next(_numbers),
        service=Service(class_name=tier or tenant.tier, work=float(length), due_s=due_s),
    )


def take(queue: FairQueue, cost: float | None = None, now_s: float = NOW_S) -> Sequence:
    return start(queue, next(queue.candidates()), cost)


def start(
    queue: FairQueue, sequence: Sequence, cost: float | None = None, is_express: bool = False
) -> Sequence:
    queue.start(sequence, is_express)
    queue.charge(sequence, sequence.num_prompt if cost is None else cost)
    return sequence


def test_what_ran_before_goes_first_then_what_is_due_first_then_who_came_first() -> None:
    queue = FairQueue(quantum=1)
    tenant = make_tenant()
    a, b, c, d = (make_sequence(tenant, due_s=NOW_S + due) for due in (5, 3, 3, 9))
    for sequence in (a, b, c):
        queue.push(sequence, NOW_S)
    queue.push_front(d, NOW_S)
    assert list(queue.candidates()) == [d, b, c, a]
    assert queue.waiting_by_tenant() == {"t0": 4}
    assert queue.waiting_of("t0") == 4
    assert queue.work() == 4.0


def test_blocked_sequences_do_not_block_others() -> None:
    queue = FairQueue(quantum=1)
    first, second = make_tenant("a"), make_tenant("b")
    blocked = [make_sequence(first), make_sequence(second)]
    runnable = [make_sequence(first), make_sequence(second)]
    for sequence in (*blocked, *runnable):
        queue.push(sequence, NOW_S)
    started = []
    for sequence in queue.candidates():
        if sequence in runnable:
            queue.start(sequence)
            queue.charge(sequence, 1)
            started.append(sequence)
    assert started == runnable
    assert set(queue.sequences()) == set(blocked)


def test_what_leaves_meanwhile_is_passed_over() -> None:
    queue = FairQueue(quantum=1)
    tenant = make_tenant()
    sequences = [make_sequence(tenant) for _ in range(3)]
    for sequence in sequences:
        queue.push(sequence, NOW_S)
    candidates = queue.candidates()
    assert next(candidates) is sequences[0]
    queue.remove(sequences[1])
    assert next(candidates) is sequences[2]


def test_a_walk_passes_by_the_rest_of_a_line_and_leaves_out_others() -> None:
    queue = FairQueue(quantum=1)
    lines = {
        key: [make_sequence(make_tenant(key), due_s=NOW_S + i) for i in range(3)] for key in "abc"
    }
    for line in lines.values():
        for sequence in line:
            queue.push(sequence, NOW_S)
    seen = []
    for sequence in queue.candidates([("default", "b"), ("default", "nobody")]):
        seen.append(sequence)
        if sequence is lines["a"][1]:
            queue.pass_by(sequence)
    assert set(seen) == {*lines["a"][:2], *lines["c"]}
    assert len(list(queue.candidates())) == 9, "the walk has left no trace"


def test_what_is_parked_waits_but_is_not_come_to_and_goes_back_to_its_place() -> None:
    queue = FairQueue(quantum=100)
    tenant = make_tenant()
    first, second, third = (
        make_sequence(tenant, due_s=NOW_S + due, adapter=f"a{due}") for due in (1, 2, 3)
    )
    for sequence in (first, second, third):
        queue.push(sequence, NOW_S)
    queue.park(second, Need.ADAPTER)
    queue.park(first, Need.SLOT)
    assert list(queue.candidates()) == [third]
    assert (len(queue), queue.num_in_line, queue.waiting_of("t0")) == (3, 1, 3)
    assert second in queue
    assert set(queue.sequences()) == {first, second, third}
    assert [(stats.waiting, stats.oldest_wait_s) for stats in queue.stats(NOW_S + 5)] == [(3, 5.0)]
    assert queue.work() == 1.0, "what is parked asks for nothing"
    assert queue.parked.of("sha256:a2") == [second]
    assert queue.parked.firsts(Need.SLOT) == [first]
    queue.wake(second)
    queue.wake(first)
    assert list(queue.candidates()) == [first, second, third]
    queue.park(third, Need.ADAPTER)
    queue.remove(third)
    assert (len(queue), list(queue.parked)) == (2, [])
    assert not queue.parked.firsts(Need.SLOT)


def test_within_a_round_the_earliest_deadline_goes_first_across_tenants() -> None:
    queue = FairQueue(quantum=100)
    first, second = make_tenant("a"), make_tenant("b")
    for due in (1, 7, 3):
        queue.push(make_sequence(first, due_s=NOW_S + due), NOW_S)
    for due in (2, 9, 5):
        queue.push(make_sequence(second, due_s=NOW_S + due), NOW_S)
    assert [s.service.due_s - NOW_S for s in queue.candidates()] == [1, 2, 3, 5, 7, 9]


def test_a_returning_tenant_is_owed_no_more_than_its_credit() -> None:
    queue = FairQueue(quantum=10)
    busy, away = make_tenant("busy"), make_tenant("away")
    for _ in range(200):
        queue.push(make_sequence(busy, 10), NOW_S)
    for _ in range(50):
        assert take(queue).request.tenant is busy
    for _ in range(CREDIT_ROUNDS + 20):
        queue.push(make_sequence(away, 10), NOW_S)
    for _ in range(CREDIT_ROUNDS):
        assert take(queue).request.tenant is away
    served = Counter(take(queue).request.tenant.key for _ in range(20))
    assert abs(served["away"] - served["busy"]) <= 2


def test_nothing_is_owed_of_a_time_in_which_nobody_waited() -> None:
    queue = FairQueue(quantum=10)
    busy, away = make_tenant("busy"), make_tenant("away")
    for _ in range(50):
        queue.push(make_sequence(busy, 10), NOW_S)
        take(queue)
    for _ in range(20):
        queue.push(make_sequence(busy, 10), NOW_S)
        queue.push(make_sequence(away, 10), NOW_S)
    served = Counter(take(queue).request.tenant.key for _ in range(20))
    assert abs(served["away"] - served["busy"]) <= 2


def test_who_exceeds_its_share_is_behind_nobody_and_has_more_waiting_than_its_turn() -> None:
    queue = FairQueue(quantum=10)
    noisy, quiet = make_tenant("noisy"), make_tenant("quiet")
    for _ in range(50):
        queue.push(make_sequence(noisy, 10), NOW_S)
    running = take(queue)
    assert queue.exceeds_share(running)
    burst = [make_sequence(quiet, 10) for _ in range(5)]
    for sequence in burst:
        queue.push(sequence, NOW_S)
    while queue.waiting_of("quiet"):
        take(queue)
    for _ in range(20):
        take(queue)
    queue.push(burst[0], NOW_S)
    assert not queue.exceeds_share(burst[0]), "it is behind"
    while queue.waiting_of("noisy") > BACKLOG_ROUNDS - 1:
        take(queue)
    assert not queue.exceeds_share(running), "little is left"


def test_weights_share_in_proportion() -> None:
    queue = FairQueue(quantum=10)
    light, heavy = make_tenant("light"), make_tenant("heavy", weight=3.0)
    for _ in range(100):
        queue.push(make_sequence(light, 10), NOW_S)
        queue.push(make_sequence(heavy, 10), NOW_S)
    served = Counter(take(queue).request.tenant.key for _ in range(80))
    assert abs(served["heavy"] - 3 * served["light"]) <= 4


def test_what_has_aged_is_passed_by_nothing_that_comes_later() -> None:
    queue = FairQueue(quantum=1)
    tenant = make_tenant()
    patient = make_sequence(tenant, due_s=NOW_S + 1e6)
    queue.push(patient, NOW_S)
    urgent = make_sequence(tenant, due_s=NOW_S + AGE_S - 0.5)
    queue.push(urgent, NOW_S + AGE_S - 1)
    late = make_sequence(tenant, due_s=NOW_S + AGE_S + 0.5)
    queue.push(late, NOW_S + AGE_S + 0.1)
    assert list(queue.candidates()) == [urgent, patient, late]


def test_an_unused_share_is_used_by_the_class_with_the_least_slack() -> None:
    """Priority has no work: default and flex share what is its, by deadline, and neither gets less
    than its own share."""
    queue = FairQueue(quantum=100)
    urgent = make_tenant("urgent", tier="default")
    patient = make_tenant("patient", tier="flex")
    for number in range(3000):
        queue.push(make_sequence(urgent, 50, due_s=NOW_S + number), NOW_S)
        queue.push(make_sequence(patient, 50, due_s=NOW_S + 1e6), NOW_S)
    served = Counter(take(queue).request.tenant.key for _ in range(2000))
    share = CLASS_WEIGHTS["flex"] / sum(CLASS_WEIGHTS.values())
    assert served["patient"] == pytest.approx(2000 * share, abs=CREDIT_TOKENS / 50)


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 60), st.integers(0, 99)),
        min_size=20,
        max_size=60,
    ),
    st.integers(1, 200),
    st.integers(1, 6),
)
def test_the_service_gap_of_backlogged_tenants_is_bounded(
    weights: list[int], work: list[tuple[int, int, int]], quantum: int, slots: int
) -> None:
    """The bound of `ClassQueue`: between tenants that can always start something, service over
    weight differs over any span by less than 2 * (quantum + U), whatever their deadlines and
    however much of a request is charged only while it runs, in `slots` at a time."""
    queue = FairQueue(quantum)
    tenants = [make_tenant(f"t{i}", weight=float(w)) for i, w in enumerate(weights)]
    later: dict[Sequence, int] = {}
    for number, tenant in enumerate(tenants):
        for length, decoded, due in work:
            sequence = make_sequence(tenant, length, due_s=NOW_S + due * (number + 1))
            later[sequence] = decoded
            queue.push(sequence, NOW_S)
    service = dict.fromkeys((t.key for t in tenants), 0.0)
    bound = quantum + slots * max(length + decoded for length, decoded, _ in work)
    running: list[Sequence] = []
    while len(queue.waiting_by_tenant()) == len(tenants):
        sequence = take(queue)
        tenant = sequence.request.tenant
        service[tenant.key] += sequence.num_prompt / tenant.weight
        running.append(sequence)
        if len(running) == slots:  # all end, each charged what it decoded
            for ended in running:
                queue.charge(ended, later[ended])
                tenant = ended.request.tenant
                service[tenant.key] += later[ended] / tenant.weight
            running.clear()
        gap = max(service.values()) - min(service.values())
        assert gap < bound, "from a common start; between any two moments less than twice this"
        assert queue.counter(tenant.key, tenant.tier) == pytest.approx(service[tenant.key])


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=3),
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 6),
            st.integers(1, 30),
            st.integers(0, 9),
            st.booleans(),
        ),
        max_size=60,
    ),
    st.integers(1, 40),
)
def test_the_service_gap_is_bounded_for_tenants_that_come_and_go(
    weights: list[int], moves: list[tuple[int, int, int, int, bool]], quantum: int
) -> None:
    """The bound of `ClassQueue` over any span in which two tenants wait all the time, wherever
    their counters were when they came: each move is some requests of one tenant (with deadlines
    that favour the first), then some starts, some of them first of those that go express."""
    queue = FairQueue(quantum)
    tenants = [make_tenant(f"t{i}", weight=float(w)) for i, w in enumerate(weights)]
    service = dict.fromkeys((t.key for t in tenants), 0.0)
    spans: dict[tuple[str, str], list[float]] = {}
    bound = 2 * ((1 + CREDIT_ROUNDS + AHEAD_ROUNDS) * quantum + 30)
    for who, requests, length, starts, is_express in moves:
        for _ in range(requests):
            tenant = tenants[who % len(tenants)]
            queue.push(make_sequence(tenant, length, due_s=NOW_S + who), NOW_S)
        for _ in range(min(starts, len(queue))):
            express = next(queue.express(), None) if is_express else None
            sequence = take(queue) if express is None else start(queue, express, is_express=True)
            tenant = sequence.request.tenant
            service[tenant.key] += sequence.num_prompt / tenant.weight
            waiting = queue.waiting_by_tenant()
            for pair in combinations(service, 2):
                if waiting.keys() >= set(pair):
                    spans.setdefault(pair, []).append(service[pair[0]] - service[pair[1]])
                    assert max(spans[pair]) - min(spans[pair]) < bound
                else:
                    spans.pop(pair, None)


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(CLASS_WEIGHTS)), st.integers(1, 500)),
        min_size=1,
        max_size=60,
    )
)
def test_every_class_gets_its_share_however_its_deadlines_lie(
    requests: list[tuple[str, int]],
) -> None:
    """All classes always have work; the requests' deadlines favour one class after the other. A
    class is never behind its share by more than the others could be ahead of theirs."""
    shares = ClassShares()
    total, served = 0.0, dict.fromkeys(CLASS_WEIGHTS, 0.0)
    for favoured, cost in requests * 20:
        owed = [name for name in CLASS_WEIGHTS if shares.is_owed(name)]
        owed = owed or list(CLASS_WEIGHTS)  # by rounding alone
        name = favoured if favoured in owed else owed[0]
        shares.charge(name, cost)
        served[name] += cost
        total += cost
    for name, weight in CLASS_WEIGHTS.items():
        share = total * weight / sum(CLASS_WEIGHTS.values())
        assert abs(served[name] - share) <= len(CLASS_WEIGHTS) * 500


def test_an_idle_class_is_owed_no_more_than_its_credit() -> None:
    shares = ClassShares()
    for _ in range(1000):
        shares.charge("default", 1000.0)
    shares.enter("flex")
    spent = 0.0
    while shares.is_owed("flex"):
        shares.charge("flex", 10.0)
        spent += 10.0
    assert spent <= 2 * CREDIT_TOKENS


_MOVES = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "front", "start", "remove", "wait"]), st.integers(0, 99)
    ),
    max_size=80,
)


@given(_MOVES)
def test_nothing_is_lost_and_everything_is_come_to(moves: list[tuple[str, int]]) -> None:
    """Whatever was pushed and has not left is a candidate exactly once, in each call; those of one
    class by round of their tenant, then by what is due first."""
    queue = FairQueue(quantum=7)
    due_s: dict[Sequence, float] = {}
    tenants = [make_tenant(f"t{i}", tier=tier) for i, tier in enumerate(sorted(CLASS_WEIGHTS) * 2)]
    waiting: set[Sequence] = set()
    now_s = NOW_S
    for move, number in moves:
        if move in ("push", "front"):
            tenant = tenants[number % len(tenants)]
            sequence = make_sequence(tenant, number + 1, due_s=now_s + number)
            (queue.push if move == "push" else queue.push_front)(sequence, now_s)
            waiting.add(sequence)
            due_s[sequence] = now_s + min(number, AGE_S) if move == "push" else -math.inf
        elif move == "wait":
            now_s += number
        elif waiting:
            sequence = sorted(waiting, key=lambda s: s.number)[number % len(waiting)]
            waiting.remove(sequence)
            (queue.start if move == "start" else queue.remove)(sequence)
            queue.charge(sequence, number)
        candidates = list(queue.candidates())
        assert len(candidates) == len(set(candidates)) == len(queue)
        assert set(candidates) == waiting == set(queue.sequences())
        assert sum(queue.waiting_by_tenant().values()) == len(waiting)
        assert queue.work() == pytest.approx(sum(s.service.work for s in waiting))
        for tier in CLASS_WEIGHTS:
            places = [
                (queue.counter(s.request.tenant.key, tier) // 7, due_s[s])
                for s in candidates
                if s.service.class_name == tier
            ]
            assert places == sorted(places)


def test_express_are_those_whose_requests_leave_them_within_their_shares() -> None:
    """In fair order; who asks for much is not, whatever it is owed, and who had much is not."""
    queue = FairQueue(quantum=10)
    noisy, quiet, small, greedy = (make_tenant(name) for name in ("n", "q", "s", "g"))
    for _ in range(30):
        queue.push(make_sequence(noisy, 10), NOW_S)
    for _ in range(CREDIT_ROUNDS + 4):
        assert take(queue).request.tenant is noisy
    mine = [make_sequence(tenant, 10) for tenant in (quiet, small, quiet)]
    for sequence in mine:
        queue.push(sequence, NOW_S)
    queue.push(make_sequence(greedy, 10 * (CREDIT_ROUNDS + AHEAD_ROUNDS) + 1), NOW_S)
    assert list(queue.express()) == [mine[0], mine[2], mine[1]]
    assert queue.keeps_share(small, "default")
    assert not queue.keeps_share(noisy, "default")
    start(queue, mine[1], is_express=True, cost=10.0 * (CREDIT_ROUNDS + AHEAD_ROUNDS + 1))
    queue.push(make_sequence(small, 10), NOW_S)
    assert not queue.keeps_share(small, "default"), "it is too far ahead"
    assert list(queue.express()) == [mine[0], mine[2]]
    assert len(list(queue.candidates())) == len(queue), "the walk has left no trace"
