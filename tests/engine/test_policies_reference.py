"""ELORA's, Chameleon's and our own values against plain arithmetic, and what a batch is expected
to need of adapters."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tenora_engine.memory.costs import FADE_S, AdapterDemand, slo_weight
from tenora_engine.memory.policies import (
    Candidate,
    ChameleonPolicy,
    EloraPolicy,
    JointPolicy,
    KVFirstPolicy,
    MemoryState,
    UnifiedLRUPolicy,
)
from tenora_engine.request import Tenant

NOW_S = 1000.0
STATE = MemoryState(
    now_s=NOW_S,
    capacity_bytes=10**9,
    resident_adapters=6,
    expected_adapters=8.0,
    expected_adapters_sigma=1.5,
    most_visits=40,
    most_bytes=64_000,
)

CANDIDATES = st.builds(
    Candidate,
    kind=st.sampled_from(["kv", "adapter"]),
    namespace=st.just("ns"),
    num_bytes=st.integers(1000, 64_000),
    last_used_s=st.floats(NOW_S - 30, NOW_S),
    heat=st.floats(0.1, 40),
    visits=st.integers(1, 40),
    fetch_s=st.floats(1e-3, 1.0),
    recompute_s=st.floats(1e-3, 1.0),
    weight=st.floats(0.1, 10.0),
    returns=st.floats(0.01, 3.0),
)


def elora(candidate: Candidate, bandwidth: float) -> float:
    """papers.md: Eval = LoRA_Eval * Retain_Eval."""
    lora_eval = min(1, STATE.resident_adapters / STATE.expected_adapters)
    cost = candidate.num_bytes / bandwidth
    since_s = STATE.now_s - candidate.last_used_s
    sigmoid = 1 / (1 + math.exp(-since_s))
    return lora_eval * cost * candidate.visits * (1 - sigmoid)


def chameleon(candidate: Candidate) -> float:
    frequency = candidate.visits / STATE.most_visits
    recency = 1 / (1 + STATE.now_s - candidate.last_used_s)
    return 0.45 * frequency + 0.10 * recency + 0.45 * candidate.num_bytes / STATE.most_bytes


@given(one=CANDIDATES, other=CANDIDATES)
def test_elora_is_the_logarithm_of_its_formula(one: Candidate, other: Candidate) -> None:
    policy, bandwidth = EloraPolicy(), 25e9
    for candidate in (one, other):
        expected = math.log(elora(candidate, bandwidth) * bandwidth)
        assert policy.value(candidate, STATE) == pytest.approx(expected, rel=1e-3, abs=1e-3)
    evals = [elora(candidate, bandwidth) for candidate in (one, other)]
    assume(abs(math.log(evals[0] / evals[1])) > 1e-2)
    less = policy.value(one, STATE) < policy.value(other, STATE)
    assert less == (evals[0] < evals[1])


def test_elora_still_orders_what_was_used_long_ago() -> None:
    policy = EloraPolicy()
    old, older = (
        Candidate(kind="kv", namespace="", num_bytes=1, last_used_s=last_s, heat=1.0)
        for last_s in (NOW_S - 800, NOW_S - 900)
    )
    assert -math.inf < policy.value(older, STATE) < policy.value(old, STATE)


def test_elora_evicts_no_adapter_before_its_kv() -> None:
    bearing, bare = (
        Candidate(
            kind="adapter", namespace="", num_bytes=1, last_used_s=0.0, heat=0.0, bears_kv=bears
        )
        for bears in (True, False)
    )
    best = Candidate(kind="kv", namespace="", num_bytes=64_000, last_used_s=NOW_S, heat=9)
    values = [EloraPolicy().value(candidate, STATE) for candidate in (bare, best, bearing)]
    assert values == sorted(values)


@given(CANDIDATES)
def test_chameleon_is_its_score(candidate: Candidate) -> None:
    assert ChameleonPolicy().value(candidate, STATE) == pytest.approx(chameleon(candidate))


def test_chameleon_spares_adapters_that_wait_to_be_used() -> None:
    wanted = Candidate(
        kind="adapter", namespace="", num_bytes=1, last_used_s=0.0, heat=0.0, wanted=True
    )
    best = Candidate(
        kind="kv", namespace="", num_bytes=64_000, last_used_s=NOW_S, heat=9, visits=40
    )
    assert ChameleonPolicy().value(wanted, STATE) > ChameleonPolicy().value(best, STATE)


@given(one=CANDIDATES, other=CANDIDATES)
def test_joint_orders_by_weighted_loss_per_byte(one: Candidate, other: Candidate) -> None:
    def loss(candidate: Candidate) -> float:
        rate = candidate.heat * math.exp(-(NOW_S - candidate.last_used_s) / FADE_S)
        cost = min(candidate.fetch_s, candidate.recompute_s)
        if candidate.kind == "kv" and candidate.visits == 1:
            rate *= min(3 * candidate.returns, 1.0)
        return candidate.weight * rate * cost / candidate.num_bytes

    assume(abs(math.log(loss(one) / loss(other))) > 1e-6)
    policy = JointPolicy()
    assert (policy.value(one, STATE) < policy.value(other, STATE)) == (loss(one) < loss(other))


@pytest.mark.parametrize(
    ("residents", "demand", "deferred"), [(9, "kv", True), (10, "kv", False), (9, "adapter", False)]
)
def test_the_reserve_keeps_expected_adapters_and_a_sigma(
    residents: int, demand: str, deferred: bool
) -> None:
    state = MemoryState(
        now_s=0.0,
        capacity_bytes=1,
        resident_adapters=residents,
        expected_adapters=8.0,
        expected_adapters_sigma=1.5,
    )
    policy = JointPolicy()
    assert policy.defers("adapter", demand, state) == deferred  # type: ignore[arg-type]
    assert not policy.defers("kv", "kv", state)


def test_kv_first_defers_adapters_always_and_lru_never() -> None:
    assert KVFirstPolicy().defers("adapter", "adapter", STATE)
    assert not KVFirstPolicy().defers("kv", "kv", STATE)
    assert not UnifiedLRUPolicy().defers("adapter", "kv", STATE)


def test_a_tight_target_weighs_more_within_bounds() -> None:
    def weight(ttft_ms: float | None) -> float:
        return slo_weight(Tenant(key="t", namespace="n", weight=2.0, ttft_ms=ttft_ms))

    assert weight(None) == 2.0
    assert weight(250) == 8.0
    assert weight(1) == 20.0
    assert weight(1e6) == pytest.approx(0.2)


def test_expected_adapters_follow_the_formula_and_a_simulation() -> None:
    """Skewed starts at one moment, a constant batch of ten."""
    counts = {"a": 50, "b": 30, "c": 15, "d": 4, None: 1}
    demand = AdapterDemand()
    for digest, count in counts.items():
        for _ in range(count):
            demand.started(digest, 0.0)
    for _ in range(90):
        demand.stopped(0.0)
    low, sigma = demand.expected(60.0)  # the mean batch size has long settled at ten
    shares = [count / 100 for digest, count in counts.items() if digest]
    inside = [1 - (1 - share) ** 10 for share in shares]
    assert low == pytest.approx(sum(inside), rel=1e-3)
    assert sigma == pytest.approx(math.sqrt(sum(q * (1 - q) for q in inside)), rel=1e-3)
    rng = random.Random(0)
    names = [name for name, count in counts.items() for _ in range(count)]
    batches = [len({*rng.choices(names, k=10)} - {None}) for _ in range(4000)]
    assert sum(batches) / len(batches) == pytest.approx(low, rel=0.02)


def test_what_is_never_asked_for_is_forgotten() -> None:
    demand = AdapterDemand()
    for number in range(100):
        demand.started(f"a{number}", 0.0)
        demand.stopped(0.0)
    demand.started("new", 1000.0)
    demand.expected(1000.0)
    assert list(demand._heat) == ["new"]
