"""Adapters packed into int8 pages: every row a multiple of its own scale."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tenora_engine.adapters.pack import deserialise, pack_adapter, serialise
from tenora_engine.adapters.peft_format import (
    effective_modules,
    parse_adapter_config,
    tensor_name,
)
from tenora_engine.config import LORA_MODULES
from tenora_engine.errors import AdapterLoadError
from tiny_model import DIGEST, MODEL, PAGE


def test_int8_rows_are_multiples_of_their_own_scale() -> None:
    """Half a step of rounding at most, a scale before each row, and a row of zeros."""
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": list(LORA_MODULES)}
    parsed = parse_adapter_config(config)
    tensors: dict[str, Tensor] = {}
    for (layer, module), lora in effective_modules(parsed, MODEL).items():
        features_in, features_out = MODEL.modules[module]
        tensors[tensor_name(layer, module, "A")] = torch.randn(lora.rank, features_in)
        tensors[tensor_name(layer, module, "B")] = torch.randn(features_out, lora.rank) * 1e-3
    tensors[tensor_name(0, "q_proj", "A")][1] = 0
    packed = pack_adapter(DIGEST, parsed, tensors, MODEL, 2 * PAGE, "int8", max_rank=64)
    assert packed.pages.dtype == torch.int8
    assert packed.layout_key.startswith("granules-2/int8/")
    for layer, module in effective_modules(parsed, MODEL):
        index = LORA_MODULES.index(module)
        a = tensors[tensor_name(layer, module, "A")]
        b = tensors[tensor_name(layer, module, "B")].t()
        for row in range(3):
            page = packed.pages[int(packed.granule_page[layer, row])]
            granule = int(packed.granule_start[layer, row])
            for offset, expected in ((packed.a_offset, a[row]), (packed.b_offset, b[row])):
                start = granule + int(offset[layer, index])
                scale = page[start - 4 : start].clone().view(torch.float32)
                stored = page[start : start + expected.shape[0]]
                assert int(stored.abs().max()) == (127 if expected.any() else 0)
                assert float((stored * scale - expected).abs().max()) <= 0.501 * float(scale)
    again = deserialise(serialise(packed), packed.layout_key, DIGEST)
    assert torch.equal(again.pages, packed.pages)


def test_int8_refuses_what_is_not_finite() -> None:
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}
    parsed = parse_adapter_config(config)
    tensors: dict[str, Tensor] = {}
    for layer, module in effective_modules(parsed, MODEL):
        features_in, features_out = MODEL.modules[module]
        tensors[tensor_name(layer, module, "A")] = torch.ones(1, features_in)
        tensors[tensor_name(layer, module, "B")] = torch.ones(features_out, 1)
    tensors[tensor_name(1, "q_proj", "B")][0] = math.inf
    with pytest.raises(AdapterLoadError, match="NaN or infinity"):
        pack_adapter(DIGEST, parsed, tensors, MODEL, 2 * PAGE, "int8", max_rank=64)
