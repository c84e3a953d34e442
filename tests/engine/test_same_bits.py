"""A token has the same bits however it came to be computed: alone or among others, in one piece or
token by token, after a cached prefix, or again after its sequence had given up its pages."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent, TokenLogprob
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_kernels.backend import has_compiled_ops
from tiny_llama import PAGE_BYTES, VOCAB, write_tiny_llama

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_compiled_ops():
        pytest.skip("the kernels are not compiled: torch promises no bits")
    return write_tiny_llama(tmp_path_factory.mktemp("model"))


def engine_of(model: Path, dtype: str, pages: int, step_tokens: int) -> Engine:
    item = 2 if dtype == "bfloat16" else 4
    config = EngineConfig(
        model=str(model),
        served_name="tiny",
        dtype=dtype,  # type: ignore[arg-type]
        arena_bytes=pages * PAGE_BYTES // 4 * item,
        memory_bytes=1024**3,
        max_context_tokens=256,
        max_running=12,
        max_step_tokens=step_tokens,
        max_prefill_chunk=step_tokens,
        max_adapters=1,
    )
    return build_engine(config)


def requests(namespace: str | None = None) -> list[GenerationRequest]:
    """Greedy and drawn, behind three common prefixes, which are shared in one namespace only."""
    draw = random.Random(5)
    prefixes = [[draw.randrange(3, VOCAB) for _ in range(n)] for n in (16, 48, 97)]
    made = []
    for number in range(36):
        own = [draw.randrange(3, VOCAB) for _ in range(draw.randrange(1, 40))]
        sampling = SamplingParams(
            temperature=number % 2 * 0.8,
            seed=number,
            max_tokens=draw.randrange(20, 100),
            ignore_eos=True,
            logprobs=4,
        )
        made.append(
            GenerationRequest(
                request_id=str(number),
                tenant=Tenant(key="tenant", namespace=namespace or f"own {number}"),
                prompt_token_ids=prefixes[number % 3] + own,
                sampling=sampling,
            )
        )
    return made


@dataclass
class Answers:
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    cached_tokens: int = 0

    def collect(self, engine: Engine, wanted: int) -> None:
        until_s, ended = time.monotonic() + DEADLINE_S, 0
        while ended < wanted:
            assert time.monotonic() < until_s
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    self.logprobs.setdefault(event.request_id, []).extend(event.logprobs or [])
                elif isinstance(event, FinishEvent):
                    assert event.reason == "length", event.error
                    self.cached_tokens += event.usage.cached_tokens
                    ended += 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_are_the_same_to_the_bit(model: Path, dtype: str) -> None:
    alone, crowd = Answers(), Answers()
    engine = engine_of(model, dtype, pages=64, step_tokens=256)
    for request in requests():
        engine.submit(request)
        alone.collect(engine, 1)
    engine.close()
    assert not alone.cached_tokens
    engine = engine_of(model, dtype, pages=40, step_tokens=17)
    for request in requests("shared"):
        engine.submit(request)
    crowd.collect(engine, len(requests()))
    preemptions = engine.stats().counters["preemptions"]
    engine.close()
    assert preemptions > 0
    assert crowd.cached_tokens > 0
    assert crowd.logprobs == alone.logprobs
