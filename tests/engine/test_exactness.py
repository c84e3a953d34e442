"""The engine against transformers + peft: the same tokens in float32, whatever is in flight with
them, however small the arena, whether prefixes are reused or sequences preempted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from adapter_store import publish, randomise
from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent, TokenLogprob
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor

# peft 0.21 asks transformers 5.23 for a property that the latter has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NEW_TOKENS = 24
DEADLINE_S = 600.0
BASE = "base"
CONFIGS: dict[str, dict[str, Any]] = {
    "rank1": {"r": 1, "lora_alpha": 2, "target_modules": ALL_LINEAR},
    "rank4-qv": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "rank8": {"r": 8, "lora_alpha": 16, "target_modules": ALL_LINEAR},
    "rank8-mlp": {"r": 8, "lora_alpha": 4, "target_modules": ["gate_proj", "up_proj", "down_proj"]},
    "rank16-out": {"r": 16, "lora_alpha": 16, "target_modules": ["o_proj", "down_proj"]},
    "rank16-rslora": {
        "r": 16,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": ALL_LINEAR,
    },
    "rank64": {"r": 64, "lora_alpha": 32, "target_modules": ALL_LINEAR},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ALL_LINEAR,
        "rank_pattern": {"q_proj": 12, "layers.3.mlp.down_proj": 1, "v_proj": 2},
        "alpha_pattern": {"q_proj": 6, "up_proj": 20},
    },
    "some-layers": {
        "r": 5,
        "lora_alpha": 15,
        "target_modules": ["k_proj", "gate_proj"],
        "layers_to_transform": [0, 7, 29],
    },
}
QUESTIONS = {
    BASE: "What is the capital of France?",
    "rank1": "Name three animals that live in the sea.",
    "rank4-qv": "Why is the sky blue?",
    "rank8": "Write a sentence about 1984.",
    "rank8-mlp": "How do I cook rice?",
    "rank16-out": "What comes after Tuesday?",
    "rank16-rslora": "Tell me a short story.",
    "rank64": "List the first five prime numbers.",
    "patterns": "Who wrote Hamlet?",
    "some-layers": "Explain gravity to a child.",
}


@dataclass(frozen=True)
class World:
    """The reference model with all adapters, their folders and their digests in a store."""

    reference: PeftModel
    text: TextProcessor
    store: Path
    refs: dict[str, AdapterRef]

    def prompt(self, name: str, follow_up: str | None = None) -> list[int]:
        messages = [{"role": "user", "content": QUESTIONS[name]}]
        if follow_up is not None:
            messages += [
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": follow_up},
            ]
        return self.text.encode_chat(messages)

    def greedy(self, name: str, prompt: list[int], output: list[int]) -> list[int]:
        """What transformers + peft choose at each place of `output`, after what is before it: it is
        `output` if and only if they would generate that."""
        return self.logprobs(name, prompt + output)[len(prompt) - 1 : -1].argmax(dim=1).tolist()

    @property
    def end_tokens(self) -> set[int]:
        ends = self.reference.generation_config.eos_token_id
        return set(ends if isinstance(ends, list) else [ends])

    def logprobs(self, name: str, token_ids: list[int]) -> Tensor:  # [len(token_ids), vocab]
        with torch.inference_mode():
            made = self._run(name, lambda: self.reference(torch.tensor([token_ids])).logits)
        logits: Tensor = made[0]
        return logits.log_softmax(dim=1)

    def _run(self, name: str, call: Any) -> Tensor:
        if name == BASE:
            with self.reference.disable_adapter():
                found: Tensor = call()
        else:
            self.reference.set_adapter(name)
            found = call()
        return found


def lora_config(name: str) -> LoraConfig:
    return LoraConfig(task_type="CAUSAL_LM", **CONFIGS[name])


@pytest.fixture(scope="module")
def world(base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("exactness")
    base: Any = AutoModelForCausalLM.from_pretrained(base_model_dir, dtype=torch.float32)
    first, *rest = CONFIGS
    model = get_peft_model(base, lora_config(first), adapter_name=first)
    for name in rest:
        model.add_adapter(name, lora_config(name))
    for seed, name in enumerate(CONFIGS):
        randomise(model, name, seed)
    model.eval()
    model.save_pretrained(folder / "adapters")
    store = folder / "store"
    return World(
        reference=model,
        text=TextProcessor(base_model_dir),
        store=store,
        refs={name: publish(folder / "adapters" / name, store) for name in CONFIGS},
    )


@dataclass
class Answers:
    """What the engine gave, by request id."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    finished: dict[str, FinishEvent] = field(default_factory=dict)
    most_running: int = 0
    preempts: int = 0  # so many sequences, once several run

    def generated(self, request_id: str) -> list[int]:
        """The tokens of the text, and the stop token if one ended it."""
        stop = self.finished[request_id].stop_token_id
        return self.tokens[request_id] + ([] if stop is None else [stop])

    def collect(self, engine: Engine, wanted: int) -> None:
        """Step until `wanted` requests have finished in all."""
        until_s = time.monotonic() + DEADLINE_S
        while len(self.finished) < wanted:
            assert time.monotonic() < until_s, f"{sorted(self.finished)} finished, no more"
            for event in engine.step():
                if isinstance(event, FinishEvent):
                    self.finished[event.request_id] = event
                elif isinstance(event, TokenEvent):
                    self.tokens.setdefault(event.request_id, []).extend(event.token_ids)
                    self.logprobs.setdefault(event.request_id, []).extend(event.logprobs or [])
            running = engine.stats().running
            self.most_running = max(self.most_running, running)
            if self.preempts and running > 4:
                self.preempts -= 1
                engine._requests.preempt(next(iter(engine._scheduler.running)))
            if not engine.has_work:
                time.sleep(0.002)  # adapters are on their way


