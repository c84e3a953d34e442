"""The fair queue: bounded, in order within a tenant, and fair between tenants that wait."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import make_request, make_tenant
from tenora_engine.errors import QueueFullError
from tenora_engine.request import Tenant
from tenora_engine.scheduling.queue import DECODE_COST, TENANT_WINDOW, FairQueue
from tenora_engine.sequence import Sequence


def make_sequence(tenant: Tenant, length: int = 1) -> Sequence:
    request = make_request("r", [1] * length, tenant=tenant)
    return Sequence(request=request, index=0, token_ids=[1] * length, num_prompt=length)


def take(queue: FairQueue) -> Sequence:
    sequence = next(queue.candidates())
    queue.remove(sequence)
    queue.charge_prefill(sequence.request.tenant, sequence.num_prompt)
    return sequence


def test_bounded() -> None:
    queue = FairQueue(3)
    tenant = make_tenant()
    for _ in range(2):
        queue.push(make_sequence(tenant))
    queue.check_room(1)
    with pytest.raises(QueueFullError, match="limit of 3"):
        queue.check_room(2)
    with pytest.raises(QueueFullError):
        queue.check_room(1, held=1)


def test_a_tenants_own_order_is_kept_and_a_preempted_one_goes_first() -> None:
    queue = FairQueue(9)
    tenant = make_tenant()
    a, b, c = (make_sequence(tenant) for _ in range(3))
    queue.push(a)
    queue.push(b)
    queue.push_front(c)
    assert list(queue.candidates()) == [c, a, b]
    assert queue.waiting_by_tenant() == {"t0": 3}


def test_blocked_sequences_do_not_block_others() -> None:
    queue = FairQueue(9)
    first, second = make_tenant("a"), make_tenant("b")
    blocked = [make_sequence(first), make_sequence(second)]
    runnable = [make_sequence(first), make_sequence(second)]
    for sequence in (*blocked, *runnable):
        queue.push(sequence)
    started = []
    for sequence in queue.candidates():
        if sequence in runnable:
            queue.remove(sequence)
            queue.charge_prefill(sequence.request.tenant, 1)
            started.append(sequence)
    assert started == runnable
    assert set(queue.sequences()) == set(blocked)


def test_what_leaves_meanwhile_is_passed_over() -> None:
    queue = FairQueue(9)
    tenant = make_tenant()
    sequences = [make_sequence(tenant) for _ in range(3)]
    for sequence in sequences:
        queue.push(sequence)
    candidates = queue.candidates()
    assert next(candidates) is sequences[0]
    queue.remove(sequences[1])
    assert next(candidates) is sequences[2]


def test_the_window_bounds_the_scan() -> None:
    queue = FairQueue(1000)
    for _ in range(TENANT_WINDOW + 50):
        queue.push(make_sequence(make_tenant()))
    assert len(list(queue.candidates())) == TENANT_WINDOW


def test_a_returning_tenant_cannot_save_up_service() -> None:
    queue = FairQueue(999)
    busy, away = make_tenant("busy"), make_tenant("away")
    for _ in range(100):
        queue.push(make_sequence(busy, 10))
    for _ in range(50):
        assert take(queue).request.tenant is busy
    for _ in range(20):
        queue.push(make_sequence(away, 10))
    served = Counter(take(queue).request.tenant.key for _ in range(20))
    assert abs(served["away"] - served["busy"]) <= 1


def test_a_queue_that_ran_empty_does_not_start_over() -> None:
    queue = FairQueue(9)
    first, second = make_tenant("a"), make_tenant("b")
    queue.push(make_sequence(first, 100))
    take(queue)
    queue.push(make_sequence(second))
    assert queue.counter("b") >= 0
    queue.push(make_sequence(first))
    queue.charge_decode(second, 5)
    assert [s.request.tenant.key for s in queue.candidates()] == ["b", "a"]


def test_weights_share_in_proportion() -> None:
    queue = FairQueue(999)
    light, heavy = make_tenant("light"), make_tenant("heavy", weight=3.0)
    for _ in range(100):
        queue.push(make_sequence(light, 10))
        queue.push(make_sequence(heavy, 10))
    served = Counter(take(queue).request.tenant.key for _ in range(80))
    assert abs(served["heavy"] - 3 * served["light"]) <= 4


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20)), min_size=30, max_size=80),
)
def test_the_service_gap_of_backlogged_tenants_is_bounded(
    weights: list[int], work: list[tuple[int, int]]
) -> None:
    """VTC's bound: between tenants that always wait, service over weight differs by no more than
    the dearest two requests, however the work is shared out and however long it goes on."""
    queue = FairQueue(10_000)
    tenants = [make_tenant(f"t{i}", weight=float(w)) for i, w in enumerate(weights)]
    output: dict[Sequence, int] = {}
    for tenant in tenants:
        for length, generated in work:
            sequence = make_sequence(tenant, length)
            output[sequence] = generated
            queue.push(sequence)
    service = dict.fromkeys((t.key for t in tenants), 0.0)
    bound = 2 * max(length + DECODE_COST * generated for length, generated in work)
    while len(queue.waiting_by_tenant()) == len(tenants):
        sequence = take(queue)
        tenant = sequence.request.tenant
        queue.charge_decode(tenant, output[sequence])
        cost = sequence.num_prompt + DECODE_COST * output[sequence]
        service[tenant.key] += cost / tenant.weight
        assert max(service.values()) - min(service.values()) <= bound
        assert queue.counter(tenant.key) == pytest.approx(service[tenant.key])
