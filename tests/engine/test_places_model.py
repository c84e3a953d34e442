"""Places that change hands under a real decoder: seeded, penalised and greedy answers are those of
each sequence alone, also where the cached blocks were evicted, to the host or for good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import TokenEvent
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant

PAGE_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # layers, K and V, tokens, heads, features, float32
SAMPLINGS = [
    SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=7, max_tokens=60, ignore_eos=True, n=2),
    SamplingParams(
        temperature=0.8,
        seed=8,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.2,
        max_tokens=60,
        ignore_eos=True,
    ),
    SamplingParams(temperature=1.2, top_p=0.9, seed=9, max_tokens=60, ignore_eos=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def build(
    folder: Path, pages: int, places: int, host_pages: int = 0, caching: bool = True
) -> Engine:
    return build_engine(
        EngineConfig(
            model=str(folder),
            served_name="tiny",
            dtype="float32",
            threads=1,
            arena_bytes=pages * PAGE_BYTES,
            host_kv_bytes=host_pages * PAGE_BYTES,
            max_running=places,
            max_adapters=1,
            prefix_caching=caching,
        )
    )


def requests() -> list[GenerationRequest]:
    """Two of each kind, of one tenant."""
    return [
        GenerationRequest(
            request_id=f"n{number}",
            tenant=Tenant(key="noisy", namespace="noisy"),
            prompt_token_ids=[(number + 3 * place) % 250 + 2 for place in range(20)],
            sampling=SAMPLINGS[number % len(SAMPLINGS)],
        )
        for number in range(2 * len(SAMPLINGS))
    ]


def short(number: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"q{number}",
        tenant=Tenant(key="quiet", namespace="quiet"),
        prompt_token_ids=[number % 200 + 5, 9, 9, 11],
        sampling=SamplingParams(temperature=1.0, seed=number, max_tokens=3, ignore_eos=True),
    )


Answers = dict[tuple[str, int], list[int]]


def take(engine: Engine, into: Answers) -> None:
    for event in engine.step():
        if isinstance(event, TokenEvent):
            into.setdefault((event.request_id, event.index), []).extend(event.token_ids)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Answers:
    engine, answers = build(folder, 200, 2), Answers()
    for request in requests():
        engine.submit(request)
        while engine.has_work:
            take(engine, answers)
    engine.close()
    return answers


@pytest.mark.parametrize(
    ("pages", "host_pages", "caching"),
    [(200, 0, True), (24, 100, True), (60, 0, False)],
)
def test_who_gives_up_a_place_goes_on_as_if_nothing_had_been(
    folder: Path, alone: Answers, pages: int, host_pages: int, caching: bool
) -> None:
    engine, answers = build(folder, pages, 4, host_pages, caching), Answers()
    for request in requests():
        engine.submit(request)
    steps = 0
    while engine.has_work:
        if steps % 5 == 0 and steps < 200:
            engine.submit(short(steps))
        take(engine, answers)
        steps += 1
        assert steps < 5000
    assert engine.stats().counters["places_given_up"] > 10
    engine.check_integrity()
    engine.close()
    assert {key: made for key, made in answers.items() if key[0].startswith("n")} == alone
