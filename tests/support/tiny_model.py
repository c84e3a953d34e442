"""The smallest model that has all linears, and what an adapter of it is packed with."""

from __future__ import annotations

from tenora_engine.config import ModelInfo

DIGEST = "sha256:" + "ab" * 32
PAGE = 700  # a few granules of the tiny model, and never a multiple of one
MODEL = ModelInfo(
    id="tiny",
    architecture="LlamaForCausalLM",
    num_layers=3,
    hidden=32,
    intermediate=48,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=64,
    context_tokens=128,
    dtype="float32",
    weight_bytes=0,
    modules={
        "q_proj": (32, 32),
        "k_proj": (32, 16),
        "v_proj": (32, 16),
        "o_proj": (32, 32),
        "gate_proj": (32, 48),
        "up_proj": (32, 48),
        "down_proj": (48, 32),
    },
    eos_token_ids=(0,),
)
