"""A Llama so small that an engine on it starts at once."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 256
PAGE_BYTES = 2 * 2 * 16 * 2 * 16 * 4  # layers, K and V, tokens, heads, features, float32


def write_tiny_llama(folder: Path, vocab: int = VOCAB, eos: int = 2) -> Path:
    """Random weights of two layers, always the same; returns `folder`."""
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocab,
        eos_token_id=eos,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
