"""Logprobs of a prompt's own tokens, and its embedding, against transformers: in pieces, beside
others, behind a cached prefix and after preemption."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.errors import InvalidRequestError
from tenora_engine.events import FinishEvent, TokenEvent, TokenLogprob
from tenora_engine.request import BeamSearch, GenerationRequest, SamplingParams, Tenant
from tenora_engine.step import StepPlan, StepResult
from tenora_kernels.backend import has_compiled_ops
from tiny_llama import PAGE_BYTES, VOCAB, write_tiny_llama

DEADLINE_S = 120.0
ROUNDING = 1e-4  # of float32 sums over a hidden size of 64, in logits of size 1


@dataclass
class Told:
    """What the engine has said of one request."""

    scores: list[TokenLogprob] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    embedding: list[float] | None = None
    end: FinishEvent | None = None


@dataclass
class Engines:
    model: Path
    made: list[Engine] = field(default_factory=list)

    def make(self, dtype: str = "float32", pages: int = 64, **config: Any) -> Engine:
        item = 2 if dtype == "bfloat16" else 4
        settings = {
            "max_context_tokens": 256,
            "max_running": 12,
            "max_step_tokens": 48,
            "max_prefill_chunk": 48,
            "max_adapters": 1,
            **config,
        }
        engine = build_engine(
            EngineConfig(
                model=str(self.model),
                served_name="tiny",
                dtype=dtype,  # type: ignore[arg-type]
                arena_bytes=pages * PAGE_BYTES // 4 * item,
                memory_bytes=1024**3,
                **settings,
            )
        )
        self.made.append(engine)
        return engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engines(model: Path) -> Iterator[Engines]:
    made = Engines(model)
    yield made
    for engine in made.made:
        engine.close()


def request(name: str, prompt: list[int], **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key="tenant", namespace="one"),
        prompt_token_ids=prompt,
        sampling=SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **sampling}),
    )


def answers(engine: Engine, requests: list[GenerationRequest]) -> dict[tuple[str, int], Told]:
    """By request and sequence."""
    for each in requests:
        engine.submit(each)
    told: dict[tuple[str, int], Told] = {}
    until_s, wanted = time.monotonic() + DEADLINE_S, sum(each.sampling.n for each in requests)
    while sum(each.end is not None for each in told.values()) < wanted:
        assert time.monotonic() < until_s
        for event in engine.step():
            assert isinstance(event, TokenEvent | FinishEvent)
            one = told.setdefault((event.request_id, event.index), Told())
            if isinstance(event, FinishEvent):
                assert event.reason in ("length", "stop"), event.error
                one.end = event
                continue
            if event.prompt_logprobs is not None:
                assert not one.token_ids, "the prompt's come first"
            one.scores += event.prompt_logprobs or []
            one.token_ids += event.token_ids
            one.logprobs += event.logprobs or []
            one.embedding = event.embedding or one.embedding
    engine.check_integrity()
    return told


def prompts(count: int, longest: int) -> list[list[int]]:
    """Behind one common beginning."""
    draw = random.Random(7)
    common = [draw.randrange(3, VOCAB) for _ in range(40)]
    return [
        common + [draw.randrange(3, VOCAB) for _ in range(draw.randrange(1, longest))]
        for _ in range(count)
    ]


def test_scores_are_those_of_transformers(model: Path, engines: Engines) -> None:
    """Others decode beside them, and there are pages for a few only: some begin again."""
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    asked = [
        request(f"{number}", prompt, max_tokens=60, prompt_logprobs=number % 3)
        for number, prompt in enumerate(prompts(12, 120))
    ]
    engine = engines.make(pages=30)
    told = answers(engine, asked)
    assert engine.stats().counters["preemptions"] > 0
    for each in asked:
        prompt, scores = each.prompt_token_ids, told[each.request_id, 0].scores
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt])).logits[0, :-1]
        expected = logits.log_softmax(dim=1)
        assert [score.token_id for score in scores] == prompt[1:]
        for place, score in enumerate(scores):
            assert abs(score.logprob - float(expected[place, score.token_id])) < ROUNDING
            best = expected[place].topk(each.sampling.prompt_logprobs or 0).values
            given = torch.tensor([logprob for _, logprob in score.top])
            torch.testing.assert_close(given, best, atol=ROUNDING, rtol=0)
        end = told[each.request_id, 0].end
        assert end is not None
        assert end.usage.cached_tokens == 0, "nothing of it was skipped"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_scores_as_when_it_was_generated(engines: Engines, dtype: str) -> None:
    if not has_compiled_ops():
        pytest.skip("the kernels are not compiled: torch promises no bits")
    engine = engines.make(dtype)
    (prompt,) = prompts(1, 30)
    made = answers(engine, [request("made", prompt, max_tokens=50, logprobs=4)])["made", 0]
    whole = request("again", prompt + made.token_ids, max_tokens=1, prompt_logprobs=4)
    again = answers(engine, [whole])["again", 0]
    assert again.scores[len(prompt) - 1 :] == made.logprobs


@pytest.mark.parametrize("beams", [None, BeamSearch()])
def test_the_token_that_ends_an_answer_is_scored_with_the_others(
    engines: Engines, beams: BeamSearch | None
) -> None:
    engine, (prompt,) = engines.make(), prompts(1, 30)
    asked: dict[str, Any] = {"logprobs": 3, "beams": beams, "n": 1 if beams is None else 2}
    made = answers(engine, [request("made", prompt, max_tokens=9, **asked)])["made", 0]
    assert made.end is not None
    assert made.end.stop_logprob is None
    last = made.logprobs[-1]
    stops = request("ended", prompt, max_tokens=9, stop_token_ids=(last.token_id,), **asked)
    ended = [told for told in answers(engine, [stops]).values() if told.end is not None]
    assert any(told.end is not None and told.end.stop_token_id is not None for told in ended)
    for told in ended:
        assert told.end is not None
        scored, stop = told.end.stop_logprob, told.end.stop_token_id
        assert (None if scored is None else scored.token_id) == stop
    if beams is None:
        assert [*ended[0].logprobs, ended[0].end and ended[0].end.stop_logprob] == made.logprobs


def test_the_prompt_alone(engines: Engines) -> None:
    """Nothing is generated, nor charged as if it were; of several sequences the first tells."""
    engine, (prompt,) = engines.make(), prompts(1, 30)
    asked = request("alone", prompt, max_tokens=0, n=2, prompt_logprobs=0, temperature=1.0)
    told = answers(engine, [asked])
    assert len(told["alone", 0].scores) == len(prompt) - 1
    assert not told["alone", 1].scores
    for index in range(2):
        end = told["alone", index].end
        assert not told["alone", index].token_ids
        assert end is not None
        assert end.usage.output_tokens == 0
        assert end.usage.prompt_tokens == (0 if index else len(prompt))
        assert end.usage.first_token_s is not None
    one = answers(engine, [request("one", [5], max_tokens=0, prompt_logprobs=0)])
    assert one["one", 0].scores == []


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_embeddings_are_those_of_transformers(
    model: Path, engines: Engines, max_tokens: int
) -> None:
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    asked = [
        request(f"{number}", prompt, max_tokens=max_tokens, embeds=True)
        for number, prompt in enumerate(prompts(8, 120))
    ]
    beside = [
        request(f"beside {n}", prompt, max_tokens=40) for n, prompt in enumerate(prompts(3, 9))
    ]
    engine = engines.make()
    told = answers(engine, [*asked, *beside])
    for each in asked:
        with torch.inference_mode():
            states = reference.model(torch.tensor([each.prompt_token_ids])).last_hidden_state
        embedding = told[each.request_id, 0].embedding
        assert embedding is not None
        # Normed states of size 1 in each of 64 features.
        torch.testing.assert_close(torch.tensor(embedding), states[0, -1], atol=1e-3, rtol=1e-3)
        assert len(told[each.request_id, 0].token_ids) == max_tokens
    assert told["beside 0", 0].embedding is None


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_an_embedding_without_a_direction_is_an_error(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """It cannot be scaled to length 1; nothing is charged."""
    engine = engines.make()
    execute = engine._executor.execute

    def without_direction(plan: StepPlan) -> StepResult | None:
        result = execute(plan)
        assert result is not None
        result.embeddings.update((row, [value, 0.0]) for row in result.embeddings)
        return result

    monkeypatch.setattr(engine._executor, "execute", without_direction)
    engine.submit(request("none", [5, 6], max_tokens=0, embeds=True))
    [end] = engine.step()
    assert isinstance(end, FinishEvent)
    assert (end.reason, end.fault, end.usage.prompt_tokens) == ("error", "weights", 0)


def test_what_cannot_be(engines: Engines) -> None:
    engine = engines.make()
    for sampling in ({"max_tokens": 0}, {"prompt_logprobs": 21}, {"prompt_logprobs": -1}):
        with pytest.raises(InvalidRequestError):
            engine.submit(request("bad", [5, 6], **sampling))
