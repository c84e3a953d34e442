"""A beam search from its first step to its end: what is told and metered, and that it ends as a
whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch

from beam_world import (
    EARLY,
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
from tenora_bench.recorded.replay import replay
from tenora_engine.errors import InvalidRequestError
from tenora_engine.events import Event, TokenEvent
from tenora_engine.executor.recording import Planned, Recording
from tenora_engine.request import BeamSearch, GenerationRequest, SamplingParams, Tenant
from tenora_engine.step import CopyKV, StepPlan, StepResult
from tenora_kernels.compiled.decoder import NO_NUMBER
from tiny_llama import PAGE_BYTES

# peft 0.21 asks transformers 5.23 for a property that the latter has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("beams"))


def test_what_is_metered_and_when_it_is_told(world: World) -> None:
    """Each beam generates a token in each step; the first tokens come with the last."""
    request = GenerationRequest(
        request_id="r",
        tenant=Tenant(key="a", namespace="a"),
        prompt_token_ids=list(range(5, 25)),
        sampling=SamplingParams(
            temperature=0, n=3, max_tokens=12, logprobs=2, ignore_eos=True, beams=BeamSearch()
        ),
    )
    with running(world) as engine:
        before = engine.stats().counters["output_tokens"]
        engine.submit(request)
        steps: list[list[Event]] = []
        while engine.has_work:
            steps.append(engine.step())
        assert not any(steps[:-1])
        ends = ends_of(steps[-1])
        assert [end.index for end in ends] == [2, 1, 0]
        assert [end.usage.output_tokens for end in ends] == [12, 12, 12]
        assert [end.usage.prompt_tokens for end in ends] == [0, 0, 20]
        assert all(end.usage.first_token_s is not None for end in ends)
        assert all(end.usage.rejected_draft_tokens == 0 for end in ends)
        assert engine.stats().counters["output_tokens"] - before == 36
        meters = engine.stats().telemetry.meters
        assert sum(each.output_tokens for each in meters) == 36
        for event in steps[-1]:
            if isinstance(event, TokenEvent):
                assert event.logprobs is not None
                assert [each.token_id for each in event.logprobs] == event.token_ids
                assert all(len(each.top) == 2 for each in event.logprobs)
                tokens = [*request.prompt_token_ids, *event.token_ids]
                with torch.inference_mode():
                    logits = world.base(torch.tensor([tokens])).logits[0, 19:-1]
                expected = logits.log_softmax(1).gather(1, torch.tensor(tokens[20:])[:, None])
                found = torch.tensor([[each.logprob] for each in event.logprobs])
                # Sums of the same numbers of float32 in another order.
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("config", [{}, {"arena_bytes": 9 * PAGE_BYTES}, {"max_running": 2}])
@pytest.mark.parametrize("index", [None, 1])
def test_who_leaves_takes_all_beams_along(
    world: World, config: dict[str, Any], index: int | None
) -> None:
    chance = random.Random(3)
    with running(world, **config) as engine:
        for steps in range(9):
            name = f"r{steps}"
            request = search(chance, name)
            sampling = SamplingParams(
                temperature=0, n=4, max_tokens=20, ignore_eos=True, beams=BeamSearch()
            )
            engine.submit(
                GenerationRequest(
                    request_id=name,
                    tenant=request.tenant,
                    prompt_token_ids=request.prompt_token_ids,
                    sampling=sampling,
                )
            )
            for _ in range(steps):
                assert engine.step() == []
                engine.check_integrity()
            engine.abort(name, index)
            engine.abort(name)
            made = engine.step()
            engine.check_integrity()
            ends = ends_of(made)
            assert [(end.index, end.reason) for end in ends] == [(i, "abort") for i in (3, 2, 1, 0)]
            assert len(made) == 4, "tokens of a search that was aborted"
            generated = {end.usage.output_tokens for end in ends}
            assert len(generated) == 1
            assert generated == {steps} or config, "a token a step while nothing is short"
            check_empty(engine)


def test_a_failed_step_ends_the_search(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(8)
    with running(world, max_running=3) as engine:
        request = search(chance, "r", most=3)
        beams = SamplingParams(
            temperature=0, n=5, max_tokens=20, ignore_eos=True, beams=BeamSearch()
        )
        engine.submit(
            GenerationRequest(
                request_id="r",
                tenant=request.tenant,
                prompt_token_ids=request.prompt_token_ids,
                sampling=beams,
            )
        )
        for _ in range(6):
            engine.step()

        def broken(*_: Any) -> None:
            raise RuntimeError("no")

        with monkeypatch.context() as patch:
            patch.setattr(engine._executor, "execute", broken)
            ends = ends_of(engine.step())
        assert [end.reason for end in ends] == ["error"] * 5
        engine.check_integrity()
        check_empty(engine)
        again = search(chance, "again")
        assert texts_of(events_of(engine, [again]), again) == world.texts(again)


@pytest.mark.parametrize("sick", range(3))
def test_a_beam_without_numbers_ends_the_search_and_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch, sick: int
) -> None:
    """Whichever of them it is: those before it in the step have their candidates by then."""
    beams = SamplingParams(temperature=0, n=3, max_tokens=12, ignore_eos=True, beams=BeamSearch())
    chance = random.Random(8)
    other = drawn(chance, "other")
    with running(world) as engine:
        alone = texts_of(events_of(engine, [other]), other)
        engine.submit(msgspec.structs.replace(search(chance, "r"), sampling=beams))
        engine.submit(other)
        events = [event for _ in range(3) for event in engine.step()]
        execute = engine._executor.execute

        def without_numbers(plan: StepPlan) -> StepResult | None:
            result = execute(plan)
            assert result is not None
            for row, item in enumerate(engine._scheduler.scheduled(plan)):
                if (item.sequence.request.request_id, item.sequence.index) == ("r", sick):
                    result.token_ids[row][:] = [NO_NUMBER]
            return result

        with monkeypatch.context() as patch:
            patch.setattr(engine._executor, "execute", without_numbers)
            made = engine.step()
        engine.check_integrity()
        assert [(end.index, end.fault) for end in ends_of(made)] == [
            (index, "weights") for index in (2, 1, 0)
        ]
        while engine.has_work:
            made += engine.step()
        check_empty(engine)
        assert texts_of([*events, *made], other) == alone


def test_an_engine_that_stops_charges_no_beam(world: World) -> None:
    with running(world) as engine:
        request = search(random.Random(1), "r")
        beams = SamplingParams(
            temperature=0, n=4, max_tokens=20, ignore_eos=True, beams=BeamSearch()
        )
        engine.submit(
            GenerationRequest(
                request_id="r",
                tenant=request.tenant,
                prompt_token_ids=request.prompt_token_ids,
                sampling=beams,
            )
        )
        for _ in range(5):
            engine.step()
        ends = ends_of(engine.abandon(None))
        assert [end.usage.output_tokens for end in ends] == [0] * 4


def test_a_late_search_is_refused_whole(world: World) -> None:
    """Before anything of it has run; and once it has, no beam is."""
    now = [1000.0]
    with running(world) as engine:
        engine._requests._clock = lambda: now[0]
        tenant = Tenant(key="a", namespace="a", ttft_ms=500.0, late="refuse")
        request = GenerationRequest(
            request_id="r",
            tenant=tenant,
            prompt_token_ids=[5, 6, 7],
            sampling=SamplingParams(
                temperature=0, n=3, max_tokens=8, ignore_eos=True, beams=BeamSearch()
            ),
        )
        engine.submit(request)
        engine._requests.give_up_late(1010.0)
        assert [type(event).__name__ for event in engine.step()] == ["RefusedEvent"]
        engine.check_integrity()
        check_empty(engine)


def test_a_prediction_of_a_search_is_not_drafted(world: World) -> None:
    prompt = [7, 8, 9, 10] * 8
    with running(world) as engine:
        request = GenerationRequest(
            request_id="r",
            tenant=Tenant(key="a", namespace="a", keeps_answers=True),
            prompt_token_ids=prompt,
            prediction_token_ids=prompt,
            sampling=SamplingParams(
                temperature=0, n=3, max_tokens=30, ignore_eos=True, beams=BeamSearch()
            ),
        )
        events = events_of(engine, [request])
        assert texts_of(events, request) == world.texts(request)
        assert engine._scheduler.counters()["drafts_rejected"] == 0
        assert engine._scheduler.counters()["drafts_accepted"] == 0


@pytest.mark.parametrize("early", EARLY)
def test_a_search_crosses_to_an_engine_process(early: bool | Literal["never"]) -> None:
    request = GenerationRequest(
        request_id="r",
        tenant=Tenant(key="a", namespace="a"),
        prompt_token_ids=[4],
        sampling=SamplingParams(beams=BeamSearch(length_penalty=0.5, early_stopping=early)),
    )
    message = msgspec.msgpack.encode(request)
    assert msgspec.msgpack.decode(message, type=GenerationRequest) == request


def test_more_beams_than_there_may_be(world: World) -> None:
    with running(world) as engine, pytest.raises(InvalidRequestError, match="at most 32 beams"):
        engine.submit(
            GenerationRequest(
                request_id="r",
                tenant=Tenant(key="a", namespace="a"),
                prompt_token_ids=[4],
                sampling=SamplingParams(temperature=0, n=33, beams=BeamSearch()),
            )
        )


def test_a_recorded_search_is_replayed(world: World, tmp_path: Path) -> None:
    chance = random.Random(4)
    with running(world, record=str(tmp_path / "steps")) as engine:
        events_of(engine, [search(chance, f"r{number}") for number in range(6)])
    operations = [
        operation
        for frame in Recording(tmp_path / "steps").frames()
        if isinstance(frame, Planned)
        for operation in frame.plan.memory
    ]
    assert any(isinstance(operation, CopyKV) for operation in operations)
    assert replay(tmp_path / "steps").differing_rows == 0
