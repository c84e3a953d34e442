"""A model folder of a few kilobytes, for the whole of Tenora with an engine that is real and quick:
a Llama's config, whose weights are random (`load_format=dummy`), and one token a byte."""

from __future__ import annotations

import json
from pathlib import Path

from fake_engine import write_byte_tokenizer


def write_tiny_folder(folder: Path) -> None:
    write_byte_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 258,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
