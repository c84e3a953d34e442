"""The timing model is fitted to what was measured, and never says that work saves time."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_bench.cache.calibration import (
    TimedStep,
    fit_steps,
    fit_tier,
    least_disturbed,
    median_error,
)
from tenora_bench.cache.timing import StepCosts, StepFeatures, h200_llama3_8b

COMMON = StepFeatures(0, 1, 100, 0.0, 0)
COSTS = StepCosts(2e-3, 5e-5, 3e-4, 2e-8, 4e-9, 3e-10)


def steps(costs: StepCosts, noise: float = 0.0) -> list[TimedStep]:
    draw = random.Random(7)
    model = msgspec.structs.replace(h200_llama3_8b(), step=costs)
    made = []
    for _ in range(300):
        prefill = draw.choice([0, 16, 200, 800])
        rows = draw.randrange(1, 17)
        features = StepFeatures(
            prefill,
            rows,
            rows * draw.randrange(50, 1000),
            prefill * draw.randrange(1, 900),
            draw.randrange(8) * 10**6,
        )
        seconds = model.step_s(features) * (1 + noise * draw.uniform(-1, 1))
        made.append(TimedStep(features, seconds))
    return made


def test_coefficients_come_back() -> None:
    fitted = fit_steps(steps(COSTS))
    for name, value in msgspec.structs.asdict(COSTS).items():
        assert getattr(fitted, name) == pytest.approx(value, rel=1e-3), name
    assert median_error(fitted, steps(COSTS)) < 1e-6


def test_of_repeated_steps_the_quickest_counts() -> None:
    waves = [[TimedStep(COMMON, seconds) for seconds in times] for times in ((3, 1), (2, 4))]
    assert [step.seconds for step in least_disturbed(waves)] == [2, 1]


def test_noise_is_averaged_out() -> None:
    fitted = fit_steps(steps(COSTS, noise=0.1))
    assert fitted.step_s == pytest.approx(COSTS.step_s, rel=0.1)
    assert median_error(fitted, steps(COSTS, noise=0.1)) < 0.1


@given(
    st.lists(
        st.builds(
            TimedStep,
            st.builds(
                StepFeatures,
                *[st.integers(0, 1000)] * 3,
                st.just(0.0) | st.floats(0.5, 1e6),  # pairs of tokens
                st.integers(0, 10**8),
            ),
            st.floats(1e-5, 1.0),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_no_coefficient_is_negative(timed: list[TimedStep]) -> None:
    assert min(msgspec.structs.astuple(fit_steps(timed))) >= 0.0


def test_a_tier_is_a_latency_and_a_bandwidth() -> None:
    tier = fit_tier([(size, 0.01 + size / 1e9) for size in (10**6, 4 * 10**6, 9 * 10**6)], 2)
    assert tier.latency_s == pytest.approx(0.01, rel=1e-3)
    assert tier.bytes_per_s == pytest.approx(1e9, rel=1e-3)
    assert tier.load_s(10**7) == pytest.approx(0.02, rel=1e-3)
