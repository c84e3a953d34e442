"""Answers are the same to the bit with drafts and without, whatever is asked of the samples, while
adapters, preemption and other requests are about; who pays for what was wrong, and whose text is
drafted from."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from drafted_requests import World, answers, engine_of, make_world, random_request
from tenora_engine.engine import Engine
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.scheduling.draft_texts import Text
from tenora_engine.scheduling.drafts import StepTimes
from tenora_kernels.backend import has_compiled_ops
from tiny_llama import PAGE_BYTES, VOCAB

REQUESTS = int(os.environ.get("TENORA_DRAFTED_REQUESTS", "400"))  # 8,000 are 10,000 sequences


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    if not has_compiled_ops():
        pytest.skip("the kernels are not compiled: torch promises no bits")
    return make_world(tmp_path_factory.mktemp("drafts"))


def test_answers_are_the_same_to_the_bit(world: World) -> None:
    draw = random.Random(11)
    requests = [random_request(draw, number, world.refs) for number in range(REQUESTS)]
    queue = {"max_waiting": 2 * REQUESTS, "max_tenant_waiting": 2 * REQUESTS}
    plain = engine_of(world, max_draft_tokens=0, **queue)
    expected = answers(plain, requests, later="t2")
    assert plain.stats().counters["drafts_accepted"] == 0
    plain.close()
    drafting = engine_of(world, **queue)
    found = answers(drafting, requests, later="t2")
    counters, meters = drafting.stats().counters, drafting.stats().telemetry.meters
    drafting.close()
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs
    assert found.ends == expected.ends
    assert counters["drafts_accepted"] > 1000
    assert counters["drafts_rejected"] > 100
    assert counters["preemptions"] > 0
    assert counters["express_steps"] > 0
    for name in ("drafts_accepted", "drafts_rejected"):
        by_source = Counter[str]()
        for meter in meters:
            by_source.update(getattr(meter, name))
        assert by_source.total() == counters[name]
        assert by_source["text"] > 0
        assert by_source["grammar"] > 0 or name == "drafts_rejected"


def request_of(name: str, prompt: list[int], **more: Any) -> GenerationRequest:
    tenant = more.pop("tenant", Tenant(key="t", namespace="t"))
    sampling = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    return GenerationRequest(
        request_id=name, tenant=tenant, prompt_token_ids=prompt, sampling=sampling, **more
    )


def accepted(engine: Engine, request: GenerationRequest) -> float:
    before = engine.stats().counters["drafts_accepted"]
    answers(engine, [request])
    return engine.stats().counters["drafts_accepted"] - before


def test_a_prediction_that_is_right_takes_fewer_steps(world: World) -> None:
    prompt = [7, 99, 3, 12, 45]
    engine = engine_of(world, max_draft_tokens=0)
    output = answers(engine, [request_of("plain", prompt)]).tokens["plain", 0]
    engine.close()
    engine = engine_of(world)
    before = engine.stats().counters["steps"]
    request = request_of("predicted", prompt, prediction_token_ids=output)
    found = answers(engine, [request])
    steps = engine.stats().counters["steps"] - before
    (meter,) = engine.stats().telemetry.meters
    engine.close()
    assert found.tokens["predicted", 0] == output
    assert steps < len(output) / 3  # how many, times decide
    usage = found.finished["predicted", 0].usage
    assert usage.output_tokens == len(output)
    assert usage.accepted_draft_tokens > len(output) / 2
    assert meter.drafts_accepted["prediction"] > len(output) / 2


def test_answers_draft_their_own_tenant_alone(world: World) -> None:
    """Nor another adapter's requests, nor those of a tenant who did not ask for it."""
    draw = random.Random(3)
    # Nothing repeats in it: what is drafted is of earlier answers or of none.
    prompt = draw.sample(range(3, VOCAB), 40)
    bias = {draw.randrange(VOCAB): 0.0}
    sampling = SamplingParams(temperature=1.0, seed=5, max_tokens=40, ignore_eos=True)

    def request(name: str, tenant: Tenant, adapter: AdapterRef | None = None) -> GenerationRequest:
        return GenerationRequest(
            request_id=name,
            tenant=tenant,
            prompt_token_ids=prompt,
            sampling=msgspec.structs.replace(sampling, logit_bias=bias),
            adapter=adapter,
        )

    keeps = Tenant(key="a", namespace="a", keeps_answers=True)
    other = Tenant(key="b", namespace="a", keeps_answers=True)  # of its trust group
    silent = Tenant(key="c", namespace="c")
    engine = engine_of(world, arena_bytes=400 * PAGE_BYTES)
    assert accepted(engine, request("first", keeps)) < 5
    again = accepted(engine, request("again", keeps))
    assert again > 20
    assert accepted(engine, request("other", other)) < 5
    assert accepted(engine, request("silent", silent)) < 5
    assert accepted(engine, request("silent again", silent)) < 5
    assert accepted(engine, request("adapter", keeps, world.refs[0])) < 5
    assert accepted(engine, request("adapter again", keeps, world.refs[0])) > 20
    engine.forget_adapter("a", world.refs[0].digest)
    assert accepted(engine, request("forgotten", keeps, world.refs[0])) < 5
    assert accepted(engine, request("base", keeps)) > 20
    engine.forget_namespace("a")
    assert accepted(engine, request("namespace forgotten", keeps)) < 5
    assert accepted(engine, request("base again", keeps)) > 20
    not_now = msgspec.structs.replace(keeps, keeps_answers=False)
    assert accepted(engine, request("not now", not_now)) < 5
    assert accepted(engine, request("forgotten too", keeps)) < 5
    meters = {meter.tenant: meter.drafts_accepted for meter in engine.stats().telemetry.meters}
    engine.close()
    assert meters["a"]["answers"] > 60
    assert not meters["b"].get("answers")
    assert not meters["c"].get("answers")


