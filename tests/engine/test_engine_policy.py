"""Eviction: the queue of candidates, and what each policy gives up first."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import make_config
from tenora_engine.memory.costs import FADE_S, CostModel
from tenora_engine.memory.eviction_queue import EvictionQueue
from tenora_engine.memory.policies import (
    POLICIES,
    Candidate,
    JointPolicy,
    MemoryState,
    UnifiedLRUPolicy,
    make_policy,
)

STATE = MemoryState(now_s=200.0, capacity_bytes=10**6)


def candidate(kind: Literal["kv", "adapter"] = "kv", **changes: float | bool) -> Candidate:
    """`reload_s` among the changes is the cost of its kind."""
    if "reload_s" in changes:
        changes["fetch_s" if kind == "adapter" else "recompute_s"] = changes.pop("reload_s")
    base = Candidate(
        kind=kind,
        namespace="ns",
        num_bytes=1000,
        last_used_s=100.0,
        heat=1.0,
        fetch_s=0.1 if kind == "adapter" else math.inf,
        recompute_s=0.1 if kind == "kv" else math.inf,
    )
    return msgspec.structs.replace(base, **changes)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (candidate(heat=1.0), candidate(heat=2.0)),
        (candidate(last_used_s=90.0), candidate(last_used_s=100.0)),
        (candidate(reload_s=0.01), candidate(reload_s=0.1)),
        (candidate(num_bytes=2000), candidate(num_bytes=1000)),
        (candidate("kv", heat=9.0), candidate("adapter", heat=0.1, wanted=True)),
        # a cheap adapter before dear KV of the same use, and the other way round
        (candidate("adapter", reload_s=0.01), candidate("kv", reload_s=0.1)),
        (candidate("kv", reload_s=0.01), candidate("adapter", reload_s=0.1)),
        # often used long ago against once used now: 20 uses fade below one within 3 time constants
        (candidate(heat=20.0, last_used_s=100.0 - 3.1 * FADE_S), candidate()),
        (candidate(), candidate(heat=20.0, last_used_s=100.0 - 2.9 * FADE_S)),
    ],
)
def test_joint_gives_up_the_least_loss_per_byte(less: Candidate, more: Candidate) -> None:
    policy = JointPolicy()
    assert policy.value(less, STATE) < policy.value(more, STATE)


@given(st.lists(st.tuples(*[st.floats(0.01, 100.0)] * 3), min_size=2, max_size=6))
def test_joint_orders_by_the_loss_of_any_later_moment(
    items: list[tuple[float, float, float]],
) -> None:
    """The value is the logarithm of heat x fade x reload / bytes up to a term common to all."""
    policy = JointPolicy()
    candidates = [
        candidate(heat=heat, last_used_s=last, reload_s=reload) for heat, last, reload in items
    ]
    for now in (100.0, 160.0, 400.0):
        logs = [
            math.log(c.heat * math.exp(-(now - c.last_used_s) / FADE_S) * c.reload_s / 1000)
            for c in candidates
        ]
        for c, log in zip(candidates, logs, strict=True):
            assert policy.value(c, STATE) - now / FADE_S == pytest.approx(log, abs=1e-6)


def test_lru_looks_at_the_time_alone() -> None:
    policy = UnifiedLRUPolicy()
    old = candidate(last_used_s=1.0, heat=99.0, reload_s=9.0)
    assert policy.value(old, STATE) < policy.value(candidate(last_used_s=2.0), STATE)


def test_policies_are_made_by_name() -> None:
    assert {name: make_policy(name).name for name in POLICIES} == {name: name for name in POLICIES}
    with pytest.raises(ValueError, match="unknown eviction policy 'magic'; use one of joint, "):
        make_policy("magic")


class Item:
    def __init__(self) -> None:
        self.ticket = 0


def pop(queue: EvictionQueue[Item]) -> Item:
    _, item = queue.least()
    queue.withdraw(item)
    return item


def test_queue_pops_the_least_of_the_current_values() -> None:
    queue: EvictionQueue[Item] = EvictionQueue()
    a, b, c = Item(), Item(), Item()
    queue.offer(a, 1.0)
    queue.offer(b, 2.0)
    queue.offer(c, 3.0)
    queue.offer(a, 9.0)  # valued anew
    queue.withdraw(b)
    queue.withdraw(b)
    assert len(queue) == 2
    assert [pop(queue), pop(queue)] == [c, a]
    with pytest.raises(IndexError):
        queue.least()


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ow"), st.integers(0, 9))))
def test_queue_against_a_dictionary(actions: list[tuple[int, str, int]]) -> None:
    queue: EvictionQueue[Item] = EvictionQueue()
    items = [Item() for _ in range(6)]
    values: dict[Item, float] = {}
    for number, action, value in actions:
        item = items[number]
        if action == "o":
            values[item] = value
            queue.offer(item, value)
        else:
            values.pop(item, None)
            queue.withdraw(item)
        assert len(queue) == len(values)
    popped = [values.pop(pop(queue)) for _ in range(len(values))]
    assert popped == sorted(popped)


def test_queue_does_not_keep_outdated_entries() -> None:
    queue: EvictionQueue[Item] = EvictionQueue()
    item = Item()
    for number in range(10_000):
        queue.offer(item, float(number))
        queue.withdraw(item)
    assert len(queue._heap) < 200


def test_costs_follow_what_was_measured() -> None:
    costs = CostModel(make_config())
    assert costs.block_s(100) > costs.block_s(0) > 0
    before, decode = costs.block_s(3), costs.adapter_s(1000)
    costs.observe_step(num_tokens=8, num_sequences=8, step_s=10.0)  # decode says nothing
    assert costs.block_s(3) == before
    for _ in range(200):
        costs.observe_step(num_tokens=100, num_sequences=1, step_s=2.0)
        costs.observe_load(num_bytes=1000, load_s=0.5)
    assert costs.block_s(3) == pytest.approx(before * 0.02 / 1e-3, rel=1e-3)
    assert costs.adapter_s(1000) == pytest.approx(0.5, rel=1e-3)
    assert costs.adapter_s(1000) > decode


def test_an_adapter_comes_back_from_the_tier_that_has_it() -> None:
    costs = CostModel(make_config())
    for _ in range(200):
        costs.observe_load(num_bytes=1000, load_s=0.5)
    costs.observe_load(num_bytes=1000, load_s=0.002, tier="host")
    costs.observe_load(num_bytes=1000, load_s=0.004, tier="host")
    assert costs.adapter_again_s(1000, "host") == pytest.approx(0.003)
    assert costs.adapter_again_s(1000, "store") == pytest.approx(0.5 + 0.003)
    assert costs.adapter_s(1000) == pytest.approx(0.5), "what the host gives says nothing of that"
    assert costs.adapter_s(1000, "shared") == costs.adapter_s(1000, "store")
    costs.observe_load(num_bytes=1000, load_s=0.1, tier="shared")
    assert costs.adapter_again_s(1000, "shared") == pytest.approx(0.1 + 0.003)
