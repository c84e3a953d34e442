"""Adapters for models so small that they start at once, in a store as the platform lays it out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from adapter_files import adapter_config, adapter_tensors, encode, safetensors
from adapter_store import publish
from tenora_engine.config import ModelInfo
from tenora_engine.request import AdapterRef

MODULES = ("q_proj", "v_proj", "down_proj")


def publish_small(folder: Path, store: Path, model: ModelInfo, seed: int, rank: int) -> AdapterRef:
    """One of random weights that change answers."""
    return _publish(folder, store, adapter_tensors(model, MODULES, rank, seed), rank)


def publish_sick(folder: Path, store: Path, model: ModelInfo, value: float = 3e38) -> AdapterRef:
    """One whose weights are finite, and whose products are not. By 3e9 those are, but not the
    squares of hidden states."""
    tensors = adapter_tensors(model, MODULES)
    for name, (dtype, shape, _) in tensors.items():
        tensors[name] = dtype, shape, encode(np.full(shape, value, "<f4"), dtype)
    return _publish(folder, store, tensors, 4)


def _publish(
    folder: Path,
    store: Path,
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]],
    rank: int,
) -> AdapterRef:
    folder.mkdir(parents=True)
    config = adapter_config(MODULES, r=rank, lora_alpha=1, rank_pattern={})
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    return publish(folder, store)
