"""What drafts bring: tokens a second with them over those without, on one engine, in turns; behind
`tenora bench drafts`."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from tenora_bench.adapters import publish_adapters
from tenora_bench.client import BenchError
from tenora_bench.machine import machine
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor
from tenora_engine.threads import call_in_ending_thread

TOPICS = ("rain", "bread", "trains", "the sea", "winter", "a library", "bees", "maps")
NEW_TOKENS = 128
STREAMS = 16
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


@dataclass
class Bench:
    """One engine for both, so that they have the same memory: with drafts and without."""

    engine: Engine
    most: int  # drafts of a sequence, where there are any

    def run(
        self, requests: list[GenerationRequest], drafts: bool
    ) -> tuple[float, dict[str, list[int]]]:
        self.engine._scheduler.drafts.most = self.most if drafts else 0
        return run(self.engine, requests)

    def ratio(self, name: str, requests: list[GenerationRequest], drafts_last: bool) -> float:
        """With drafts over without. Raises BenchError where an answer differs."""
        found = {drafts: self.run(requests, drafts) for drafts in (not drafts_last, drafts_last)}
        if found[False][1] != found[True][1]:
            raise BenchError(f"{name}: answers differ with drafts and without")
        return found[True][0] / found[False][0]


def measure(model: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Raises BenchError where an answer differs."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="tenora-bench-") as folder:
        store = Path(folder) / "store"
        refs = publish_adapters(Path(folder) / "adapters", store, model, STREAMS, [8])
        engine = _engine(model, store)
        bench = Bench(engine, engine.config.engine.max_draft_tokens)
        ratios = _ratios(bench, TextProcessor(model), refs, rounds)
        counters = engine.stats().counters
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


def _ratios(
    bench: Bench, text: TextProcessor, refs: list[AdapterRef], rounds: int
) -> dict[str, list[float]]:
    vocab = bench.engine.config.model.vocab
    prompts = chats(text, STREAMS)
    # A tenant of its own: what one that keeps none is answered ends what is kept of it.
    again = request("again", prompts[1], sampling=GREEDY, keeps_answers=True, tenant="again")
    bench.run([again], drafts=True)
    chat = [request(f"{n}", p, sampling=GREEDY) for n, p in enumerate(prompts)]
    mixed = [
        msgspec.structs.replace(each, adapter=ref, request_id=f"a{each.request_id}")
        for each, ref in zip(chat, refs, strict=True)
    ]
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        predicted = [_predicted(each, bench) for each in (chat, mixed)]
        cases = {
            "an answer as predicted, 1 stream": predicted[0][:1],
            "answers as predicted, 16 streams": predicted[0],
            "answers as predicted, 16 streams of 16 adapters": predicted[1],
            "the tenant's answer again, 1 stream": [again],
            "greedy chats, 1 stream": chat[2:3],
            "greedy chats, 16 streams": chat,
        }
        for streams in (1, STREAMS, 64):
            cases[f"drawn at temperature 1 after random tokens, {streams} streams"] = [
                request(f"{n}", p, sampling={"temperature": 1.0, "seed": n})
                for n, p in enumerate(random_prompts(vocab, streams, number))
            ]
        for name, requests in cases.items():
            ratios.setdefault(name, []).append(bench.ratio(name, requests, number % 2 == 1))
    return ratios


def _predicted(requests: list[GenerationRequest], bench: Bench) -> list[GenerationRequest]:
    """With what they are answered as what is predicted."""
    _, said = bench.run(requests, drafts=False)
    return [
        msgspec.structs.replace(each, prediction_token_ids=said[each.request_id])
        for each in requests
    ]


def _engine(model: Path, store: Path) -> Engine:
    config = EngineConfig(
        model=str(model),
        served_name=model.name,
        memory_bytes=3 * 1024**3,
        arena_bytes=800 * 1024**2,
        max_context_tokens=1024,
        max_adapters=STREAMS,
        max_rank=8,
        prefix_caching=False,
        object_store=str(store),
    )
    return call_in_ending_thread(lambda: build_engine(config))
