"""peft adapters with weights that change answers, in a store as the platform lays it out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from peft import PeftModel

from tenora_engine.adapters.identity import (
    adapter_digest,
    config_key,
    normalise_config,
    weights_key,
)
from tenora_engine.request import AdapterRef


def randomise(model: PeftModel, name: str, seed: int) -> None:
    """B is zero at first; give A and B values whose update is a good part of the weight."""
    generator = torch.Generator().manual_seed(seed)
    for parameter_name, parameter in model.named_parameters():
        if f".{name}." not in parameter_name:
            continue
        rows, columns = parameter.shape
        is_a = "lora_A" in parameter_name
        deviation = columns**-0.5 if is_a else 0.25 * columns**-0.5
        with torch.no_grad():
            parameter.copy_(torch.randn(rows, columns, generator=generator) * deviation)


def publish(folder: Path, store: Path) -> AdapterRef:
    """Put a PEFT folder into the store as the platform does."""
    fields = json.loads((folder / "adapter_config.json").read_text())
    config = normalise_config(fields)
    weights = (folder / "adapter_model.safetensors").read_bytes()
    digest = adapter_digest(config, hashlib.sha256(weights).hexdigest())
    for key, content in ((config_key(digest), config), (weights_key(digest), weights)):
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_bytes(content)
    return AdapterRef(digest, max([fields["r"], *fields["rank_pattern"].values()]))
