"""Beam search in the engine: token ids equal those of transformers' `generate(num_beams=...)`,
whatever is in flight beside it, however little memory or how few places there are; and it ends as a
whole."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from adapter_store import publish, randomise
from tenora_bench.recorded.replay import replay
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.errors import InvalidRequestError
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.executor.recording import Planned, Recording
from tenora_engine.request import AdapterRef, BeamSearch, GenerationRequest, SamplingParams, Tenant
from tenora_engine.step import CopyKV
from tiny_llama import PAGE_BYTES, VOCAB, write_tiny_llama

# peft 0.21 asks transformers 5.23 for a property that the latter has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

STEPS_MAX = 5000
EARLY: list[bool | Literal["never"]] = [False, True, "never"]


@dataclass(frozen=True)
class World:
    folder: Path
    base: Any
    adapted: Any
    adapter: AdapterRef

    def texts(self, request: GenerationRequest) -> list[list[int]]:
        """What transformers find, without what stops them."""
        sampling, prompt = request.sampling, request.prompt_token_ids
        assert sampling.beams is not None
        model = self.base if request.adapter is None else self.adapted
        with torch.inference_mode():
            made = model.generate(
                input_ids=torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                num_beams=sampling.n,
                num_return_sequences=sampling.n,
                length_penalty=sampling.beams.length_penalty,
                early_stopping=sampling.beams.early_stopping,
                max_new_tokens=sampling.max_tokens,
                min_new_tokens=sampling.min_tokens or None,
                eos_token_id=list(sampling.stop_token_ids) or None,
                pad_token_id=0,
                do_sample=False,
            )
        rows = made[:, len(prompt) :].tolist()
        return [_before(row, sampling.stop_token_ids)[: sampling.max_tokens] for row in rows]


def _before(row: list[int], stops: Sequence[int]) -> list[int]:
    """Rows are filled up behind what stops them."""
    ends = [place for place, token in enumerate(row) if token in stops]
    return row[: ends[0]] if ends else row


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("beams")
    write_tiny_llama(folder / "model")
    load = AutoModelForCausalLM.from_pretrained
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=8,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj", "o_proj", "up_proj"],
    )
    model: Any = load(folder / "model", dtype=torch.float32)
    adapted = get_peft_model(model, config)
    randomise(adapted, "default", 5)
    adapted.eval()
    adapted.save_pretrained(folder / "adapter")
    base: Any = load(folder / "model", dtype=torch.float32)
    return World(folder, base, adapted, publish(folder / "adapter", folder / "store"))


@contextmanager
def running(world: World, **config: Any) -> Iterator[Engine]:
    engine = build_engine(
        EngineConfig(
            model=str(world.folder / "model"),
            served_name="tiny",
            dtype="float32",
            threads=1,
            max_adapters=2,
            object_store=str(world.folder / "store"),
            **{"arena_bytes": 96 * PAGE_BYTES, "max_running": 8, **config},
        )
    )
    try:
        yield engine
    finally:
        engine.close()


def search(
    chance: random.Random, name: str, adapter: AdapterRef | None = None, most: int = 30
) -> GenerationRequest:
    """Any; of some the texts end early, since much of the vocabulary ends them."""
    stops = chance.sample(range(VOCAB), chance.choice([0, 2, 25]))
    max_tokens = chance.randrange(1, most)
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key=chance.choice("ab"), namespace="shared"),
        prompt_token_ids=[chance.randrange(3, VOCAB) for _ in range(chance.randrange(2, 40))],
        adapter=adapter,
        sampling=SamplingParams(
            temperature=0,
            n=chance.randrange(1, 7),
            max_tokens=max_tokens,
            min_tokens=chance.choice([0, 0, min(3, max_tokens)]),
            ignore_eos=True,
            stop_token_ids=tuple(stops),
            beams=BeamSearch(
                length_penalty=chance.choice([1.0, 0.0, 2.0, -1.0]),
                early_stopping=chance.choice(EARLY),
            ),
        ),
    )


def drawn(chance: random.Random, name: str) -> GenerationRequest:
    """One that is no search."""
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key=chance.choice("bc"), namespace="shared"),
        prompt_token_ids=[chance.randrange(3, VOCAB) for _ in range(chance.randrange(2, 40))],
        sampling=SamplingParams(
            temperature=chance.choice([0.0, 1.0]),
            seed=7,
            n=chance.choice([1, 1, 3]),
            max_tokens=chance.randrange(1, 40),
            ignore_eos=True,
        ),
    )


def events_of(engine: Engine, requests: Sequence[GenerationRequest], apart: int = 0) -> list[Event]:
    """Submitted so many steps apart; the memory is walked after each step."""
    woken = threading.Event()
    engine.on_wake = woken.set
    events: list[Event] = []
    waiting, left = list(requests), sum(request.sampling.n for request in requests)
    for step in range(STEPS_MAX):
        while waiting and (not apart or step % apart == 0):
            engine.submit(waiting.pop(0))
            if apart:
                break
        if not left:
            return events
        if not engine.has_work and not waiting:
            assert woken.wait(20), "nothing comes"
            woken.clear()
        made = engine.step()
        engine.check_integrity()
        left -= sum(isinstance(event, FinishEvent) for event in made)
        events += made
    raise AssertionError("it does not end")


def texts_of(events: Sequence[Event], request: GenerationRequest) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in range(request.sampling.n)]
    for event in events:
        if isinstance(event, TokenEvent) and event.request_id == request.request_id:
            texts[event.index] += event.token_ids
    return texts


def ends_of(events: Sequence[Event]) -> list[FinishEvent]:
    return [event for event in events if isinstance(event, FinishEvent)]


def check_empty(engine: Engine) -> None:
    """Nothing is left of what has ended."""
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.waiting_by_tenant) == (0, 0, {})
    assert stats.pool.live_kv_pages == 0
    assert not engine._requests.flights
    assert not engine._requests.held.by_tenant
    assert not engine.has_work


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


def test_an_engine_that_stops_meters_all_beams(world: World) -> None:
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
        assert [end.usage.output_tokens for end in ends] == [5] * 4


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
            arrival_s=1000.0,
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
