"""MLX's LoRA adapters as PEFT's: `adapters.safetensors` and the training's `adapter_config.json`
made into the two files that PEFT would have written, exactly and without touching a value.

MLX adds `scale * (x @ lora_a) @ lora_b`, with lora_a `[in, rank]` and lora_b `[rank, out]`; PEFT
adds `alpha / r * lora_B @ lora_A @ x`, with lora_A `[r, in]` and lora_B `[out, r]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from io import BytesIO

from tenora_platform.intake.header import (
    ITEM_BYTES,
    IntakeError,
    TensorEntry,
    read_header,
    show,
    strict_json,
)

MLX_WEIGHTS = "adapters.safetensors"
_NAME = re.compile(r"((?:model\.)?layers\.\d+\.[a-z_.]+)\.lora_(a|b)")
_UNSIGNED = {2: "<u2", 4: "<u4"}


def converted(config: bytes, weights: bytes) -> tuple[bytes, bytes]:
    """PEFT's adapter_config.json and adapter_model.safetensors. Raises IntakeError for what is no
    plain LoRA of MLX."""
    rank, scale, base = _parameters(config)
    header = read_header(BytesIO(weights), len(weights))
    made: dict[str, dict[str, object]] = {}
    data: list[bytes] = []
    targets, position = set(), 0
    for entry in header.tensors:
        match = _NAME.fullmatch(entry.name)
        if match is None:
            raise IntakeError(
                entry.name,
                "unknown_tensor",
                "is not a LoRA matrix of a linear layer in MLX's format",
            )
        targets.add(match[1])
        values = _transposed(entry, weights[entry.begin : entry.end])
        name = f"base_model.model.{match[1]}.lora_{match[2].upper()}.weight"
        shape = list(reversed(entry.shape))
        end = position + len(values)
        made[name] = {"dtype": entry.dtype, "shape": shape, "data_offsets": [position, end]}
        data.append(values)
        position = end
    text = json.dumps(made).encode()
    peft = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": sorted(targets),
    }
    return json.dumps(peft).encode(), len(text).to_bytes(8, "little") + text + b"".join(data)


def _parameters(config: bytes) -> tuple[int, float, str | None]:
    """Rank, scale and base model."""
    parsed = strict_json(config, "adapter_config")
    kind = parsed.get("fine_tune_type", "lora") if isinstance(parsed, Mapping) else None
    if kind != "lora":
        raise IntakeError(
            "adapter_config.fine_tune_type",
            "unsupported_peft_type",
            f"is {show(str(kind))}, but only LoRA can be served; train with --fine-tune-type lora",
        )
    lora = parsed.get("lora_parameters")
    rank = lora.get("rank") if isinstance(lora, Mapping) else None
    scale = lora.get("scale") if isinstance(lora, Mapping) else None
    if not isinstance(rank, int) or not isinstance(scale, int | float):
        raise IntakeError(
            "adapter_config.lora_parameters", "invalid_config", "must contain MLX's rank and scale"
        )
    base = parsed.get("model")
    return rank, scale, base if isinstance(base, str) else None


def _transposed(entry: TensorEntry, data: bytes) -> bytes:
    if len(entry.shape) != 2:
        raise IntakeError(entry.name, "invalid_shape", "must be a matrix")
    import numpy as np  # this module is part of every command

    bits = np.frombuffer(data, _UNSIGNED[ITEM_BYTES[entry.dtype]])
    return bits.reshape(entry.shape).T.tobytes()
