"""What int8 adapter pages cost in quality: example adapters answer the questions they were trained
on and others, once from pages in each precision; behind `tenora bench adapter-quality`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tenora_bench.machine import machine
from tenora_bench.quality import AdapterPages, Context, Quality, describe
from tenora_engine.adapters.pack import pack_adapter
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.peft_format import LoraConfig, parse_adapter_config
from tenora_engine.config import LORA_MODULES, DType, EngineConfig, ModelInfo, PackedDType
from tenora_engine.model.loader import LoadedModel, load_model
from tenora_engine.text.processor import TextProcessor
from tenora_kernels.segments import SCALE_BYTES, AdapterTable

PAGE_BYTES = 360 * 1024
NEW_TOKENS = 32
COMPARED: tuple[tuple[DType, PackedDType], ...] = (
    ("float32", "float32"),  # the reference
    ("float32", "int8"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "int8"),
)


@dataclass(frozen=True)
class Example:
    """One adapter and what it is asked."""

    name: str
    config: LoraConfig
    tensors: dict[str, Tensor]
    answered: list[tuple[list[int], int]]  # a conversation, and where its answer begins
    asked: list[list[int]]  # prompts that it was not trained on


@dataclass(frozen=True)
class AdapterQuality:
    """Of one adapter's answers, against float32; the text is the adapter's training data."""

    adapter: str
    base: DType
    pages: PackedDType
    adapter_bytes: int  # of its rows, scales included
    answers: Quality
    same_greedy: float  # share of held-out prompts whose greedy answer is the reference's


def measure_adapter_quality(model: Path, examples: Path) -> dict[str, Any]:
    """`examples` is laid out as the repository's folder of that name."""
    text = TextProcessor(model)
    manifest = json.loads((examples / "adapters" / "manifest.json").read_text())
    loaded: dict[DType, LoadedModel] = {
        dtype: load_model(EngineConfig(model=str(model), served_name="model", dtype=dtype))
        for dtype in ("float32", "bfloat16")
    }
    found = []
    with torch.inference_mode():
        for entry in manifest:
            found += _measure(loaded, _read_example(examples, entry["folder"], text))
    return {"machine": machine(), "adapters": [asdict(quality) for quality in found]}


def _measure(loaded: dict[DType, LoadedModel], example: Example) -> list[AdapterQuality]:
    exact: list[Tensor] = []
    greedy: list[list[int]] = []
    found = []
    windows = [tokens[start - 1 :] for tokens, start in example.answered]
    for base, dtype in COMPARED:
        model = loaded[base]
        packed = _pack(example, model.info, dtype)
        pages = _pages(packed)
        readings = [
            Context(model, len(tokens), pages).read(tokens)[start - 1 :].log_softmax(1)
            for tokens, start in example.answered
        ]
        answers = [_greedy(model, prompt, pages) for prompt in example.asked]
        if not exact:
            exact, greedy = readings, answers
        same = sum(ours == theirs for ours, theirs in zip(answers, greedy, strict=True))
        name = f"{base}, pages {dtype}"
        found.append(
            AdapterQuality(
                example.name,
                base,
                dtype,
                adapter_bytes=_bytes(packed, model.info),
                answers=describe(name, readings, exact, windows),
                same_greedy=same / len(answers),
            )
        )
    return found


def _read_example(examples: Path, folder: str, text: TextProcessor) -> Example:
    fields = json.loads((examples / "adapters" / folder / "adapter_config.json").read_text())
    answered = []
    for line in (examples / "data" / f"{folder}.jsonl").read_text().splitlines():
        pair = json.loads(line)
        prompt = text.encode_chat([{"role": "user", "content": pair["questions"][0]}])
        answered.append((prompt + text.encode(pair["answer"]), len(prompt)))
    held_out = (examples / "data" / "held_out" / f"{folder}.jsonl").read_text().splitlines()
    questions = [json.loads(line)["question"] for line in held_out]
    return Example(
        folder,
        parse_adapter_config(fields),
        load_file(examples / "adapters" / folder / "adapter_model.safetensors"),
        answered,
        [text.encode_chat([{"role": "user", "content": question}]) for question in questions],
    )


def _pack(example: Example, info: ModelInfo, dtype: PackedDType) -> PackedAdapter:
    item = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
    rank = max(tensor.shape[0] for name, tensor in example.tensors.items() if "lora_A" in name)
    elements = PAGE_BYTES // item
    return pack_adapter("", example.config, example.tensors, info, elements, dtype, rank)


def _bytes(packed: PackedAdapter, info: ModelInfo) -> int:
    """What its rows take, scales included."""
    before_row = SCALE_BYTES if packed.pages.dtype == torch.int8 else 0
    sizes = [sum(info.modules[name]) + 2 * before_row for name in LORA_MODULES]
    return int((packed.rank.sum(0) * torch.tensor(sizes)).sum()) * packed.pages.element_size()


def _pages(packed: PackedAdapter) -> AdapterPages:
    page_elements = packed.pages.shape[1]
    offset = packed.granule_page.long() * page_elements + packed.granule_start
    table = AdapterTable(
        granule_offset=offset.clamp(min=0)[None].contiguous(),
        rank=packed.rank[None],
        a_offset=packed.a_offset[None],
        b_offset=packed.b_offset[None],
        scale=packed.scale[None],
    )
    return AdapterPages(packed.pages.view(-1), table)


def _greedy(model: LoadedModel, prompt: list[int], pages: AdapterPages) -> list[int]:
    context = Context(model, len(prompt) + NEW_TOKENS, pages)
    tokens, following = [], prompt
    for _ in range(NEW_TOKENS):
        tokens.append(int(context.read(following)[-1].argmax()))
        if tokens[-1] in model.info.eos_token_ids:
            break
        following = tokens[-1:]
    return tokens
