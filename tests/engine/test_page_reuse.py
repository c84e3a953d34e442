"""What a tenant left in freed pages cannot change another's answer: with a real decoder, whose
kernels read whole pages of which a sequence has written only a part."""

from __future__ import annotations

from pathlib import Path

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant

ARENA_PAGES = 9


def answer(engine: Engine, who: str, name: str, prompt: list[int]) -> list[tuple[int, float]]:
    """The tokens with their log probabilities, computed without any cached prefix."""
    engine.submit(
        GenerationRequest(
            request_id=name,
            tenant=Tenant(key=who, namespace=f"ns-{who}"),
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, logprobs=0),
        )
    )
    made: list[tuple[int, float]] = []
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                assert event.logprobs is not None
                chosen = [logprob.logprob for logprob in event.logprobs]
                made += zip(event.token_ids, chosen, strict=True)
            elif isinstance(event, FinishEvent):
                assert (event.reason, event.usage.cached_tokens) == ("length", 0)
    engine.check_integrity()
    return made


def test_freed_pages_leak_nothing_into_another_tenants_answer(base_model_dir: Path) -> None:
    page_bytes = 30 * 2 * 16 * 3 * 64 * 2
    engine = build_engine(
        EngineConfig(
            model=str(base_model_dir),
            served_name="base",
            threads=1,
            arena_bytes=ARENA_PAGES * page_bytes,
            max_running=4,
            max_adapters=1,
        )
    )
    try:
        assert engine.stats().pool.total_pages == ARENA_PAGES
        prompt = [7, 300, 42] * 7  # a page and a part of one
        before = answer(engine, "b", "fresh", prompt)
        for number in range(4):  # each fills the arena and evicts what was there
            answer(engine, "a", f"a{number}", [1000 * number + token for token in range(130)])
        assert "ns-b" not in engine.stats().pool.tenants
        assert answer(engine, "b", "reused", prompt) == before
    finally:
        engine.close()