def test_a_text_goes_on_behind_its_beginning() -> None:
    text = Text([5, 6, 7, 8])
    assert text.behind([], 2) == ([5, 6], 16)
    assert text.behind([5], 9) == ([6, 7, 8], 16)
    assert text.behind([6], 9) == ([], 0)
    assert text.behind([5, 6, 7, 8], 9).token_ids == []


def test_the_last_place_of_the_longest_run_is_found() -> None:
    text = Text([1, 2, 3, 4, 50, 9, 1, 2, 3, 4, 60, 8, 2, 3, 4, 70, 1, 2, 3, 4])
    assert text.after(text.tail(), 2, is_own=True) == ([60, 8], 4)
    assert text.after(Text([9, 9, 2, 3, 4]).tail(), 2) == ([70, 1], 3)
    assert text.after(Text([9, 3, 4]).tail(), 2) == ([70, 1], 2)
    assert text.after(Text([5, 6, 7]).tail(), 2) == ([], 0)
    assert Text().after(text.tail(), 2) == ([], 0)


def test_what_a_row_adds_is_read_from_steps_and_remembered() -> None:
    """For a while, also while no step has drafts."""
    times = StepTimes()
    assert times.worth(16) == 16 * StepTimes.USUAL_PART
    for _ in range(100):
        times.observe(16, 0.016)
        times.observe(24, 0.024)
    assert times.row_s == pytest.approx(0.001, rel=1e-6)
    assert times.worth(16) == pytest.approx(1.0, rel=1e-6)
    for _ in range(200):
        times.observe(16, 0.016)
    assert times.worth(16) > 0.75
    for _ in range(3000):
        times.observe(16, 0.016)
    assert times.worth(16) == pytest.approx(16 * StepTimes.USUAL_PART, rel=0.05)


def test_what_proposing_takes_is_seen_by_itself() -> None:
    """As a part of a step, whatever the rows add to one."""
    times = StepTimes()
    assert times.proposed_part == StepTimes.PROPOSED_PART
    for _ in range(300):
        times.observe(4, 0.010)
        times.observe_proposing(2, 0.001)
    assert times.proposed_part == pytest.approx(0.05, rel=1e-6)
    for _ in range(300):
        times.observe_proposing(1, 0.002)
    assert times.proposed_part == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_found_stands_behind_what_was_looked_for(seed: int) -> None:
    """By looking at every place, in numbers whose bytes are found across the borders of others."""
    draw = random.Random(seed)
    values = (0, 1, 256, 65536, 257)
    for _ in range(300):
        tokens = [draw.choice(values) for _ in range(draw.randrange(3, 40))]
        tail = [draw.choice(values) for _ in range(draw.randrange(1, 9))]
        expected: tuple[list[int], int] = [], 0
        for length in (8, 4, 3, 2):
            places = [
                place
                for place in range(len(tokens) - length)
                if len(tail) >= length and tokens[place : place + length] == tail[-length:]
            ]
            if places:
                expected = tokens[places[-1] + length :][:5], length
                break
        assert Text(tokens).after(Text(tail).tail(), 5) == expected
