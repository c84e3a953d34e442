"""What a token of a beam search takes: beside as many sampled sequences, and beside transformers'
own search, whose ids are compared: `python -m tenora_bench.beams MODEL_FOLDER`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tenora_engine.config import EngineConfig
from tenora_engine.engine import Engine, build_engine
from tenora_engine.events import TokenEvent
from tenora_engine.request import BeamSearch, GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.processor import TextProcessor

QUESTIONS = (
    "Write a short story about a lighthouse.",
    "Why is the sky blue?",
    "Explain to a child how bread is made.",
    "Name three cities by the sea and say what they are known for.",
    "What should I pack for a week of walking?",
)


def generate(engine: Engine, prompt: list[int], sampling: SamplingParams) -> list[list[int]]:
    """The texts of one request that is alone."""
    name = f"{time.perf_counter()}"
    engine.submit(
        GenerationRequest(
            request_id=name,
            tenant=Tenant(key="t", namespace=name),  # nothing is cached for it
            prompt_token_ids=prompt,
            sampling=sampling,
        )
    )
    texts: list[list[int]] = [[] for _ in range(sampling.n)]
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                texts[event.index] += event.token_ids
    return texts


def most_pages(engine: Engine, prompt: list[int], sampling: SamplingParams) -> int:
    """That live sequences hold at once."""
    most = 0
    engine.submit(
        GenerationRequest(
            request_id="pages",
            tenant=Tenant(key="t", namespace="pages"),
            prompt_token_ids=prompt,
            sampling=sampling,
        )
    )
    while engine.has_work:
        engine.step()
        most = max(most, engine.stats().pool.live_kv_pages)
    return most


def search(model: Any, prompt: list[int], width: int, max_tokens: int) -> list[list[int]]:
    """By transformers."""
    with torch.inference_mode():
        made = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    texts: list[list[int]] = made[:, len(prompt) :].tolist()
    return texts


def measure(engine: Engine, model: Any, prompts: list[list[int]], width: int, tokens: int) -> None:
    beams = BeamSearch()

    def asked(most: int, search: BeamSearch | None) -> SamplingParams:
        return SamplingParams(
            temperature=0.0 if search else 1.0,
            seed=None if search else 1,
            n=width,
            max_tokens=most,
            ignore_eos=True,
            beams=search,
        )

    kinds: dict[str, Callable[[list[int], int], list[list[int]]]] = {
        "beams": lambda prompt, most: generate(engine, prompt, asked(most, beams)),
        "sampled": lambda prompt, most: generate(engine, prompt, asked(most, None)),
        "transformers": lambda prompt, most: search(model, prompt, width, most),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    same = total = 0
    for prompt in prompts:
        texts = {}
        for name, run in kinds.items():
            started = time.perf_counter()
            run(prompt, 2)
            middle = time.perf_counter()
            texts[name] = run(prompt, tokens)
            ended = time.perf_counter()
            found[name].append(((ended - middle) - (middle - started)) / (tokens - 2) * 1000)
        pairs = zip(texts["beams"], texts["transformers"], strict=True)
        same += sum(ours == theirs for ours, theirs in pairs)
        total += width
    print(f"{width} wide, {tokens} tokens, prompts of {[len(prompt) for prompt in prompts]}")
    for name, times in found.items():
        spread = f"{min(times):.2f} to {max(times):.2f}"
        print(f"  {name}: {median(times):.2f} ms a token of each ({spread})")
    pages = most_pages(engine, prompts[0], asked(tokens, beams))
    apart = most_pages(engine, prompts[0], asked(tokens, None))
    print(f"  texts that are transformers': {same} of {total}; pages {pages}, sampled {apart}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--widths", type=int, nargs="+", default=[4])
    args = parser.parse_args()
    torch.set_num_threads(1)
    engine = build_engine(
        EngineConfig(
            model=args.model, served_name="m", dtype=args.dtype, threads=1, max_draft_tokens=0
        )
    )
    dtype = torch.float32 if args.dtype == "float32" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    text = TextProcessor(args.model)
    prompts = [text.encode_chat([{"role": "user", "content": each}]) for each in QUESTIONS]
    for width in args.widths:
        measure(engine, model, prompts, width, args.tokens)
    engine.close()


if __name__ == "__main__":
    main()
