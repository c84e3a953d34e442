"""The picture of an adapter's layers: norms against numpy's on matrices that are really multiplied,
and its size for a large model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from adapter_files import adapter_config, adapter_tensors, safetensors
from tenora_engine.adapters.peft_format import tensor_name
from tenora_engine.config import LORA_MODULES, ModelInfo
from tenora_platform.intake import picture
from tenora_platform.intake.check import check_adapter
from tenora_platform.intake.report import LayerPicture
from tiny_model import MODEL


def drawn(
    tmp_path: Path, model: ModelInfo, tensors: dict[str, Any], config: dict[str, Any]
) -> LayerPicture:
    path = tmp_path / "weights"
    path.write_bytes(safetensors(tensors))
    checked = check_adapter(json.dumps(config).encode(), path, model, 64)
    assert checked.report.problems == []
    assert checked.report.facts is not None
    assert checked.report.facts.picture is not None
    return checked.report.facts.picture


def matrix(tensors: dict[str, Any], layer: int, module: str, which: Any) -> Any:
    dtype, shape, data = tensors[tensor_name(layer, module, which)]
    if dtype == "BF16":
        wide = np.frombuffer(data, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64).reshape(shape)
    kind = {"F32": "<f4", "F16": "<f2"}[dtype]
    return np.frombuffer(data, kind).astype(np.float64).reshape(shape)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_norms_are_those_of_the_product(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "BLOCK_BYTES", 5 * 8 * 6)  # several blocks, the last not whole
    modules = ["k_proj", "down_proj"]
    tensors = adapter_tensors(MODEL, modules, rank=6, dtype=dtype)
    config = adapter_config(modules, r=6, lora_alpha=9, alpha_pattern={"down_proj": 3})
    found = drawn(tmp_path, MODEL, tensors, config)
    assert found.modules == modules
    assert found.layers == [0, 1, 2]
    for row, module in enumerate(modules):
        scale = 1.5 if module == "k_proj" else 0.5
        for layer in found.layers:
            a, b = (matrix(tensors, layer, module, which) for which in ("A", "B"))
            expected = {
                "norm_a": np.linalg.norm(a),
                "norm_b": np.linalg.norm(b),
                "product": np.linalg.norm(scale * b @ a),
            }
            for name, value in expected.items():
                assert getattr(found, name)[row][layer] == pytest.approx(value, rel=6e-4), name
            assert found.rank[row][layer] == 6


def test_a_layer_without_the_module_is_null(tmp_path: Path) -> None:
    config = adapter_config(["q_proj"], layers_to_transform=[1])
    tensors = {
        name: each
        for name, each in adapter_tensors(MODEL, ["q_proj"]).items()
        if ".layers.1." in name
    }
    found = drawn(tmp_path, MODEL, tensors, config)
    assert found.layers == [1]
    assert found.rank == [[4]]


def replace_layers(model: ModelInfo, count: int) -> ModelInfo:
    return replace(model, num_layers=count)


def test_zeros_make_a_product_of_zero(tmp_path: Path) -> None:
    tensors = adapter_tensors(MODEL)
    blank = {
        name: (dtype, shape, bytes(len(data)) if "lora_B" in name else data)
        for name, (dtype, shape, data) in tensors.items()
    }
    found = drawn(tmp_path, MODEL, blank, adapter_config())
    assert found.product == [[0.0] * 3] * 2
    assert all(value and value > 0 for row in found.norm_a for value in row)


def test_a_large_adapter_fits_into_16_kb(tmp_path: Path) -> None:
    model = replace_layers(MODEL, 32)
    tensors = adapter_tensors(model, LORA_MODULES, rank=16)
    found = drawn(tmp_path, model, tensors, adapter_config(LORA_MODULES, r=16))
    assert len(found.model_dump_json()) < 16_000
