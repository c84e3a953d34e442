"""Adapters as files, made by hand: good ones for any base model, and the parts to break them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tenora_engine.adapters.peft_format import tensor_name
from tenora_engine.config import ModelInfo


def adapter_config(modules: Sequence[str] = ("q_proj", "v_proj"), **changes: Any) -> dict[str, Any]:
    """adapter_config.json of a plain LoRA of rank 4."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": list(modules),
        "bias": "none",
    } | changes


def adapter_tensors(
    model: ModelInfo,
    modules: Sequence[str] = ("q_proj", "v_proj"),
    rank: int = 4,
    seed: int = 0,
    dtype: str = "F32",
) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """name -> (dtype, shape, data) of every A and B."""
    random = np.random.default_rng(seed)
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for layer in range(model.num_layers):
        for module in modules:
            features_in, features_out = model.modules[module]
            for matrix, shape in (("A", (rank, features_in)), ("B", (features_out, rank))):
                values = random.standard_normal(shape).astype("<f4")
                name = tensor_name(layer, module, "A" if matrix == "A" else "B")
                tensors[name] = (dtype, shape, encode(values, dtype))
    return tensors


def encode(values: Any, dtype: str) -> bytes:
    """float32 values in a safetensors dtype."""
    if dtype == "BF16":
        return bytes((values.view("<u4") >> 16).astype("<u2").tobytes())
    return bytes(values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes())


def header_of(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> dict[str, Any]:
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        end = position + len(data)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    return header


def file_of(header: bytes, data: bytes) -> bytes:
    """A safetensors file with this header, whatever it says."""
    return len(header).to_bytes(8, "little") + header + data


def safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    data = b"".join(data for _, _, data in tensors.values())
    return file_of(json.dumps(header_of(tensors)).encode(), data)


def adapter_form(model: ModelInfo, name: str, *, seed: int = 0, rank: int = 4) -> dict[str, Any]:
    """`files=` of httpx for POST /v1/adapters: a good adapter."""
    config = adapter_config(r=rank)
    weights = safetensors(adapter_tensors(model, rank=rank, seed=seed))
    return form(name, config, weights)


def form(name: str, config: Mapping[str, Any], weights: bytes) -> dict[str, Any]:
    return {
        "name": (None, name),
        "adapter_config": ("adapter_config.json", json.dumps(config).encode()),
        "weights": ("adapter_model.safetensors", weights),
    }
