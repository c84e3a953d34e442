"""The host tier of KV under a real decoder: what comes back is what went, to the bit, and the
answers are those of an engine whose arena holds everything."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.executor.page_copier import PageCopy, ThreadPageCopier
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tiny_llama import PAGE_BYTES, write_tiny_llama

PROMPTS = [[(7 * prompt + 3 * place) % 250 + 2 for place in range(100)] for prompt in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def engine(folder: Path, pages: int, host_pages: int) -> Engine:
    config = EngineConfig(
        model=str(folder),
        served_name="tiny",
        dtype="float32",
        threads=1,
        arena_bytes=pages * PAGE_BYTES,
        host_kv_bytes=host_pages * PAGE_BYTES,
        max_running=2,
        max_adapters=1,
    )
    return build_engine(config)


def answer(engine: Engine, name: str, prompt: list[int]) -> tuple[list[tuple[int, float]], int]:
    """The tokens with their log probabilities, and how many of the prompt's were cached."""
    woken = threading.Event()
    engine.on_wake = woken.set
    engine.submit(
        GenerationRequest(
            request_id=name,
            tenant=Tenant(key="t", namespace="ns"),
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0),
        )
    )
    made: list[tuple[int, float]] = []
    while True:
        if not engine.has_work:
            assert woken.wait(20), "nothing comes"
        woken.clear()
        for event in engine.step():
            if isinstance(event, TokenEvent):
                assert event.logprobs is not None
                chosen = [logprob.logprob for logprob in event.logprobs]
                made += zip(event.token_ids, chosen, strict=True)
            elif isinstance(event, FinishEvent):
                engine.check_integrity()
                return made, event.usage.cached_tokens


def test_answers_are_the_same_with_and_without_the_host_tier(folder: Path) -> None:
    large, small = engine(folder, 64, 0), engine(folder, 9, 64)
    try:
        small._memory.costs.observe_step = lambda *_: None  # type: ignore[method-assign]
        for turn in range(3):
            for number, prompt in enumerate(PROMPTS):
                name = f"{turn}-{number}"
                expected, cached = answer(large, name, prompt)
                found, fetched = answer(small, name, prompt)
                assert found == expected
                assert fetched == cached == (96 if turn else 0)
        assert small.stats().counters["kv_pages_fetched"] > 40
    finally:
        large.close()
        small.close()


def test_pages_come_back_to_the_bit(folder: Path) -> None:
    small = engine(folder, 9, 64)
    try:
        memory = small._memory
        memory.costs.observe_step = lambda *_: None  # type: ignore[method-assign]
        device = small._executor.memory  # type: ignore[attr-defined]
        arena, host_pages = device.arena.pool, device.host_pages
        for turn in range(2):
            for number, prompt in enumerate(PROMPTS):
                answer(small, f"{turn}-{number}", prompt)
                nodes = [node for root in memory.tree.roots() for node in root.evictable()]
                for node in nodes:
                    for chain, page in zip(node.hashes, node.pages, strict=True):
                        block = memory.host._blocks.get(chain)
                        if block is not None:
                            assert torch.equal(arena[page], host_pages[block.page])
        assert memory.host.used
    finally:
        small.close()


def test_a_cancelled_copy_writes_nothing_more() -> None:
    host, device = torch.ones((64, 50_000)), torch.zeros((64, 50_000))
    copier = ThreadPageCopier(device)
    done = threading.Event()
    copier.on_complete = done.set
    copy = PageCopy(host, list(range(64)), list(range(64)))
    copier.start(copy)
    copier.cancel(copy)
    device.zero_()
    last = PageCopy(host, [5], [63])
    copier.start(last)
    assert done.wait(20)
    copier.close()
    assert last in copier.take_completed()
    assert device[:63].count_nonzero() == 0
    assert device[63].min() == 1
