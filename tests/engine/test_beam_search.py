"""Beam search in the engine: token ids equal those of transformers' `generate(num_beams=...)`,
whatever is in flight beside it, however little memory or how few places there are."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from beam_world import (
    World,
    check_empty,
    drawn,
    ends_of,
    events_of,
    make_world,
    running,
    search,
    texts_of,
)
from tenora_engine.events import Event
from tenora_engine.request import GenerationRequest
from tiny_llama import PAGE_BYTES

# peft 0.21 asks transformers 5.23 for a property that the latter has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("beams"))


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("adapted", [False, True])
def test_ids_are_those_of_transformers(world: World, caching: bool, adapted: bool) -> None:
    chance = random.Random(f"alone {caching} {adapted}")
    with running(world, prefix_caching=caching) as engine:
        for number in range(25):
            request = search(chance, f"r{number}", world.adapter if adapted else None)
            events = events_of(engine, [request])
            assert texts_of(events, request) == world.texts(request), request.sampling
        assert engine._scheduler.counters()["preemptions"] == 0
        check_empty(engine)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="room for all"),
        pytest.param({"arena_bytes": 14 * PAGE_BYTES}, id="little memory"),
        pytest.param({"arena_bytes": 14 * PAGE_BYTES, "prefix_caching": False}, id="uncached"),
        pytest.param({"max_running": 2}, id="fewer places than beams"),
        pytest.param({"max_step_tokens": 24, "max_prefill_chunk": 16}, id="small steps"),
        pytest.param({"arena_bytes": 14 * PAGE_BYTES, "host_kv_bytes": 40 * PAGE_BYTES}, id="host"),
        pytest.param({"scheduling_policy": "fcfs"}, id="first come"),
    ],
)
def test_ids_stay_the_same_beside_others(world: World, config: dict[str, Any]) -> None:
    chance = random.Random(str(config))
    with running(world, **config) as engine:
        for round_ in range(3):
            searches = [
                search(chance, f"s{round_} {number}", chance.choice([None, world.adapter]))
                for number in range(5)
            ]
            others = [drawn(chance, f"d{round_} {number}") for number in range(5)]
            asked = chance.sample([*searches, *others], 10)
            events = events_of(engine, asked, apart=chance.choice([0, 1, 3]))
            for request in searches:
                assert texts_of(events, request) == world.texts(request), request
            assert {end.reason for end in ends_of(events)} <= {"stop", "length"}
            check_empty(engine)
        if "arena_bytes" in config:
            assert engine._scheduler.counters()["preemptions"] > 0


@pytest.mark.parametrize("strict", [False, True])
def test_ids_stay_the_same_in_parts_of_the_memory(world: World, strict: bool) -> None:
    """Each tenant is guaranteed some of it, or has that alone."""
    chance = random.Random(f"parts {strict}")
    with running(world, arena_bytes=36 * PAGE_BYTES, strict_isolation=strict) as engine:
        for round_ in range(4):
            searches = [search(chance, f"s{round_} {number}") for number in range(4)]
            others = [drawn(chance, f"d{round_} {number}") for number in range(3)]
            asked = [apart(request) for request in chance.sample([*searches, *others], 7)]
            events = events_of(engine, asked, apart=chance.choice([0, 2]))
            for request in searches:
                assert texts_of(events, request) == world.texts(request), request
            check_empty(engine)
        assert engine._scheduler.counters()["preemptions"] > 0


def apart(request: GenerationRequest) -> GenerationRequest:
    """The same in a namespace and a part of the memory of the tenant's own."""
    tenant = msgspec.structs.replace(
        request.tenant, namespace=request.tenant.key, min_memory_share=0.3
    )
    return msgspec.structs.replace(request, tenant=tenant)


def test_searches_that_come_and_go_leave_nothing(world: World) -> None:
    """Some are aborted at any time; what is left finds what it would have found alone."""
    chance = random.Random(12)
    config = {"arena_bytes": 16 * PAGE_BYTES, "max_running": 6}
    with running(world, **config) as engine:
        left: dict[str, GenerationRequest] = {}
        told: list[Event] = []
        for step in range(400):
            if step < 350 and len(left) < 4 and chance.random() < 0.3:
                request = search(chance, f"r{step}")
                left[request.request_id] = request
                engine.submit(request)
            if left and chance.random() < 0.05:
                name = chance.choice(list(left))
                del left[name]
                engine.abort(name)
            told += engine.step()
            engine.check_integrity()
            ended = {end.request_id for end in ends_of(told) if end.reason != "abort"}
            for name in ended & left.keys():
                request = left.pop(name)
                assert texts_of(told, request) == world.texts(request)

        while engine.has_work:
            engine.step()
        check_empty(engine)
        assert engine._scheduler.counters()["preemptions"] > 0
