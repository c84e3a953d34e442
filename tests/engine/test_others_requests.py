"""Nobody's answer depends on what others ask for: tokens, logprobs and beams are the same to the
bit as alone, whatever shares the steps. In bfloat16 many logits are equal, so that every choice
among equals is put to the test."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from small_adapters import publish_sick, publish_small
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent, TokenLogprob, UsageRecord
from tenora_engine.model.loader import read_model_info
from tenora_engine.request import (
    AdapterRef,
    BeamSearch,
    GenerationRequest,
    SamplingParams,
    Tenant,
)
from tenora_kernels.backend import has_compiled_ops
from tiny_llama import write_tiny_llama

VOCAB = 600  # no multiple of what is summed or compared at once
DEADLINE_S = 60.0
REQUESTS = 40
TENANTS = 4


@dataclass
class World:
    engine: Engine
    adapters: list[AdapterRef]
    sick: list[AdapterRef]


@dataclass
class Said:
    """All that came of one request."""

    tokens: dict[int, list[int]] = field(default_factory=dict)  # by sequence
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    embedding: list[float] | None = None
    endings: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    usage: list[UsageRecord] = field(default_factory=list, compare=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if not has_compiled_ops():
        pytest.skip("the kernels are not compiled: torch promises no bits")
    folder = tmp_path_factory.mktemp("others")
    config = EngineConfig(
        model=str(write_tiny_llama(folder / "model", VOCAB)),
        served_name="tiny",
        dtype="bfloat16",
        arena_bytes=4 * 1024**2,
        memory_bytes=1024**3,
        max_context_tokens=256,
        max_running=12,
        max_step_tokens=64,
        max_adapters=4,
        object_store=str(folder / "store"),
    )
    info, store = read_model_info(config), folder / "store"
    made = [
        publish_small(folder / f"a{rank}", store, info, seed=rank, rank=rank) for rank in (1, 4, 16)
    ]
    sick = [
        publish_sick(folder / f"sick{value}", store, info, value=value) for value in (3e38, 3e9)
    ]
    engine = build_engine(config)
    yield World(engine, made, sick)
    engine.close()


def draw_sampling(draw: random.Random) -> SamplingParams:
    """Of every kind that a request may be."""
    asked: dict[str, Any] = {"max_tokens": draw.randrange(1, 24)}
    if draw.random() < 0.6:
        asked["logprobs"] = draw.randrange(0, 21)
    kind = draw.choice(["greedy", "drawn", "several", "beams", "scored", "embeds"])
    if kind == "beams":
        return SamplingParams(**asked, temperature=0.0, n=draw.randrange(2, 6), beams=BeamSearch())
    if kind == "embeds":
        return SamplingParams(temperature=0.0, max_tokens=0, embeds=True)
    if kind == "scored":
        asked["prompt_logprobs"] = draw.randrange(0, 21)
    if kind == "several":
        asked["n"] = 3
    if kind in ("drawn", "several") or draw.random() < 0.3:
        asked["seed"] = draw.choice([None, draw.randrange(1000)])
        asked["top_p"] = draw.choice([1.0, 0.9, 0.3])
        asked["top_k"] = draw.choice([0, 0, 3, 50])
        asked["min_p"] = draw.choice([0.0, 0.0, 0.2])
        asked["temperature"] = draw.choice([0.5, 1.0, 1.9])
    else:
        asked["temperature"] = 0.0
    for name, value in {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {7: 0.01, 300: -0.01},
        "allowed_token_ids": tuple(range(0, VOCAB, 2)),
        "bad_words": ((5,), (8, 9)),
        "min_tokens": min(4, asked["max_tokens"]),
    }.items():
        if draw.random() < 0.2:
            asked[name] = value
    return SamplingParams(**asked)


def draw_request(draw: random.Random, number: int, world: World) -> GenerationRequest:
    tenant = f"tenant {draw.randrange(TENANTS)}"
    return GenerationRequest(
        request_id=str(number),
        tenant=Tenant(key=tenant, namespace=tenant),
        prompt_token_ids=[draw.randrange(3, VOCAB) for _ in range(draw.randrange(2, 60))],
        sampling=draw_sampling(draw),
        adapter=draw.choice([None, *world.adapters]),
    )


def collect(
    engine: Engine,
    said: dict[str, Said],
    requests: list[GenerationRequest],
    arriving: Callable[[], None] | None = None,
) -> None:
    """Step until all sequences of the requests have ended, `arriving()` before each step."""
    until_s = time.monotonic() + DEADLINE_S
    wanted = sum(request.sampling.n for request in requests)
    while wanted:
        assert time.monotonic() < until_s
        if arriving is not None:
            arriving()
        for event in engine.step():
            assert isinstance(event, TokenEvent | FinishEvent)
            one = said.setdefault(event.request_id, Said())
            if isinstance(event, TokenEvent):
                one.tokens.setdefault(event.index, []).extend(event.token_ids)
                one.logprobs.setdefault(event.index, []).extend(event.logprobs or [])
                one.prompt_logprobs += event.prompt_logprobs or []
                one.embedding = event.embedding or one.embedding
                continue
            one.endings[event.index] = (event.reason, event.error)
            one.usage.append(event.usage)
            wanted -= 1
    engine.check_integrity()


def alone(engine: Engine, requests: list[GenerationRequest]) -> dict[str, Said]:
    said: dict[str, Said] = {}
    for request in requests:
        engine.submit(request)
        collect(engine, said, [request])
    return said


def together(
    engine: Engine, requests: list[GenerationRequest], draw: random.Random
) -> dict[str, Said]:
    """In another order, some of them while others run."""
    said: dict[str, Said] = {}
    left = draw.sample(requests, len(requests))

    def arrive() -> None:
        for _ in range(min(len(left), draw.choice([0, 0, 1, 5]))):
            engine.submit(left.pop())

    collect(engine, said, requests, arrive)
    return said


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_does_not_depend_on_what_others_ask_for(world: World, seed: int) -> None:
    draw = random.Random(seed)
    requests = [draw_request(draw, number, world) for number in range(REQUESTS)]
    expected = alone(world.engine, requests)
    assert all(reason != "error" for one in expected.values() for reason, _ in one.endings.values())
    said = together(world.engine, requests, draw)
    for request in requests:
        assert said[request.request_id] == expected[request.request_id], request
    # The test is worth something only where equals are frequent.
    tops = [found.top for one in said.values() for row in one.logprobs.values() for found in row]
    equals = [top for top in tops if len({value for _, value in top}) < len(top)]
    assert len(equals) > len(tops) // 10
    for top in tops:
        assert top == sorted(top, key=lambda each: (-each[1], each[0]))


@pytest.mark.parametrize("seed", range(2))
def test_an_adapter_whose_logits_are_no_numbers_fails_alone(world: World, seed: int) -> None:
    """However it is asked, it is told so and charged nothing; others get what they get alone."""
    draw = random.Random(100 + seed)
    requests = [draw_request(draw, number, world) for number in range(REQUESTS)]
    expected = alone(world.engine, requests)
    more = [draw_request(draw, number, world) for number in range(REQUESTS, REQUESTS + 20)]
    sick = [
        msgspec.structs.replace(each, adapter=world.sick[number % 2])
        for number, each in enumerate(more)
    ]
    said = together(world.engine, requests + sick, draw)
    for request in requests:
        assert said[request.request_id] == expected[request.request_id], request
    for request in sick:
        assert request.adapter is not None
        one = said[request.request_id]
        assert not any(one.tokens.values()), request
        assert not one.embedding
        assert one.endings.keys() == set(range(request.sampling.n))
        for reason, error in one.endings.values():
            assert reason == "error"
            assert request.adapter.digest in str(error)
        assert all(
            not record.prompt_tokens and not record.output_tokens and not record.cold_load
            for record in one.usage
        )


@pytest.mark.parametrize("number", [0, 1])
def test_what_it_computed_is_not_charged_where_it_had_begun(world: World, number: int) -> None:
    """A request ends as a whole: none of its sequences has an answer."""
    request = GenerationRequest(
        request_id="several",
        tenant=Tenant(key="tenant", namespace="own"),
        prompt_token_ids=list(range(10, 60)),
        sampling=SamplingParams(temperature=1.0, n=4, seed=1, max_tokens=8),
        adapter=world.sick[number],
    )
    said = alone(world.engine, [request])["several"]
    assert [reason for reason, _ in said.endings.values()] == ["error"] * 4
    assert sum(record.prompt_tokens + record.output_tokens for record in said.usage) == 0
