"""How long a step may be for the sake of those who come meanwhile: parts of what was promised, and
less for a tenant that asks for more than its share."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import Rig, fix_step_time, make_config, make_request, make_tenant
from tenora_engine.memory.costs import CostModel
from tenora_engine.scheduling.chunks import (
    ARRIVAL_PART,
    ARRIVAL_STEPS,
    LONG_S,
    MIN_ARRIVAL_PART,
    MIN_PREFILL_PART,
    PROMISE_MEMORY_S,
    STEP_PART,
    ChunkSizer,
    Promises,
)
from tenora_engine.scheduling.forecast import StepForecast, StepLoad
from tenora_engine.scheduling.tpot_promises import DECODED_PART, MARGIN, MEMORY_S, TpotPromises

NOW_S = 1000.0


def promises_of_a_quick_machine() -> TpotPromises:
    """A step takes a millisecond."""
    promises = TpotPromises(StepForecast(CostModel(make_config())))
    for _ in range(100):
        promises.observe(StepLoad(1, 10), 0.001)
    return promises


def binds(promises: TpotPromises, decoding: list[float], now_s: float) -> bool:
    """Whether a promise limits the rows."""
    promises.begin_step(decoding, is_alone=False)
    return promises.most_rows(now_s) != (None, None)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 20)), max_size=40))
def test_a_time_between_two_tokens_counts_in_proportion_to_what_was_decoded(
    seen: list[tuple[bool, float]],
) -> None:
    """While it is decoded, and at most so many times as long in all."""
    promises = promises_of_a_quick_machine()
    now_s, counted_s, decoded_s, was, did = NOW_S, 0.0, 0.0, False, False
    for decodes, passed_s in [*seen, (False, 0.0)]:
        now_s += passed_s
        counted_s += passed_s if did else 0.0
        decoded_s += passed_s if was and decodes else 0.0
        did = binds(promises, [0.02] if decodes else [], now_s)
        assert did >= decodes
        was = decodes
    once_s = max((passed_s for _, passed_s in seen), default=0.0)
    assert counted_s <= (DECODED_PART + 1) * decoded_s + (1 + len(seen)) * once_s
    assert not binds(promises, [], now_s) or decoded_s
    assert not binds(promises, [], now_s + 1.01 * MEMORY_S)


def test_who_has_decoded_for_long_is_remembered_for_a_while() -> None:
    promises = promises_of_a_quick_machine()
    for tenth in range(100):
        assert binds(promises, [0.02, 0.05], NOW_S + tenth / 10)
        assert promises.binding_s == 0.02
    assert binds(promises, [], NOW_S + 60)
    assert not binds(promises, [], NOW_S + 80)
    promises.begin_step([0.0015, 0.05], is_alone=False)
    assert promises.binding_s == 0.05, "no step leaves anything of the other"
    assert promises.unkept == {0.0015}


@given(
    st.lists(st.tuples(st.floats(1, 1e5), st.floats(0, 100)), max_size=10),
    st.floats(0, 0.1),
    st.integers(8, 4096),
    st.integers(0, 100_000),
)
def test_no_step_takes_longer_than_a_part_of_what_was_lately_promised(
    promises: list[tuple[float, float]], decode_s: float, most: int, context: int
) -> None:
    """However much context its tokens attend to."""
    sizer = ChunkSizer(CostModel(make_config()))
    for _ in range(100):
        sizer.forecast.observe(StepLoad(4, 400), decode_s)
    for ttft_ms, ago_s in sorted(promises, key=lambda promise: -promise[1]):
        sizer.promises.observe(make_tenant(ttft_ms=ttft_ms), NOW_S - ago_s)
    sizer.promises.observe(make_tenant(), NOW_S)
    lately = [ttft_ms / 1000 for ttft_ms, ago_s in promises if ago_s < PROMISE_MEMORY_S]
    forecast = sizer.forecast
    for seconds, part, least_part in (
        (sizer.step_s([], 4, NOW_S, most), STEP_PART, MIN_PREFILL_PART),
        (sizer.arrival_s(4, NOW_S, most), ARRIVAL_PART, MIN_ARRIVAL_PART),
    ):
        least_s = forecast.prefill_s(math.ceil(most / least_part))
        assert seconds >= least_s
        most_s = min(lately, default=math.inf) / part
        if part == ARRIVAL_PART:
            most_s = min(most_s, max(LONG_S / part, ARRIVAL_STEPS * forecast.decode_s(0)))
        if most_s == math.inf:
            assert seconds == math.inf
        elif seconds > least_s:
            chunk = forecast.tokens_within(seconds, context)
            step_s = forecast.decode_s(4) + forecast.prefill_s(chunk, context)
            assert MARGIN * step_s <= most_s + 1e-6


def test_what_a_step_takes_anyway_is_not_counted_as_its_tokens() -> None:
    """Steps of 10 ms, 1 ms a token and half of that for their context: half of a promise of 300 ms
    has room for 83 tokens, by MARGIN; a token would seem to take more by the size of the steps
    alone."""
    costs = CostModel(make_config())
    sizer = ChunkSizer(costs)
    sizer.promises.observe(make_tenant(ttft_ms=300.0), NOW_S)
    for _ in range(200):
        for num_tokens in (0, 16, 64, 256):
            pairs = num_tokens * (num_tokens + 1) / 2
            step_s = 0.010 + 0.001 * num_tokens + 0.001 / costs.even_tokens * pairs
            sizer.forecast.observe(StepLoad(tokens=num_tokens, pairs=pairs), step_s)
    seconds = sizer.step_s([], 0, NOW_S, 512)
    assert sizer.forecast.tokens_within(seconds) == pytest.approx(83, abs=3)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=20))
def test_tenants_count_as_long_as_their_last_request_is_remembered(
    requests: list[tuple[str, float]],
) -> None:
    promises, last_s, now_s = Promises(), {}, NOW_S
    for name, later_s in requests:
        now_s += later_s
        promises.observe(make_tenant(name), now_s)
        last_s[name] = now_s
        lately = [at_s for at_s in last_s.values() if at_s > now_s - PROMISE_MEMORY_S]
        assert promises.num_tenants(now_s) == len(lately)
    assert promises.num_tenants(now_s + 1.01 * PROMISE_MEMORY_S) == 0


def _crowd(rig: Rig, name: str, count: int) -> None:
    for number in range(count):
        tenant = make_tenant(name, ttft_ms=8000.0)
        rig.engine.submit(
            make_request(f"{name}{number}", [number, number + 1] * 8, tenant=tenant, max_tokens=1)
        )


def test_who_asks_for_more_than_its_share_keeps_steps_short_for_who_may_come() -> None:
    """Steps may take up to STEP_PART of the promise. While others have lately been there and have
    nothing waiting, a tenant with a backlog has only as much of a step as ARRIVAL_PART allows; a
    prompt of another goes before it and is not cut."""
    config = make_config(num_pages=256, max_step_tokens=40, max_prefill_chunk=40, max_running=16)
    rig = Rig.build(config)
    fix_step_time(rig, 0.0)
    chunks = rig.engine._scheduler._chunks
    # 25 tokens of prefill in ARRIVAL_PART of the promise, and the step itself takes nothing.
    chunks.forecast._seconds = [0.0, 0.0, 0.0, 0.04, 1e-9, 0.0]

    def planned() -> Counter[str]:
        rig.now_s += 0.01
        rig.engine.step()
        counted: Counter[str] = Counter()
        for item in rig.executor.plans[-1].scheduled:
            counted[item.sequence.request.tenant.key] += item.num_tokens
        return counted

    _crowd(rig, "noisy", 30)
    assert planned() == {"noisy": 40}, "alone it has all of it"
    tenant = make_tenant("quiet", ttft_ms=8000.0)
    for number in range(3):
        rig.engine.submit(
            make_request(f"q{number}", [50 + number] * 11, tenant=tenant, max_tokens=1)
        )
        first = planned()
        assert first["quiet"] == 11
        assert first["noisy"] <= 20 - 11
        assert planned()["noisy"] <= 20
