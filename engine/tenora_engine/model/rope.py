"""The cosines and sines of rotary position embedding, for every kind the config can name."""

from __future__ import annotations

import torch
from torch import Tensor

from tenora_engine.errors import ModelLoadError
from tenora_engine.model.spec import DecoderSpec

# `dynamic` changes only beyond max_position_embeddings, which no sequence here may pass.
FIXED_KINDS = ("linear", "llama3", "yarn", "dynamic")

RopeTable = tuple[Tensor, Tensor]
"""(cos, sin), each `[max_positions, rotary_dim / 2]` float32, attention scaling included."""


def rope_tables(spec: DecoderSpec, max_positions: int, device: torch.device) -> list[RopeTable]:
    """Of each layer. Layers that turn equally many dimensions share one.

    Raises ModelLoadError for a kind whose frequencies change with the length of a sequence.
    """
    dims = {layer.rotary_dim for layer in spec.layers}
    tables = {dim: _rope_table(spec, dim, max_positions, device) for dim in dims}
    return [tables[layer.rotary_dim] for layer in spec.layers]


def _rope_table(
    spec: DecoderSpec, rotary_dim: int, max_positions: int, device: torch.device
) -> RopeTable:
    if rotary_dim == 0:
        nothing = torch.empty(max_positions, 0, dtype=torch.float32, device=device)
        return nothing, nothing
    inverse_frequency, scaling = _inverse_frequency(spec, rotary_dim)
    positions = torch.arange(max_positions, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequency[None, :].float()
    return (angles.cos() * scaling).to(device), (angles.sin() * scaling).to(device)


def _inverse_frequency(spec: DecoderSpec, rotary_dim: int) -> tuple[Tensor, float]:
    kind = spec.rope["rope_type"]
    if kind == "default":
        exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
        return 1.0 / (spec.rope["rope_theta"] ** exponent), 1.0
    if kind not in FIXED_KINDS:
        raise ModelLoadError(
            f"rope kind {kind!r} is not supported; supported: default, {', '.join(FIXED_KINDS)}"
        )
    # Only here: importing transformers takes seconds and 180 MB, which most models need not pay.
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    try:
        config = AutoConfig.from_pretrained(spec.folder, local_files_only=True)
        inverse_frequency, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return inverse_frequency, float(scaling)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelLoadError(f"config.json describes no rope of kind {kind!r}: {error}") from error
