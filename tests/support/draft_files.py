"""Draft layers as files, made by hand: good ones for any base model, and parts to break them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from adapter_files import encode, file_of, header_of
from tenora_engine.adapters.draft_format import FORMAT, VOCABULARY, tensor_shapes
from tenora_engine.config import ModelInfo

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def draft_tensors(model: ModelInfo, seed: int = 0, dtype: str = "BF16", tokens: int = 9) -> Tensors:
    """name -> (dtype, shape, data) of each."""
    random = np.random.default_rng(seed)
    query = model.heads * model.head_dim
    tensors: Tensors = {}
    for name, shape in tensor_shapes(model.hidden, model.intermediate, query, tokens).items():
        if name == VOCABULARY:
            ids = random.integers(0, model.vocab, shape).astype("<i8")
            tensors[name] = ("I64", shape, ids.tobytes())
        else:
            values = random.standard_normal(shape).astype("<f4")
            tensors[name] = (dtype, shape, encode(values, dtype))
    return tensors


def draft_file(tensors: Tensors, format: str | None = FORMAT) -> bytes:
    metadata: dict[str, Any] = {} if format is None else {"__metadata__": {"format": format}}
    data = b"".join(data for _, _, data in tensors.values())
    return file_of(json.dumps(metadata | header_of(tensors)).encode(), data)
