"""Adapters to upload: small good ones of a base model, and files that mean harm, each with the code
that it is refused with."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 1,
    "lora_alpha": 2,
    "target_modules": ["q_proj"],
    "bias": "none",
}
CONFIG = json.dumps(_CONFIG).encode()
_NAME = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


@dataclass(frozen=True)
class File:
    """What is uploaded. `code`: of its refusal; None for a good one."""

    name: str
    weights: bytes
    config: bytes = CONFIG
    code: str | None = None


def good(model: Path, seed: int) -> File:
    """Of rank 1 on one linear of every layer; each seed has content of its own."""
    tensors = _tensors(model, seed)
    return File(f"good-{seed}", _safetensors(tensors))


def harmful(model: Path) -> list[File]:
    """For the check's time and memory, for the disk, and plainly wrong ones."""
    tensors = _tensors(model, 0)
    fine = _safetensors(tensors)
    last = list(tensors)[-1]
    sick = {**tensors, last: tensors[last].copy()}
    sick[last][-1, -1] = np.nan
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/data.pkl", bytes(64 * 2**20))
    many = {
        f"a.{number}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * number, 4 * number + 4]}
        for number in range(9000)
    }
    nested = b'{"a":' * 150_000
    wide = json.dumps({f"x{number}": number for number in range(12_000)}).encode()
    return [
        File("empty", b"", code="truncated"),
        File("cut off", fine[:-7], code="size_mismatch"),
        File("large and wrong", fine + bytes(8 * 2**20), code="size_mismatch"),
        File("noise", np.random.default_rng(0).bytes(4 * 2**20), code="header_too_large"),
        File("zip bomb", archive.getvalue(), code="pickle_refused"),
        File("nested header", _file(nested, b""), code="invalid_json"),
        File("duplicate keys", _file(b'{"a":1,"a":2}', b""), code="duplicate_key"),
        File(
            "9000 tensors", _file(json.dumps(many).encode(), bytes(36_000)), code="too_many_tensors"
        ),
        File("NaN at the end", _safetensors(sick), code="not_finite"),
        File("upwards", _file(b'{"../../x":{}}', b""), code="invalid_name"),
        File("wide config", fine, wide, code="invalid_config"),
        File("no config", fine, b"[" * 100_000, code="invalid_json"),
    ]


def _tensors(model: Path, seed: int) -> dict[str, np.ndarray]:
    sizes = json.loads((model / "config.json").read_text())
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    out = heads * (sizes.get("head_dim") or hidden // heads)
    random = np.random.default_rng(seed)
    made = {}
    for layer in range(sizes["num_hidden_layers"]):
        made[_NAME.format(layer, "A")] = random.standard_normal((1, hidden)).astype("<f4")
        made[_NAME.format(layer, "B")] = random.standard_normal((out, 1)).astype("<f4")
    return made


def _safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    header, position = {}, 0
    for name, values in tensors.items():
        end = position + values.nbytes
        entry = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [position, end]}
        header[name], position = entry, end
    data = b"".join(values.tobytes() for values in tensors.values())
    return _file(json.dumps(header).encode(), data)


def _file(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data
