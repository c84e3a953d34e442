"""Tiny models of random weights, and one sequence run through a decoder over an arena of pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from tenora_engine.config import LORA_MODULES, DType, EngineConfig, WeightDType
from tenora_engine.model.inputs import Arena, ForwardInputs
from tenora_engine.model.loader import DTYPES, LoadedModel, load_model
from tenora_kernels import build_attention_layout, build_segments
from tenora_kernels.segments import BASE_SLOT, AdapterTable, KVLayout

BLOCK_TOKENS = 4
NUM_PAGES = 96
SLOTS = 3
MAX_RANK = 8
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama3-rope": lambda: transformers.LlamaConfig(
        **SIZES, rope_parameters=LLAMA3_ROPE, head_dim=16
    ),
    "llama-biases": lambda: transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-yarn": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=YARN_ROPE),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=None, head_dim=12),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES),
    "smollm3": lambda: transformers.SmolLM3Config(
        **SIZES, no_rope_layer_interval=2, pad_token_id=None
    ),
    "granite": lambda: transformers.GraniteConfig(
        **SIZES,
        embedding_multiplier=6.0,
        attention_multiplier=0.3,
        residual_multiplier=0.22,
        logits_scaling=1.7,
        tie_word_embeddings=True,
    ),
}


def save_random_model(folder: Path, config: Any, seed: int = 0) -> Any:
    """A model of `config` with random weights and biases, saved and given back in float32."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms and biases are constant at first: a mix-up of them would not show.
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


@dataclass
class Harness:
    """Runs one sequence over shuffled pages of an arena's first half; adapters have the second."""

    model: LoadedModel
    arena: Arena
    block_table: list[int]
    computed: int = 0

    @classmethod
    def of(
        cls, folder: Path, dtype: DType = "float32", weight_dtype: WeightDType = "auto"
    ) -> Harness:
        config = EngineConfig(
            model=str(folder), served_name="m", dtype=dtype, weight_dtype=weight_dtype
        )
        return cls.around(load_model(config))

    @classmethod
    def around(cls, model: LoadedModel) -> Harness:
        info = model.info
        dtype = DTYPES[info.dtype]
        kv = KVLayout(info.num_layers, BLOCK_TOKENS, info.kv_heads, info.head_dim)
        pool = torch.full((NUM_PAGES, kv.page_elements), float("nan"), dtype=dtype)
        order = torch.randperm(NUM_PAGES // 2, generator=torch.Generator().manual_seed(1)).tolist()
        arena = Arena(pool=pool, flat=pool.view(-1), kv=kv, table=empty_table(info.num_layers))
        return cls(model, arena, order[:32])

    def run(self, tokens: list[int], slot: int = BASE_SLOT) -> Tensor:
        """Logits `[len(tokens), vocab]` of the sequence's next tokens."""
        inputs = self.inputs(tokens, slot)
        return self.model.decoder.next_logits(inputs, self.arena, torch.arange(len(tokens)))

    def inputs(self, tokens: list[int], slot: int = BASE_SLOT) -> ForwardInputs:
        positions = range(self.computed, self.computed + len(tokens))
        slots = [
            self.block_table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
            for position in positions
        ]
        self.computed += len(tokens)
        return ForwardInputs(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(list(positions)),
            slots=torch.tensor(slots),
            attention=build_attention_layout(
                [len(tokens)], [self.computed], [self.block_table], "cpu"
            ),
            segments=build_segments(
                torch.full((len(tokens),), slot, dtype=torch.int32), self.arena.table
            ),
        )


def empty_table(layers: int) -> AdapterTable:
    per_module = (SLOTS, layers, len(LORA_MODULES))
    return AdapterTable(
        granule_offset=torch.full((SLOTS, layers, MAX_RANK), -1, dtype=torch.int64),
        rank=torch.zeros(per_module, dtype=torch.int32),
        a_offset=torch.zeros(per_module, dtype=torch.int32),
        b_offset=torch.zeros(per_module, dtype=torch.int32),
        scale=torch.zeros(per_module, dtype=torch.float32),
    )


TOKENS = torch.randint(0, 97, (41,), generator=torch.Generator().manual_seed(2)).tolist()
