"""What a step is predicted to take: never less for more, whatever was observed, and right after a
while on any machine."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import make_config
from tenora_engine.memory.costs import CostModel
from tenora_engine.scheduling.chunks import ChunkSizer
from tenora_engine.scheduling.forecast import StepForecast, StepLoad

COUNTS = st.integers(0, 100_000)
LOADS = st.builds(StepLoad, COUNTS, COUNTS, COUNTS, st.integers(0, 10**9), COUNTS)
OBSERVED = st.lists(st.tuples(LOADS, st.floats(0, 100)), max_size=30)


def forecast_of(observed: list[tuple[StepLoad, float]]) -> StepForecast:
    forecast = StepForecast(CostModel(make_config()))
    for load, step_s in observed:
        forecast.observe(load, step_s)
    return forecast


@given(OBSERVED, st.integers(1, 2048), st.lists(st.integers(0, 200_000), min_size=2, max_size=6))
def test_a_chunk_takes_longer_with_more_context_and_with_more_tokens(
    observed: list[tuple[StepLoad, float]], tokens: int, starts: list[int]
) -> None:
    forecast = forecast_of(observed)
    for start, later in pairwise(sorted(set(starts))):
        assert 0 < forecast.prefill_s(tokens, start) < forecast.prefill_s(tokens, later)
    for start in starts:
        assert forecast.prefill_s(tokens, start) < forecast.prefill_s(tokens + 1, start)
        assert forecast.prefill_s(tokens, start) < forecast.prefill_s(tokens, start, 1.5)
    assert 0 < forecast.decode_s(1) < forecast.decode_s(2)


@given(OBSERVED, st.floats(0, 10), st.integers(0, 200_000), st.floats(1, 4))
def test_as_many_tokens_fit_a_time_as_take_no_longer(
    observed: list[tuple[StepLoad, float]], seconds: float, start: int, token_cost: float
) -> None:
    forecast = forecast_of(observed)
    tokens = forecast.tokens_within(seconds, start, token_cost)
    assert forecast.prefill_s(tokens, start, token_cost) <= seconds * (1 + 1e-6)
    assert forecast.prefill_s(tokens + 1, start, token_cost) >= seconds * (1 - 1e-6)
    assert tokens <= forecast.tokens_within(seconds, 0, token_cost)


@given(OBSERVED, st.integers(1, 4096))
def test_what_holds_without_context_holds_as_tokens_do(
    observed: list[tuple[StepLoad, float]], max_chunk: int
) -> None:
    """So that a limit in tokens keeps its meaning."""
    sizer = ChunkSizer(CostModel(make_config()))
    for load, step_s in observed:
        sizer.forecast.observe(load, step_s)
    assert sizer.forecast.tokens_within(sizer.tenant_s(max_chunk)) == max_chunk


@pytest.mark.parametrize("speed", [0.02, 1.0, 30.0])
def test_it_learns_what_a_machine_takes_from_steps_of_all_kinds(speed: float) -> None:
    """Though every tenth takes up to five times as long, for reasons of its own."""
    draw = random.Random(7)
    even = CostModel(make_config()).even_tokens
    costs = [speed * cost for cost in (0.008, 4e-4, 1e-3 / even, 6e-4, 9e-4 / even, 2e-4)]

    def load() -> StepLoad:
        rows, context = draw.randint(0, 60), draw.randint(1, 2 * int(even))
        tokens = draw.choice([0, 0, draw.randint(1, 256)])
        pairs, scored = tokens * draw.randint(1, 6 * int(even)), draw.choice([0, tokens])
        return StepLoad(rows, rows * context, tokens, pairs, scored)

    def true_s(load: StepLoad) -> float:
        return sum(cost * count for cost, count in zip(costs, (1.0, *load), strict=True))

    forecast = StepForecast(CostModel(make_config()))
    for _ in range(600):
        seen = load()
        forecast.observe(seen, true_s(seen) * (draw.uniform(1, 5) if draw.random() < 0.1 else 1))
    for start in (0, int(even), 8 * int(even)):
        predicted = forecast.prefill_s(128, start)
        pairs = 128 * (start + 64.5)
        assert predicted == pytest.approx(128 * costs[3] + pairs * costs[4], rel=0.5)
        whole = forecast.work_s(StepLoad(0, 0, 128, pairs, 128))
        true = 128 * (costs[3] + costs[5]) + pairs * costs[4]
        assert predicted < whole == pytest.approx(true, rel=0.5)
    context = 0.5 * even
    for _ in range(200):
        seen = StepLoad(20, 20 * context)
        forecast.observe(seen, true_s(seen))
    assert forecast.decode_s(20) == pytest.approx(true_s(StepLoad(20, 20 * context)), rel=0.1)


def test_a_pause_of_the_machine_is_soon_forgotten() -> None:
    load = StepLoad(4, 400)
    forecast = forecast_of([(load, 0.01)] * 100)
    forecast.observe(load, 60.0)
    assert forecast.decode_s(4) <= 0.012


def test_steps_of_one_kind_leave_what_they_do_not_show() -> None:
    mixed = StepLoad(2, 200, 64, 6400)
    forecast = forecast_of([(mixed, 0.05), (StepLoad(4, 400), 0.01)] * 50)
    token_s = forecast.token_s
    for _ in range(1000):
        forecast.observe(StepLoad(4, 400), 0.01)
    assert forecast.token_s == pytest.approx(token_s)
