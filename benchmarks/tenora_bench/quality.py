"""What reduced precision costs in quality: the base model reads a text in each precision, its
predictions are compared with those in float32; behind `tenora bench quality`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tenora_bench.client import BenchError
from tenora_bench.machine import machine
from tenora_engine.config import LORA_MODULES, DType, EngineConfig, WeightDType
from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.loader import DTYPES, LoadedModel, load_model
from tenora_kernels import build_attention_layout, build_segments
from tenora_kernels.segments import BASE_SLOT, AdapterTable, KVLayout

WINDOW = 512  # tokens read in one go, from an empty context
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Precision:
    dtype: DType
    weight_dtype: WeightDType

    @property
    def name(self) -> str:
        return self.dtype if self.weight_dtype == "auto" else f"{self.weight_dtype} weights"


REFERENCE = Precision("float32", "auto")
COMPARED = (Precision("bfloat16", "auto"), Precision("bfloat16", "int8"))


@dataclass(frozen=True)
class Quality:
    """Over all predicted tokens of the text."""

    precision: str
    perplexity: float
    divergence: float  # mean KL from float32, nats
    same_choice: float  # share of places whose likeliest token is float32's
    logprob_change: float  # mean absolute change of the text's own next token


def measure_quality(model: Path, texts: Sequence[Path], most_tokens: int) -> dict[str, Any]:
    """Raises BenchError when the texts are too short."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in texts)
    tokens: list[int] = tokenizer.encode(text).ids[:most_tokens]
    windows = [tokens[at : at + WINDOW] for at in range(0, len(tokens) - 1, WINDOW)]
    if len(tokens) < WINDOW:
        raise BenchError(f"the text has {len(tokens)} tokens; give at least {WINDOW}")
    exact = [reading.log_softmax(1) for reading in read_windows(model, REFERENCE, windows)]
    found = [describe(REFERENCE.name, exact, exact, windows)]
    for precision in COMPARED:
        readings = [r.log_softmax(1) for r in read_windows(model, precision, windows)]
        found.append(describe(precision.name, readings, exact, windows))
    return {
        "machine": machine(),
        "tokens": len(tokens),
        "window": WINDOW,
        "precisions": [asdict(quality) for quality in found],
    }


def describe(
    precision: str, readings: list[Tensor], exact: list[Tensor], windows: list[list[int]]
) -> Quality:
    """`readings` and `exact`: log probabilities `[tokens of the window, vocab]`, float32."""
    losses, divergences, same, changes = [], [], [], []
    for ours, reference, window in zip(readings, exact, windows, strict=True):
        following = torch.tensor(window[1:]).unsqueeze(1)
        ours, reference = ours[:-1], reference[:-1]
        chosen, wanted = ours.gather(1, following), reference.gather(1, following)
        losses.append(-chosen)
        changes.append((chosen - wanted).abs())
        divergences.append((reference.exp() * (reference - ours)).sum(1))
        same.append((ours.argmax(1) == reference.argmax(1)).float())
    return Quality(
        precision,
        perplexity=float(torch.cat(losses).mean().exp()),
        divergence=float(torch.cat(divergences).mean()),
        same_choice=float(torch.cat(same).mean()),
        logprob_change=float(torch.cat(changes).mean()),
    )


def read_windows(model: Path, precision: Precision, windows: list[list[int]]) -> list[Tensor]:
    """Logits `[tokens of the window, vocab]` float32 of each window."""
    config = EngineConfig(
        model=str(model),
        served_name="model",
        dtype=precision.dtype,
        weight_dtype=precision.weight_dtype,
    )
    loaded = load_model(config)
    with torch.inference_mode():
        return [Context(loaded, WINDOW).read(window) for window in windows]


@dataclass(frozen=True)
class AdapterPages:
    """The pages of one adapter, in slot 0 of their table."""

    flat: Tensor  # [elements]
    table: AdapterTable


class Context:
    """One sequence of at most `room` tokens, from an empty context on."""

    def __init__(self, loaded: LoadedModel, room: int, adapter: AdapterPages | None = None) -> None:
        info = loaded.info
        self._decoder = loaded.decoder
        kv = KVLayout(info.num_layers, BLOCK_TOKENS, info.kv_heads, info.head_dim)
        self._blocks = list(range(-(-room // BLOCK_TOKENS)))
        pool = torch.zeros(len(self._blocks), kv.page_elements, dtype=DTYPES[info.dtype])
        adapted = adapter or AdapterPages(pool.view(-1), no_adapters(info.num_layers))
        self._slot = BASE_SLOT if adapter is None else 0
        self._arena = Arena(pool, adapted.flat, kv, adapted.table)
        self._length = 0

    def read(self, tokens: list[int]) -> Tensor:
        """Logits `[len(tokens), vocab]` float32 of what follows each of these next tokens."""
        count, first = len(tokens), self._length
        self._length += count
        places = torch.arange(first, self._length)
        inputs = ForwardInputs(
            token_ids=torch.tensor(tokens),
            positions=places,
            slots=places,
            attention=build_attention_layout([count], [self._length], [self._blocks], "cpu"),
            segments=build_segments(
                torch.full((count,), self._slot, dtype=torch.int32), self._arena.table
            ),
        )
        return self._decoder.next_logits(inputs, self._arena, torch.arange(count)).float()


def no_adapters(layers: int) -> AdapterTable:
    of_modules = torch.zeros(1, layers, len(LORA_MODULES), dtype=torch.int32)
    return AdapterTable(
        granule_offset=torch.full((1, layers, 1), -1, dtype=torch.int64),
        rank=of_modules,
        a_offset=of_modules.clone(),
        b_offset=of_modules.clone(),
        scale=of_modules.float(),
    )
