"""The same many requests on any version of the engine, to compare what they are answered: by
`tenora bench outputs`. Preemptions, express steps, adapters that come and go, fetches of KV from
the host and shared prefixes are all among them, and must not show in a single token."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from tenora_bench.adapters import publish_adapters
from tenora_bench.client import BenchError
from tenora_bench.machine import machine
from tenora_engine.config import EngineConfig
from tenora_engine.engine import build_engine
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.loop import EngineLoop
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.threads import call_in_ending_thread

ARENA_BYTES = 120 * 1024**2
"""So little that sequences are preempted and KV goes to the host and comes back."""

IN_FLIGHT = 96
WANTED = ("preemptions", "express_steps", "kv_pages_fetched", "adapter_evictions", "kv_evictions")
"""Counters that show that what might disturb an answer has happened."""


def make_requests(
    count: int, vocab: int, adapters: Sequence[AdapterRef], seed: int = 0
) -> list[GenerationRequest]:
    """Greedy ones of one tenant that floods and seven that now and then ask; prompts begin with one
    of a few common prefixes."""
    draw = random.Random(seed)
    prefixes = [[draw.randrange(vocab) for _ in range(length)] for length in (64, 160, 320, 480)]
    made = []
    for number in range(count):
        name = "flood" if draw.random() < 0.7 else f"quiet{draw.randrange(7)}"
        own = [draw.randrange(vocab) for _ in range(draw.randrange(4, 48))]
        made.append(
            GenerationRequest(
                request_id=str(number),
                tenant=Tenant(key=name, namespace=name, ttft_ms=500.0, tpot_ms=50.0),
                prompt_token_ids=draw.choice(prefixes) + own,
                sampling=SamplingParams(
                    temperature=0.0, max_tokens=draw.choice((8, 24, 40, 240)), ignore_eos=True
                ),
                adapter=draw.choice([None, *adapters]) if adapters else None,
            )
        )
    return made


def answer(
    model: Path,
    folder: Path,
    count: int,
    adapters: int,
    threads: int,
    record: Path | None = None,
) -> dict[str, Any]:
    """The tokens of each request by its id, their digest, and how often what might disturb them
    happened. Raises BenchError where a request fails."""
    torch.set_num_threads(threads)
    refs = publish_adapters(folder / "adapters", folder / "store", model, adapters, (8, 16, 64))
    config = EngineConfig(
        model=str(model),
        served_name=model.name,
        dtype="bfloat16",
        arena_bytes=ARENA_BYTES,
        memory_bytes=2 * 1024**3,
        max_context_tokens=1024,
        max_running=48,
        max_adapters=4,
        host_kv_bytes=256 * 1024**2,
        object_store=str(folder / "store"),
    )
    if record is not None:
        config = msgspec.structs.replace(config, record=str(record))
    engine = call_in_ending_thread(lambda: build_engine(config))
    requests = make_requests(count, engine.config.model.vocab, refs)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    failed: list[str] = []
    room = threading.Semaphore(IN_FLIGHT)
    ended = threading.Semaphore(0)

    def take(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokenEvent):
                tokens[event.request_id] += event.token_ids
            elif isinstance(event, FinishEvent):
                if event.reason == "error":
                    failed.append(f"{event.request_id}: {event.error}")
                room.release()
                ended.release()

    loop = EngineLoop(engine, take)
    loop.start()
    started = time.perf_counter()
    for request in requests:
        room.acquire()
        loop.submit(request).result()
    for _ in requests:
        ended.acquire()
    seconds = time.perf_counter() - started
    counters = loop.stats().result().counters
    loop.stop()
    if failed:
        raise BenchError(f"{len(failed)} requests failed, the first {failed[0]}")
    encoded = json.dumps(tokens, sort_keys=True).encode()
    return {
        "machine": machine(),
        "requests": count,
        "seconds": seconds,
        "happened": {name: counters.get(name, 0) for name in WANTED},
        "digest": hashlib.sha256(encoded).hexdigest(),
        "tokens": tokens,
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Ids of the requests that were answered differently. Raises BenchError where they were not
    asked the same."""
    if one["tokens"].keys() != other["tokens"].keys():
        raise BenchError("the two files are of different requests")
    return [name for name, tokens in one["tokens"].items() if other["tokens"][name] != tokens]