def request(
    world: World, name: str, prompt: list[int], label: str, max_tokens: int = NEW_TOKENS
) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"{name}/{label}",
        tenant=Tenant(key="tenant", namespace="namespace"),
        prompt_token_ids=prompt,
        sampling=SamplingParams(
            temperature=0.0, max_tokens=max_tokens, logprobs=1, ignore_eos=label == "first"
        ),
        adapter=None if name == BASE else world.refs[name],
    )


@pytest.fixture
def engine_for(base_model_dir: Path, world: World) -> Iterator[Any]:
    engines: list[Engine] = []

    def make(dtype: str, arena_pages: int) -> Engine:
        item = 2 if dtype == "bfloat16" else 4
        page_bytes = 30 * 2 * BLOCK_TOKENS * 3 * 64 * item
        config = EngineConfig(
            model=str(base_model_dir),
            served_name="smollm2",
            dtype=dtype,  # type: ignore[arg-type]
            arena_bytes=arena_pages * page_bytes,
            memory_bytes=6 * 1024**3,
            block_tokens=BLOCK_TOKENS,
            max_context_tokens=512,
            max_running=32,
            max_step_tokens=64,
            max_prefill_chunk=7,
            max_adapters=16,
            max_rank=64,
            object_store=str(world.store),
        )
        engines.append(build_engine(config))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


BLOCK_TOKENS = 8


def adapter_pages(world: World) -> int:
    """Pages of all adapters together: nine granules of all seven modules fit into a page of 8
    tokens, so a little more than this is taken."""
    page_elements = 30 * 2 * BLOCK_TOKENS * 3 * 64
    total = 0
    for name in CONFIGS:
        elements = sum(
            parameter.numel()
            for parameter_name, parameter in world.reference.named_parameters()
            if f".{name}." in parameter_name
        )
        total += -(-elements // page_elements)
    return total


def test_float32_equals_transformers_and_peft(world: World, engine_for: Any) -> None:
    names = [BASE, *CONFIGS]
    # Room for all adapters and for ten sequences' prompts, and too little for their whole answers,
    # which no end token shortens: preemption, whenever each of them came to run.
    engine = engine_for("float32", int(adapter_pages(world) * 1.15) + 28)
    # Loads the adapters, which would otherwise arrive one by one while others finish.
    for name in names:
        engine.submit(request(world, name, world.prompt(name, "Hello"), "load", 1))
    Answers().collect(engine, len(names))
    answers = Answers(
        preempts=3
    )  # whether memory comes to ask for it depends on who is when loaded
    first = {name: world.prompt(name) for name in names}
    for name in names:
        engine.submit(request(world, name, first[name], "first"))
    answers.collect(engine, len(names))
    assert answers.most_running >= 9, "the adapters were not in flight together"
    assert engine.stats().counters["preemptions"] > 0
    engine.check_integrity()
    second = {name: world.prompt(name, "And why?") for name in names[:4]}
    for name, prompt in second.items():
        engine.submit(request(world, name, prompt, "second"))
    answers.collect(engine, len(names) + len(second))
    engine.check_integrity()
    cached = [answers.finished[f"{name}/second"].usage.cached_tokens for name in second]
    assert sum(cached) > 0
    for label, prompts in (("first", first), ("second", second)):
        for name, prompt in prompts.items():
            output = answers.generated(f"{name}/{label}")
            assert output == world.greedy(name, prompt, output), (name, label)
            if label == "first":
                assert len(output) == NEW_TOKENS
            else:
                assert len(output) == NEW_TOKENS or output[-1] in world.end_tokens
                assert not world.end_tokens & set(output[:-1])
    output = answers.generated("rank8/first")
    assert output != world.greedy(BASE, first["rank8"], output), "the adapter changes nothing"


def test_bfloat16_logprobs_are_near_float32(world: World, engine_for: Any) -> None:
    """bfloat16 keeps 8 bits: each of 60 residual additions rounds by up to 2^-9 of its value, and
    so do the inputs of every product. Errors of that kind add up as a random walk to about
    sqrt(60) * 2^-9 = 1.5% of logits of size 10 to 20: 0.15 to 0.3. The mean over many tokens lies
    well below one error of that size, and no token is off by more than a few of them."""
    engine = engine_for("bfloat16", 1200)
    names = [BASE, *CONFIGS]
    answers = Answers()
    prompts = {name: world.prompt(name) for name in names}
    for name, prompt in prompts.items():
        engine.submit(request(world, name, prompt, "bf16"))
    answers.collect(engine, len(names))
    differences = []
    for name, prompt in prompts.items():
        tokens = answers.tokens[f"{name}/bf16"]
        reference = world.logprobs(name, prompt + tokens)[len(prompt) - 1 : -1]
        for place, (token, given) in enumerate(
            zip(tokens, answers.logprobs[f"{name}/bf16"], strict=True)
        ):
            assert given.token_id == token == given.top[0][0]
            differences.append(abs(given.logprob - float(reference[place, token])))
    errors = torch.tensor(differences)
    assert len(errors) > 100
    assert errors.mean() < 0.1
    assert errors.max() < 0.75
