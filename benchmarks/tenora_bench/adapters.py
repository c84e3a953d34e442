"""Random LoRA adapters in PEFT's format for measurements, sized from config.json alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from tenora_engine.adapters.draft_format import FILE as DRAFT_FILE
from tenora_engine.adapters.identity import (
    adapter_digest,
    config_key,
    draft_key,
    normalise_config,
    weights_key,
)
from tenora_engine.request import AdapterRef

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
LINEARS = ATTENTION + MLP


@dataclass(frozen=True)
class AdapterSpec:
    """One adapter to make: `rank` rows on these linears of each layer."""

    name: str
    rank: int
    seed: int
    strength: float = 0.02  # of B's entries; from about 0.2 on greedy answers change visibly
    modules: tuple[str, ...] = LINEARS


def linear_shapes(model: Path) -> tuple[int, dict[str, tuple[int, int]]]:
    """Number of layers and, by module, (in, out) features of a Llama-family config.json."""
    config = json.loads((model / "config.json").read_text())
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or hidden // heads
    shapes = {
        "q_proj": (hidden, heads * head_dim),
        "k_proj": (hidden, kv_heads * head_dim),
        "v_proj": (hidden, kv_heads * head_dim),
        "o_proj": (heads * head_dim, hidden),
        "gate_proj": (hidden, inter),
        "up_proj": (hidden, inter),
        "down_proj": (inter, hidden),
    }
    return config["num_hidden_layers"], shapes


def write_adapter(folder: Path, model: Path, spec: AdapterSpec) -> None:
    """Write `adapter_config.json` and bf16 `adapter_model.safetensors` of random weights, small
    enough that outputs stay finite and large enough that they change."""
    layers, shapes = linear_shapes(model)
    draw = torch.Generator().manual_seed(spec.seed)
    tensors = {}
    for layer in range(layers):
        for module in spec.modules:
            fan_in, fan_out = shapes[module]
            block = "self_attn" if module in ATTENTION else "mlp"
            path = f"base_model.model.model.layers.{layer}.{block}.{module}"
            a = torch.randn(spec.rank, fan_in, generator=draw) / fan_in**0.5
            b = torch.randn(fan_out, spec.rank, generator=draw) * (spec.strength / spec.rank**0.5)
            tensors[f"{path}.lora_A.weight"] = a.bfloat16()
            tensors[f"{path}.lora_B.weight"] = b.bfloat16()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": spec.rank,
        "lora_alpha": 2 * spec.rank,
        "target_modules": list(spec.modules),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))


def adapter_bytes(model: Path, rank: int, modules: Sequence[str] = LINEARS) -> int:
    """Of one adapter in bfloat16: what a step reads of it."""
    layers, shapes = linear_shapes(model)
    return layers * rank * sum(sum(shapes[module]) for module in modules) * 2


def write_adapters(
    root: Path,
    model: Path,
    count: int,
    ranks: list[int],
    modules: tuple[str, ...] = LINEARS,
) -> list[Path]:
    """`count` adapters under `root`, their ranks taken from `ranks` in turn."""
    folders = []
    for number in range(count):
        rank = ranks[number % len(ranks)]
        spec = AdapterSpec(f"bench-{number}", rank, seed=1000 + number, modules=modules)
        write_adapter(root / spec.name, model, spec)
        folders.append(root / spec.name)
    return folders


def publish_adapters(
    folder: Path,
    store: Path,
    model: Path,
    count: int,
    ranks: Sequence[int],
    modules: tuple[str, ...] = LINEARS,
) -> list[AdapterRef]:
    """Random adapters of `ranks` in turn, in an object store as the platform lays it out. Their
    PEFT folders are left in `folder`."""
    folders = write_adapters(folder, model, count, list(ranks), modules)
    return [publish(made, store) for made in folders]


def publish(folder: Path, store: Path) -> AdapterRef:
    """Put a PEFT folder into an object store, with the draft layer that lies in it."""
    fields = json.loads((folder / "adapter_config.json").read_text())
    config = normalise_config(fields)
    weights = (folder / "adapter_model.safetensors").read_bytes()
    digest = adapter_digest(config, hashlib.sha256(weights).hexdigest())
    contents, layer = {config_key(digest): config, weights_key(digest): weights}, None
    if (folder / DRAFT_FILE).is_file():
        drafts = (folder / DRAFT_FILE).read_bytes()
        layer = f"sha256:{hashlib.sha256(drafts).hexdigest()}"
        contents[draft_key(layer)] = drafts
    for key, content in contents.items():
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_bytes(content)
    return AdapterRef(digest, fields["r"], draft_layer=layer)
