"""Engines that draft by trained layers, on a tiny base model, and what they were seen to do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.step import StepPlan, StepResult
from tiny_llama import PAGE_BYTES, VOCAB, write_tiny_llama


def write_likely_llama(folder: Path) -> Path:
    """Of random weights all tokens are about as likely: here some are likelier."""
    plain = write_tiny_llama(folder / "plain")
    base = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    base.lm_head.weight.data *= 20
    base.save_pretrained(folder / "model")
    return folder / "model"


def engine_of(model: Path, draft_layer: Path | None, **settings: Any) -> Engine:
    config = EngineConfig(
        model=str(model),
        served_name="tiny",
        dtype="float32",
        arena_bytes=48 * PAGE_BYTES,
        memory_bytes=1024**3,
        max_running=8,
        draft_layer=None if draft_layer is None else str(draft_layer),
    )
    return build_engine(msgspec.structs.replace(config, **settings))


def request(name: str, prompt: list[int], **sampling: Any) -> GenerationRequest:
    asked = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **sampling}
    return GenerationRequest(
        request_id=name,
        tenant=Tenant(key="t", namespace="t"),
        prompt_token_ids=prompt,
        sampling=SamplingParams(**asked),
    )


def answers(engine: Engine, requests: list[GenerationRequest]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {each.request_id: [] for each in requests}
    for each in requests:
        engine.submit(each)
    asked, left = set(found), len(requests)
    while left:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                found.setdefault(event.request_id, []).extend(event.token_ids)
            elif isinstance(event, FinishEvent):
                assert event.error is None
                left -= event.request_id in asked
    engine.check_integrity()
    return found


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, VOCAB) for _ in range(draw.randrange(3, 40))] for _ in range(count)]


class Recorder:
    """Of an executor: what it proposed, by sequence and place."""

    def __init__(self, engine: Engine) -> None:
        self.seen: list[tuple[StepPlan, StepResult]] = []
        self._execute = engine._executor.execute
        engine._executor.execute = self.execute  # type: ignore[method-assign]

    def execute(self, plan: StepPlan) -> StepResult | None:
        result = self._execute(plan)
        if result is not None:
            self.seen.append((plan, result))
        return result
