"""First come, first served: the order of arrival, whatever was promised to whom."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_fakes import Rig, make_config, make_request, make_tenant
from tenora_engine.config import ResolvedConfig
from tenora_engine.events import TokenEvent
from tenora_engine.request import Tenant
from tenora_engine.scheduling.arrival_queue import ArrivalQueue
from tenora_engine.scheduling.class_queue import CLASS_WEIGHTS
from tenora_engine.sequence import Sequence, Service


def fcfs(config: ResolvedConfig) -> ResolvedConfig:
    engine = msgspec.structs.replace(config.engine, scheduling_policy="fcfs")
    return msgspec.structs.replace(config, engine=engine)


tenants = st.builds(
    make_tenant,
    name=st.sampled_from(["t0", "t1", "t2"]),
    weight=st.sampled_from([0.5, 1.0, 4.0]),
    tpot_ms=st.sampled_from([None, 1.0]),
    tier=st.sampled_from(sorted(CLASS_WEIGHTS)),
    ttft_ms=st.sampled_from([None, 0.001, 500.0]),
    late=st.sampled_from(["refuse", "relegate", "best_effort"]),
)


def sequence_of(tenant: Tenant, number: int) -> Sequence:
    request, service = make_request(str(number), [1], tenant=tenant), Service(work=number + 1.0)
    return Sequence(request, 0, [1], 1, service=service)


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "push", "front", "start", "remove"]), tenants),
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
def test_the_queue_is_a_line(moves: list[tuple[str, Tenant]], draw: Random) -> None:
    queue, line = ArrivalQueue(), list[Sequence]()
    fronts = 0  # of the line's first, which have been put back
    for number, (move, tenant) in enumerate(moves):
        sequence = sequence_of(tenant, number)
        if move == "push":
            queue.push(sequence, 0.0)
            line.append(sequence)
        elif move == "front":
            queue.push_front(sequence, 0.0)
            line.insert(0, sequence)
            fronts += 1
        elif line:
            place = draw.randrange(len(line))
            gone = line.pop(place)
            fronts -= place < fronts
            (queue.start if move == "start" else queue.remove)(gone)
            queue.charge(gone, 1e9)
            assert gone not in queue
        assert list(queue.candidates()) == line
        assert set(queue.sequences()) == set(line)
        assert len(queue) == len(line)
        assert queue.work() == pytest.approx(sum(s.service.work for s in line))
        assert sum(queue.waiting_by_tenant().values()) == len(line)


def test_what_leaves_meanwhile_is_passed_over() -> None:
    queue = ArrivalQueue()
    first, second, third = (sequence_of(make_tenant(), n) for n in range(3))
    for sequence in (first, second, third):
        queue.push(sequence, 0.0)
    seen = []
    for sequence in queue.candidates():
        seen.append(sequence)
        if sequence is first:
            queue.start(first)
            queue.remove(second)
    assert seen == [first, third]


@settings(max_examples=50)
@given(st.lists(st.tuples(tenants, st.integers(1, 12)), min_size=1, max_size=20))
def test_the_engine_answers_in_the_order_of_arrival(asked: list[tuple[Tenant, int]]) -> None:
    """With room for all in the arena, first tokens come in the order of the requests, and no
    promise refuses, relegates or delays anything."""
    rig = Rig.build(fcfs(make_config(num_pages=256, max_running=3)))
    for number, (tenant, length) in enumerate(asked):
        rig.engine.submit(
            make_request(str(number), [1] * length, tenant=tenant, max_tokens=2, ignore_eos=True)
        )
    first: list[int] = []
    while rig.engine.has_work:
        rig.now_s += 1.0
        came = {int(e.request_id) for e in rig.engine.step() if isinstance(e, TokenEvent)}
        first += sorted(came - set(first))
    assert first == sorted(first)
    assert len(first) == len(asked)
    assert rig.engine.stats().counters["relegations"] == 0
