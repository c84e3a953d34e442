"""GGUF files of the default base model in bfloat16 and of PEFT adapters, for llama.cpp.

The base is the GGUF our own bfloat16 weights were made from, its matrices dequantised, so that both
compute with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from tenora_bench.client import BenchError
from tenora_engine.errors import ModelLoadError
from tenora_engine.model import default_model

MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def find_base(model: Path) -> Path:
    """The 4-bit GGUF that `model` was converted from. Raises BenchError when there is none."""
    if not (model / default_model.MARKER).exists():
        raise BenchError(f"{model} is not the default base model: there is no GGUF of its weights")
    try:
        return default_model.find_gguf()
    except ModelLoadError as error:
        raise BenchError(str(error)) from error


def interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """`rows` of q or k, [heads * head_dim, n], in llama.cpp's order: a rotated pair is adjacent
    rows there and half a head apart in Hugging Face's."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_base(source: Path, target: Path) -> None:
    """`source`, a quantised GGUF, with its matrices in bfloat16 and the rest as it was."""
    import gguf

    reader = gguf.GGUFReader(str(source))
    bf16 = gguf.GGMLQuantizationType.BF16
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value: Any = field.contents()
        if name == "general.file_type":
            value = int(gguf.LlamaFileType.MOSTLY_BF16)
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quantize(values, bf16), raw_dtype=bf16)
    finish(writer)


def write_adapter(folder: Path, model: Path, target: Path) -> None:
    """The PEFT adapter in `folder` (attention and MLP linears, bfloat16) as a float16 GGUF."""
    import gguf

    config = json.loads((model / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(alpha))
    with safe_open(folder / "adapter_model.safetensors", "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a dict)
            *_, layer, _, module, matrix, _ = name.split(".")
            values = tensors.get_tensor(name).float().numpy()
            if matrix == "lora_B" and module in heads:
                values = interleaved(values, heads[module])
            name = f"blk.{layer}.{MODULES[module]}.weight.{matrix.lower()}"
            writer.add_tensor(name, values.astype(np.float16))
    finish(writer)


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
