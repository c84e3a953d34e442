"""Small adapters of a model without weights, as they are uploaded and as the tiers keep them."""

from __future__ import annotations

import hashlib

import msgspec
import obstore
import safetensors.torch
import torch
from torch import Tensor

from tenora_engine.adapters.identity import (
    adapter_digest,
    config_key,
    normalise_config,
    weights_key,
)
from tenora_engine.adapters.pack import check_tables, layout_key, pack_adapter
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.peft_format import parse_adapter_config, tensor_name
from tenora_engine.adapters.tiers import SharedTier
from tenora_engine.config import EngineConfig, ModelInfo, ResolvedConfig
from tenora_engine.request import AdapterRef
from tenora_engine.sealing import Seal

PAGE = 256
REDIS_KEY = b"of the installation of the tests"
MODEL = ModelInfo(
    id="tiny",
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden=16,
    intermediate=24,
    heads=2,
    kv_heads=2,
    head_dim=8,
    vocab=64,
    context_tokens=128,
    dtype="float32",
    weight_bytes=0,
    modules={"q_proj": (16, 16), "down_proj": (24, 16)},
    eos_token_ids=(0,),
)
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
LAYOUT = layout_key(MODEL, PAGE, "float32")


def weights(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(MODEL.num_layers):
        for module, (features_in, features_out) in MODEL.modules.items():
            a = torch.randn(4, features_in, generator=generator)
            tensors[tensor_name(layer, module, "A")] = a
            b = torch.randn(features_out, 4, generator=generator)
            tensors[tensor_name(layer, module, "B")] = b
    return tensors


def published(store: object, seed: int) -> AdapterRef:
    """An adapter put into the store as the platform does it."""
    config = normalise_config(CONFIG)
    data = safetensors.torch.save(weights(seed))
    digest = adapter_digest(config, hashlib.sha256(data).hexdigest())
    obstore.put(store, config_key(digest), config)
    obstore.put(store, weights_key(digest), data)
    return AdapterRef(digest, 4)


def packed(seed: int) -> PackedAdapter:
    digest = "sha256:" + hashlib.sha256(str(seed).encode()).hexdigest()
    config = parse_adapter_config(CONFIG)
    return pack_adapter(digest, config, weights(seed), MODEL, PAGE, "float32", max_rank=8)


def shared_tier(
    url: str,
    max_bytes: int = 10**6,
    layout: str = LAYOUT,
    ttl_s: int = 60,
    key: bytes = REDIS_KEY,
) -> SharedTier:
    """As an engine of this model and installation has it."""
    return SharedTier(
        url,
        layout,
        max_bytes,
        ttl_s,
        seal=Seal(key),
        check=lambda packed: check_tables(packed, MODEL, PAGE, "float32", 8),
    )


def resolved(**options: object) -> ResolvedConfig:
    config = {"model": "none", "served_name": "tiny", "dtype": "float32", **options}
    config.setdefault("redis_key", REDIS_KEY)
    return ResolvedConfig(
        engine=msgspec.convert(config, EngineConfig),
        model=MODEL,
        page_elements=PAGE,
        page_bytes=4 * PAGE,
        num_pages=8,
        workspace_bytes=0,
    )
