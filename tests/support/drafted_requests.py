"""Random requests on a tiny model whose answers repeat themselves, so that drafts are right now and
then; and what an engine answers them."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fake_engine import write_byte_tokenizer
from tenora_bench.adapters import publish_adapters
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent, TokenLogprob
from tenora_engine.request import (
    AdapterRef,
    GenerationRequest,
    Grammar,
    SamplingParams,
    Tenant,
)
from tiny_llama import PAGE_BYTES, VOCAB, write_tiny_llama

LATER_STEPS = 4
BYTES_VOCAB = 258  # of the tokenizer of bytes
DEADLINE_S = 240.0 if "TENORA_DRAFTED_REQUESTS" not in os.environ else 3600.0


@dataclass(frozen=True)
class World:
    model: Path
    store: Path
    refs: list[AdapterRef]


GRAMMARS = (
    Grammar("regex", "([0-9]{2} (moons|suns), ){2,8}none"),
    Grammar("choice", json.dumps(["yes, yes, yes, yes", "yes, yes, no"])),
    Grammar("json_schema", json.dumps({"type": "array", "items": {"enum": ["abcabc", "abd"]}})),
)


def make_world(folder: Path) -> World:
    """With a tokenizer, one token a byte, so that there are grammars."""
    write_byte_tokenizer(folder / "model")
    model = write_tiny_llama(folder / "model", vocab=BYTES_VOCAB, eos=1)
    refs = publish_adapters(folder / "adapters", folder / "store", model, 3, [4, 8])
    return World(model, folder / "store", refs)


def engine_of(world: World, **settings: Any) -> Engine:
    config = EngineConfig(
        model=str(world.model),
        served_name="tiny",
        dtype="float32",
        arena_bytes=48 * PAGE_BYTES,
        memory_bytes=1024**3,
        max_context_tokens=256,
        max_running=24,
        max_adapters=3,
        object_store=str(world.store),
    )
    return build_engine(msgspec.structs.replace(config, **settings))


def random_sampling(draw: random.Random) -> SamplingParams:
    """Low temperatures: what is drawn repeats itself, and drafts are right now and then."""

    def sometimes(value: Any, otherwise: Any) -> Any:
        return value if draw.random() < 0.25 else otherwise

    return SamplingParams(
        temperature=draw.choice((0.0, 0.0, 0.2, 0.6)),
        top_p=sometimes(0.8, 1.0),
        top_k=sometimes(5, 0),
        min_p=sometimes(0.1, 0.0),
        seed=draw.randrange(1000),
        presence_penalty=sometimes(-0.5, 0.0),
        frequency_penalty=sometimes(0.1, 0.0),
        repetition_penalty=sometimes(0.9, 1.0),
        logit_bias=sometimes({draw.randrange(VOCAB): 4.0}, {}),
        bad_words=sometimes(((draw.randrange(VOCAB), draw.randrange(VOCAB)),), ()),
        allowed_token_ids=sometimes(tuple(range(0, VOCAB, 2)), None),
        min_tokens=sometimes(12, 0),
        stop_token_ids=sometimes((draw.randrange(VOCAB),), ()),
        max_tokens=draw.randrange(12, 90),
        n=sometimes(2, 1),
        logprobs=sometimes(2, None),
        grammar=sometimes(draw.choice(GRAMMARS), None),
    )


def random_request(draw: random.Random, number: int, refs: list[AdapterRef]) -> GenerationRequest:
    phrase = [draw.randrange(3, VOCAB) for _ in range(draw.randrange(4, 12))]
    prompt = [draw.randrange(3, VOCAB) for _ in range(draw.randrange(1, 30))]
    prompt += phrase * draw.randrange(0, 5)
    tenant = f"t{draw.randrange(3)}"
    return GenerationRequest(
        request_id=str(number),
        tenant=Tenant(key=tenant, namespace=tenant, keeps_answers=draw.random() < 0.5),
        prompt_token_ids=prompt,
        sampling=random_sampling(draw),
        adapter=draw.choice([None, *refs]),
        prediction_token_ids=phrase * 4 if draw.random() < 0.3 else [],
    )


@dataclass
class Answers:
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    logprobs: dict[tuple[str, int], list[TokenLogprob]] = field(default_factory=dict)
    finished: dict[tuple[str, int], FinishEvent] = field(default_factory=dict)

    def collect(self, engine: Engine, wanted: int, later: list[GenerationRequest]) -> None:
        """`later`: one each few steps."""
        until_s, steps = time.monotonic() + DEADLINE_S, 0
        while len(self.finished) < wanted:
            assert time.monotonic() < until_s
            steps += 1
            if later and steps % LATER_STEPS == 0:
                engine.submit(later.pop(0))
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    key = event.request_id, event.index
                    self.tokens.setdefault(key, []).extend(event.token_ids)
                    self.logprobs.setdefault(key, []).extend(event.logprobs or [])
                elif isinstance(event, FinishEvent):
                    assert event.reason in ("stop", "length"), event.error
                    self.finished[event.request_id, event.index] = event
            if not engine.has_work:
                time.sleep(0.001)

    @property
    def ends(self) -> dict[tuple[str, int], tuple[str, int | None, int]]:
        return {
            key: (event.reason, event.stop_token_id, event.usage.output_tokens)
            for key, event in self.finished.items()
        }


def answers(engine: Engine, requests: list[GenerationRequest], later: str = "") -> Answers:
    """To all at once; the requests of one tenant may come `later`, one after the other, so that
    there are express steps for it."""
    found = Answers()
    for request in requests:
        if request.tenant.key != later:
            engine.submit(request)
    rest = [request for request in requests if request.tenant.key == later]
    found.collect(engine, sum(request.sampling.n for request in requests), rest)
    engine.check_integrity()
    return found
