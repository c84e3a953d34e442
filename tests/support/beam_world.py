"""Random beam searches, an engine that is walked after each step, and what transformers find."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from adapter_store import publish, randomise
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.request import AdapterRef, BeamSearch, GenerationRequest, SamplingParams, Tenant
from tiny_llama import PAGE_BYTES, VOCAB, write_tiny_llama

STEPS_MAX = 5000
EARLY: list[bool | Literal["never"]] = [False, True, "never"]


@dataclass(frozen=True)
class World:
    """A tiny model, a peft adapter of it in a store, and both as transformers run them."""

    folder: Path
    base: Any
    adapted: Any
    adapter: AdapterRef

    def texts(self, request: GenerationRequest) -> list[list[int]]:
        """What transformers find, without what stops them."""
        sampling, prompt = request.sampling, request.prompt_token_ids
        assert sampling.beams is not None
        model = self.base if request.adapter is None else self.adapted
        with torch.inference_mode():
            made = model.generate(
                input_ids=torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                num_beams=sampling.n,
                num_return_sequences=sampling.n,
                length_penalty=sampling.beams.length_penalty,
                early_stopping=sampling.beams.early_stopping,
                max_new_tokens=sampling.max_tokens,
                min_new_tokens=sampling.min_tokens or None,
                eos_token_id=list(sampling.stop_token_ids) or None,
                pad_token_id=0,
                do_sample=False,
            )
        rows = made[:, len(prompt) :].tolist()
        return [_before(row, sampling.stop_token_ids)[: sampling.max_tokens] for row in rows]


def _before(row: list[int], stops: Sequence[int]) -> list[int]:
    """Rows are filled up behind what stops them."""
    ends = [place for place, token in enumerate(row) if token in stops]
    return row[: ends[0]] if ends else row


def make_world(folder: Path) -> World:
    write_tiny_llama(folder / "model")
    load = AutoModelForCausalLM.from_pretrained
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=8,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj", "o_proj", "up_proj"],
    )
    model: Any = load(folder / "model", dtype=torch.float32)
    adapted = get_peft_model(model, config)
    randomise(adapted, "default", 5)
    adapted.eval()
    adapted.save_pretrained(folder / "adapter")
    base: Any = load(folder / "model", dtype=torch.float32)
    return World(folder, base, adapted, publish(folder / "adapter", folder / "store"))


@contextmanager
def running(world: World, **config: Any) -> Iterator[Engine]:
    engine = build_engine(
        EngineConfig(
            model=str(world.folder / "model"),
            served_name="tiny",
            dtype="float32",
            threads=1,
            max_adapters=2,
            object_store=str(world.folder / "store"),
            **{"arena_bytes": 96 * PAGE_BYTES, "max_running": 8, **config},
        )
    )
    try:
        yield engine
    finally:
        engine.close()


def search(
    chance: random.Random, name: str, adapter: AdapterRef | None = None, most: int = 30
) -> GenerationRequest:
    """Any; of some the texts end early, since much of the vocabulary ends them."""
    stops = chance.sample(range(VOCAB), chance.choice([0, 2, 25]))
    max_tokens = chance.randrange(1, most)
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key=chance.choice("ab"), namespace="shared"),
        prompt_token_ids=[chance.randrange(3, VOCAB) for _ in range(chance.randrange(2, 40))],
        adapter=adapter,
        sampling=SamplingParams(
            temperature=0,
            n=chance.randrange(1, 7),
            max_tokens=max_tokens,
            min_tokens=chance.choice([0, 0, min(3, max_tokens)]),
            ignore_eos=True,
            stop_token_ids=tuple(stops),
            beams=BeamSearch(
                length_penalty=chance.choice([1.0, 0.0, 2.0, -1.0]),
                early_stopping=chance.choice(EARLY),
            ),
        ),
    )


def drawn(chance: random.Random, name: str) -> GenerationRequest:
    """One that is no search."""
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key=chance.choice("bc"), namespace="shared"),
        prompt_token_ids=[chance.randrange(3, VOCAB) for _ in range(chance.randrange(2, 40))],
        sampling=SamplingParams(
            temperature=chance.choice([0.0, 1.0]),
            seed=7,
            n=chance.choice([1, 1, 3]),
            max_tokens=chance.randrange(1, 40),
            ignore_eos=True,
        ),
    )


def events_of(engine: Engine, requests: Sequence[GenerationRequest], apart: int = 0) -> list[Event]:
    """Submitted so many steps apart; the memory is walked after each step."""
    woken = threading.Event()
    engine.on_wake = woken.set
    events: list[Event] = []
    waiting, left = list(requests), sum(request.sampling.n for request in requests)
    for step in range(STEPS_MAX):
        while waiting and (not apart or step % apart == 0):
            engine.submit(waiting.pop(0))
            if apart:
                break
        if not left:
            return events
        if not engine.has_work and not waiting:
            assert woken.wait(20), "nothing comes"
            woken.clear()
        made = engine.step()
        engine.check_integrity()
        left -= sum(isinstance(event, FinishEvent) for event in made)
        events += made
    raise AssertionError("it does not end")


def texts_of(events: Sequence[Event], request: GenerationRequest) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in range(request.sampling.n)]
    for event in events:
        if isinstance(event, TokenEvent) and event.request_id == request.request_id:
            texts[event.index] += event.token_ids
    return texts


def ends_of(events: Sequence[Event]) -> list[FinishEvent]:
    return [event for event in events if isinstance(event, FinishEvent)]


def check_empty(engine: Engine) -> None:
    """Nothing is left of what has ended."""
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.waiting_by_tenant) == (0, 0, {})
    assert stats.pool.live_kv_pages == 0
    assert not engine._requests.flights
    assert not engine._requests.held.by_tenant
    assert not engine.has_work
