"""Hypothesis strategies for uploads and plans that an engine comes to see: configs, safetensors
headers, weights and terms of service, good but for a field or two."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from adapter_files import adapter_config, encode, file_of, header_of
from odd_bodies import NUMBERS, Literal, document_of, near, texts, values
from tenora_engine.adapters.peft_format import tensor_name

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
Shapes = tuple[int, dict[str, tuple[int, int]]]
"""Number of layers, and (in, out) features by module."""

FLOATS: list[Any] = [each for each in NUMBERS if not isinstance(each, Literal)]
SMALL = [0, 1, 2, 4, 1e-45, 1e-30, 1e30, 3.4e38, 1e300, 1e308, 5e-324]
CONFIG: dict[str, st.SearchStrategy[Any]] = {
    "r": st.sampled_from([*FLOATS, *SMALL]) | values,
    "lora_alpha": st.sampled_from([*SMALL, *FLOATS]) | values,
    "target_modules": values | st.lists(texts, max_size=3) | st.sampled_from(["(a+)+$", ".*", "("]),
    "exclude_modules": values | st.sampled_from(["(a|aa)+$", ["q_proj"], "q_proj"]),
    "rank_pattern": st.dictionaries(texts | st.just("q_proj"), values, max_size=3) | values,
    "alpha_pattern": st.dictionaries(
        st.sampled_from(["q_proj", "v_proj", ".*", "^(a+)+$"]), st.sampled_from(SMALL) | values
    ),
    "use_rslora": st.booleans() | values,
    "layers_to_transform": values | st.lists(st.sampled_from(FLOATS), max_size=3),
    "layers_pattern": values | texts,
    "base_model_name_or_path": texts | values,
    "auto_mapping": values,
    "task_type": values,
    "peft_type": values,
    "bias": values,
    "lora_dropout": values,
    "modules_to_save": values,
    "peft_version": texts | values,
    "other": values,
}
SCALES = [1.0, 0.0, 1e-45, 1e-38, 1e10, 1e20, 1e30, 3e38, float("inf"), float("nan")]
HEADERS: list[Callable[[bytes], bytes]] = [
    lambda header: header[:-1],
    lambda header: header + b" " * 70_000,
    lambda header: header.replace(b'"F32"', b'"F64"', 1),
    lambda header: header.replace(b'"shape"', b'"shap\\u0065"', 1),
    lambda header: header.replace(b"[0,", b"[-0,", 1),
    lambda header: header.replace(b"[0,", b"[18446744073709551616,", 1),
    lambda header: header.replace(b"[0,", b"[NaN,", 1),
    lambda header: header.replace(b"[0,", b"[" + b"9" * 5_000 + b",", 1),
    lambda header: header.replace(b"lora_A", b"lora_\\ud800", 1),
    lambda header: header.replace(b"lora_A", b"lora_B", 1),
    lambda header: header.replace(b"layers.0", b"layers.0000000000", 1),
    lambda header: header.replace(b"layers.0", b"layers.99999999999999999999", 1),
    lambda header: header.replace(b"layers.0", "layers.\N{ARABIC-INDIC DIGIT ONE}".encode(), 1),
    lambda header: header.replace(b"{", b'{"__metadata__":{"a":"\\ud800"},', 1),
    lambda header: header.replace(b"{", b'{"__metadata__":' + b"[" * 100_000 + b",", 1),
    lambda header: b"[" * 500_000,
    lambda header: b"{}",
    lambda header: b"",
]


def tensors(shapes: Shapes, rank: int, scale: float, dtype: str) -> Tensors:
    layers, modules = shapes
    made: Tensors = {}
    random = np.random.default_rng(rank)
    for layer in range(layers):
        for module in ("q_proj", "v_proj"):
            inside, outside = modules[module]
            for matrix, shape in (("A", (rank, inside)), ("B", (outside, rank))):
                with np.errstate(all="ignore"):
                    values = (random.standard_normal(shape) * scale).astype("<f4")
                    data = encode(np.clip(values, -3e38, 3e38), dtype)
                name = tensor_name(layer, module, "A" if matrix == "A" else "B")
                made[name] = (dtype, shape, data)
    return made


@st.composite
def forms(draw: st.DrawFn, shapes: Shapes) -> dict[str, Any]:
    """`files=` of httpx for POST /v1/adapters."""
    fields = draw(st.lists(st.sampled_from(sorted(CONFIG)), max_size=2, unique=True))
    config = adapter_config(r=2) | {name: draw(CONFIG[name]) for name in fields}
    scale = draw(st.sampled_from(SCALES))
    dtype = draw(st.sampled_from(["F32", "F16", "BF16"]))
    made = tensors(shapes, 2, scale, dtype)
    header = json.dumps(header_of(made)).encode()
    if draw(st.integers(0, 2)) == 0:
        header = draw(st.sampled_from(HEADERS))(header)
    weights = file_of(header, b"".join(data for _, _, data in made.values()))
    weights = weights[: draw(st.sampled_from([len(weights)] * 8 + [0, 7, 8, 9, len(weights) - 1]))]
    name = draw(st.sampled_from(["odd"] * 9 + ["", "a b", "\0", "../x", "é", "a" * 64, "odd@1"]))
    return {
        "name": (None, name),
        "adapter_config": ("adapter_config.json", document_of(config)),
        "weights": ("adapter_model.safetensors", weights),
    }


def preflight_of(form: dict[str, Any]) -> dict[str, Any]:
    """The same upload, asked about beforehand."""
    weights = form["weights"][1]
    end = 8 + min(int.from_bytes(weights[:8], "little"), 2**20)
    return {
        "name": form["name"],
        "adapter_config": form["adapter_config"],
        "header": ("header", weights[:end]),
        "weights_bytes": (None, str(len(weights))),
    }


def plans(document: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Bodies of PUT /admin/v1/plans/{name}, half of them within their bounds."""
    schemas = document["components"]["schemas"]
    properties = schemas["PlanBody"]["properties"]
    fields = {name: near(schema, schemas) for name, schema in properties.items()}
    within = {
        "weight": st.sampled_from([0.01, 100, 1, 3.3333]),
        "memory_share": st.sampled_from([0.001, 0.5, 0.999, 1, None]),
        "ttft_ms": st.sampled_from([1, 1.5, 86_400_000, None]),
        "tpot_ms": st.sampled_from([0.01, 86_400_000, None]),
        "late": st.sampled_from(["best_effort", "refuse", "relegate"]),
        "sla_class": st.sampled_from(["default", "priority", "flex"]),
    }
    return st.fixed_dictionaries({}, optional=within) | st.builds(
        lambda good, odd: {**good, **odd},
        st.fixed_dictionaries({}, optional=within),
        st.sampled_from(sorted(fields)).flatmap(
            lambda name: st.fixed_dictionaries({name: fields[name] | values})
        ),
    )
