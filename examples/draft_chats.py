"""Chats for `train_draft.py` to learn from: questions that the model made up in the user's place,
or that are given, and its own greedy answers to them. Knows no draft layer."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import FinishEvent, TokenEvent
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor

MARK = "\N{SYMBOL FOR UNIT SEPARATOR}"
SUBJECTS = (  # of what is asked; the base alone asks of little else than articles and essays
    "You help to write emails and letters.",
    "You write stories, poems and blog posts.",
    "You play any role that the user gives you.",
    "You solve riddles and questions of logic.",
    "You solve mathematical problems step by step.",
    "You are a programmer who writes and explains code.",
    "You extract facts from the texts that the user gives you.",
    "You explain science and engineering.",
    "You explain history, law, economics and philosophy.",
    "You plan travel, meals, sports and hobbies.",
    "You rewrite, shorten and correct the user's texts.",
    "You answer questions about facts.",
)
SHORTEST_QUESTION = 12  # characters
MAX_POSITIONS = 1024  # of a chat


@dataclass(frozen=True)
class Chat:
    """A prompt with the base's greedy answer behind it."""

    token_ids: list[int]
    prompt_length: int


def merged(model_dir: Path, adapter: Path, folder: Path) -> Path:
    """The base with an adapter in its weights, as a model of its own."""
    for path in model_dir.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, folder)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder)
    return folder


def read_questions(path: Path) -> list[str]:
    """Of JSON lines of `{"questions": ["..."]}`, as `train_adapters.py` reads them."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [question for line in lines for question in line["questions"]]


def make_chats(
    model_dir: Path, count: int, seed: int, threads: int, given: Sequence[str] = ()
) -> list[Chat]:
    """About `count` questions, made by the base in the user's place at temperature 0.9 while it is
    told what it helps with, and those `given`, with its answers to them when it is told nothing;
    the same ones are asked once."""
    text = TextProcessor(model_dir)
    engine = build_engine(
        EngineConfig(
            model=str(model_dir),
            served_name=model_dir.name,
            memory_bytes=4 * 1024**3,
            max_context_tokens=MAX_POSITIONS,
            threads=threads,
            max_waiting=count + len(given),
            max_tenant_waiting=count + len(given),
            max_draft_tokens=0,
        )
    )
    openings = [_opening(text, subject) for subject in ("", *SUBJECTS)]
    asking = [
        SamplingParams(temperature=0.9, top_p=0.95, seed=seed * count + number, max_tokens=96)
        for number in range(count)
    ]
    said = generate(engine, list(islice(cycle(openings), count)), asking)
    made = (text.decode(ids).strip() for ids in said)
    questions = sorted({*given, *(each for each in made if len(each) >= SHORTEST_QUESTION)})
    prompts = [text.encode_chat([{"role": "user", "content": each}]) for each in questions]
    answering = SamplingParams(temperature=0.0, max_tokens=256)
    answers = generate(engine, prompts, [answering] * len(prompts))
    engine.close()
    chats = [
        Chat(prompt + answer, len(prompt)) for prompt, answer in zip(prompts, answers, strict=True)
    ]
    random.Random(seed).shuffle(chats)
    return chats


def _opening(text: TextProcessor, subject: str) -> list[int]:
    """A chat up to where the user begins; without a subject as the template has it."""
    system = [{"role": "system", "content": subject}] if subject else []
    before = text.render_chat([*system, {"role": "user", "content": MARK}]).split(MARK)[0]
    return text.encode(before, add_special_tokens=False)


def generate(
    engine: Engine, prompts: Sequence[list[int]], sampling: Sequence[SamplingParams]
) -> list[list[int]]:
    """What follows each, with the token that ends it."""
    said: dict[str, list[int]] = {}
    for number, (prompt, each) in enumerate(zip(prompts, sampling, strict=True)):
        said[str(number)] = []
        engine.submit(
            GenerationRequest(
                request_id=str(number),
                tenant=Tenant(key="trainer", namespace="trainer"),
                prompt_token_ids=prompt,
                sampling=each,
            )
        )
    left = len(prompts)
    while left:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                said[event.request_id] += event.token_ids
            elif isinstance(event, FinishEvent):
                said[event.request_id] += (
                    [] if event.stop_token_id is None else [event.stop_token_id]
                )
                left -= 1
    return list(said.values())
