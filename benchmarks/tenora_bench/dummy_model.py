"""Models with random weights, for measurements in which only their shape matters."""

from __future__ import annotations

import shutil
from pathlib import Path


def write_llama_layers(folder: Path, layers: int, like: Path) -> Path:
    """`layers` layers of Llama-3.2-1B's shape (61M weights each, bf16) with the tokenizer and the
    vocabulary of the model folder `like`; returns `folder`."""
    import torch
    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    theirs = AutoConfig.from_pretrained(like)
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=theirs.vocab_size,
        eos_token_id=theirs.eos_token_id,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(like / name, folder / name)
    return folder
