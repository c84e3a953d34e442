"""What drafts bring: tokens a second with them over those without, on one engine each, in turns;
behind `tenora bench drafts`."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from tenora_bench.client import BenchError
from tenora_bench.machine import machine
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor
from tenora_engine.threads import call_in_ending_thread

TOPICS = ("rain", "bread", "trains", "the sea", "winter", "a library", "bees", "maps")
NEW_TOKENS = 128
GREEDY = {"temperature": 0.0}


def chats(text: TextProcessor, count: int) -> list[list[int]]:
    return [
        text.encode_chat(
            [{"role": "user", "content": f"Write four sentences about {TOPICS[n % len(TOPICS)]}."}]
        )
        for n in range(count)
    ]


def random_prompts(vocab: int, count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, vocab) for _ in range(64)] for _ in range(count)]


def request(name: str, prompt: list[int], **more: Any) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, **more.pop("sampling", {}))
    key = more.pop("tenant", "t")
    tenant = Tenant(key=key, namespace=key, keeps_answers=more.pop("keeps_answers", False))
    return GenerationRequest(
        request_id=name, tenant=tenant, prompt_token_ids=prompt, sampling=sampling, **more
    )


def run(engine: Engine, requests: list[GenerationRequest]) -> tuple[float, dict[str, list[int]]]:
    """Tokens a second, from the first token of all to the last, and the answers."""
    tokens: dict[str, list[int]] = {each.request_id: [] for each in requests}
    for each in requests:
        engine.submit(each)
    left, started = len(requests), time.perf_counter()
    while left:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                tokens[event.request_id] += event.token_ids
            elif isinstance(event, FinishEvent):
                left -= 1
    return NEW_TOKENS * len(requests) / (time.perf_counter() - started), tokens


def measure(model: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Raises BenchError where an answer differs."""
    torch.set_num_threads(threads)
    engines = {most: _engine(model, most) for most in (0, 16)}
    text = TextProcessor(model)
    vocab = engines[0].config.model.vocab
    prompts = chats(text, 16)
    # A tenant of its own: what one that keeps none is answered ends what is kept of it.
    again = request("again", prompts[1], sampling=GREEDY, keeps_answers=True, tenant="again")
    run(engines[16], [again])
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        chat = [request(f"{n}", p, sampling=GREEDY) for n, p in enumerate(prompts)]
        _, said = run(engines[0], chat)
        predicted = [
            msgspec.structs.replace(each, prediction_token_ids=said[each.request_id])
            for each in chat
        ]
        cases = {
            "an answer as predicted, 1 stream": predicted[:1],
            "answers as predicted, 16 streams": predicted,
            "the tenant's answer again, 1 stream": [again],
            "greedy chats, 1 stream": chat[2:3],
            "greedy chats, 16 streams": chat,
        }
        for streams in (1, 16, 64):
            cases[f"drawn at temperature 1 after random tokens, {streams} streams"] = [
                request(f"{n}", p, sampling={"temperature": 1.0, "seed": n})
                for n, p in enumerate(random_prompts(vocab, streams, number))
            ]
        for name, requests in cases.items():
            ratios.setdefault(name, []).append(_ratio(name, engines, requests, number % 2 == 1))
    counters = engines[16].stats().counters
    for engine in engines.values():
        engine.close()
    return {
        "machine": machine(),
        "rounds": rounds,
        "accepted": counters["drafts_accepted"],
        "rejected": counters["drafts_rejected"],
        "ratios": {
            name: {"median": statistics.median(all_), "least": min(all_), "most": max(all_)}
            for name, all_ in ratios.items()
        },
    }


def _ratio(
    name: str, engines: dict[int, Engine], requests: list[GenerationRequest], drafts_last: bool
) -> float:
    found = {
        most: run(engines[most], requests) for most in sorted(engines, reverse=not drafts_last)
    }
    if found[0][1] != found[16][1]:
        raise BenchError(f"{name}: answers differ with drafts and without")
    return found[16][0] / found[0][0]


def _engine(model: Path, most: int) -> Engine:
    config = EngineConfig(
        model=str(model),
        served_name=model.name,
        memory_bytes=2 * 1024**3,
        arena_bytes=600 * 1024**2,
        max_context_tokens=1024,
        max_adapters=1,
        max_draft_tokens=most,
        prefix_caching=False,
    )
    return call_in_ending_thread(lambda: build_engine(config))
