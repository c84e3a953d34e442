"""Sixty-four adapters of ranks 1 to 128 and different module sets in one batch, base requests among
them: each row gets its own adapter and nothing of its neighbours'."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from adapter_store import publish, randomise
from tenora_engine.config import EngineConfig
from tenora_engine.engine import build_engine
from tenora_engine.events import TokenEvent
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant

RANKS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 33, 48, 64, 96, 128)
MODULE_SETS = (
    ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    ["q_proj", "v_proj"],
    ["gate_proj", "up_proj", "down_proj"],
    ["o_proj", "down_proj"],
    ["k_proj"],
)
ADAPTERS = [f"a{number}" for number in range(64)]
BASE_REQUESTS = 8
NEW_TOKENS = 5
VOCAB = 512


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[PeftModel, Path]:
    folder = tmp_path_factory.mktemp("many")
    torch.manual_seed(7)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=256,
    )
    base: Any = LlamaForCausalLM(config).eval()
    base.save_pretrained(folder / "base")
    module_sets = islice(cycle(MODULE_SETS), len(ADAPTERS))
    ranks = islice(cycle(RANKS), len(ADAPTERS))
    configs = {
        name: LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules=modules)
        for name, rank, modules in zip(ADAPTERS, ranks, module_sets, strict=True)
    }
    model: Any = get_peft_model(base, configs[ADAPTERS[0]], adapter_name=ADAPTERS[0])
    for name in ADAPTERS[1:]:
        model.add_adapter(name, configs[name])
    for seed, name in enumerate(ADAPTERS):
        randomise(model, name, seed)
    model.eval().save_pretrained(folder / "adapters")
    return model, folder


def prompt(number: int) -> list[int]:
    draw = torch.Generator().manual_seed(1000 + number)
    tokens: list[int] = torch.randint(3, VOCAB, (5 + number % 11,), generator=draw).tolist()
    return tokens


def likeliest(model: Any, name: str | None, tokens: list[int], count: int) -> list[int]:
    """What the reference would say at each of the last `count` places."""
    with torch.inference_mode():
        if name is None:
            with model.disable_adapter():
                logits = model(torch.tensor([tokens])).logits
        else:
            model.set_adapter(name)
            logits = model(torch.tensor([tokens])).logits
    found: list[int] = logits[0, -count - 1 : -1].argmax(dim=1).tolist()
    return found


def test_sixty_four_adapters_in_one_batch(reference: tuple[PeftModel, Path]) -> None:
    model, folder = reference
    refs: dict[str, AdapterRef] = {
        name: publish(folder / "adapters" / name, folder / "store") for name in ADAPTERS
    }
    asked: list[str | None] = [*ADAPTERS, *[None] * BASE_REQUESTS]
    engine = build_engine(
        EngineConfig(
            model=str(folder / "base"),
            served_name="base",
            dtype="float32",
            object_store=str(folder / "store"),
            arena_bytes=64 * 1024**2,
            max_running=len(asked),
            max_step_tokens=2048,
        )
    )

    def request(number: int, name: str | None, max_tokens: int) -> GenerationRequest:
        tenant = f"t{number % 5}"
        return GenerationRequest(
            request_id=str(number),
            tenant=Tenant(key=tenant, namespace=tenant),
            prompt_token_ids=prompt(number),
            sampling=SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True),
            adapter=None if name is None else refs[name],
        )

    for number, adapter in enumerate(ADAPTERS):  # the device has them all before the batch is made
        engine.submit(request(1000 + number, adapter, max_tokens=1))
    while engine.stats().counters["requests_finished"] < len(ADAPTERS):
        engine.step()

    for number, name in enumerate(asked):
        engine.submit(request(number, name, NEW_TOKENS))
    made: dict[str, list[int]] = {str(number): [] for number in range(len(asked))}
    most_together = 0
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                made[event.request_id] += event.token_ids
        held = sum(adapter.references > 0 for adapter in engine.stats().adapters)
        most_together = max(most_together, held)
        engine.check_integrity()
    engine.close()
    for number, name in enumerate(asked):
        tokens = made[str(number)]
        whole = prompt(number) + tokens
        assert tokens == likeliest(model, name, whole, NEW_TOKENS), (name, number)
    assert most_together == len(ADAPTERS)
