"""Adapters' folders of real trainers that cannot be served as they are, each with the field or
tensor to blame and what its author is told to do."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import IA3Config, LoHaConfig, LoraConfig, PrefixTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainers import ALL, CONFIG, WEIGHTS, configured, mlx, renamed, saved, with_files

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@dataclass(frozen=True)
class Refused:
    make: Callable[[Any, Path], None]
    code: str  # of a problem; "" where the command line refuses
    advice: str


def _plain(base: Any, folder: Path, **options: Any) -> None:
    saved(base, folder, **{"r": 4, "target_modules": ["q_proj", "v_proj"], **options})


def _with(**options: Any) -> Callable[[Any, Path], None]:
    return lambda base, folder: _plain(base, folder, **options)


def _other_method(config: Any) -> Callable[[Any, Path], None]:
    def make(base: Any, folder: Path) -> None:
        get_peft_model(copy.deepcopy(base), config).save_pretrained(folder)

    return make


def _added(*names: str, dtype: torch.dtype = torch.float32) -> Callable[[Any, Path], None]:
    def make(base: Any, folder: Path) -> None:
        _plain(base, folder)
        more = {name: torch.ones(4, 4).to(dtype) for name in names}
        save_file({**load_file(folder / WEIGHTS), **more}, folder / WEIGHTS)

    return make


def _added_tokens(base: Any, folder: Path) -> None:
    """TRL's setup_chat_format, axolotl's tokens: the embeddings are resized and saved whole."""
    grown = copy.deepcopy(base)
    grown.resize_token_embeddings(264)
    config = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(grown, config).save_pretrained(folder, save_embedding_layers=True)


def _instead_of_weights(name: str, data: bytes) -> Callable[[Any, Path], None]:
    def make(base: Any, folder: Path) -> None:
        _plain(base, folder)
        (folder / WEIGHTS).unlink()
        (folder / name).write_bytes(data)

    return make


def _config(**changes: Any) -> Callable[[Any, Path], None]:
    def make(base: Any, folder: Path) -> None:
        _plain(base, folder)
        configured(folder, **changes)

    return make


def _mlx_dora(base: Any, folder: Path) -> None:
    mlx(base, folder)
    configured(folder, fine_tune_type="dora")


def _mlx_config_only(base: Any, folder: Path) -> None:
    _plain(base, folder)
    mlx_fields = {"fine_tune_type": "lora", "lora_parameters": {"rank": 4, "scale": 20.0}}
    (folder / CONFIG).write_text(json.dumps(mlx_fields))


def _torchtune_names(base: Any, folder: Path) -> None:
    _plain(base, folder)
    renamed(folder, lambda n: n.replace("lora_A", "lora_a").replace("lora_B", "lora_b"))


def _zero3(base: Any, folder: Path) -> None:
    """DeepSpeed's placeholders, where the weights were not gathered."""
    _plain(base, folder)
    tensors: dict[str, Tensor] = load_file(folder / WEIGHTS)
    save_file({name: torch.zeros(0) for name in tensors}, folder / WEIGHTS)


def _checkpoints_only(base: Any, folder: Path) -> None:
    folder.mkdir()
    _plain(base, folder / "checkpoint-20")
    with_files(folder, "trainer_state.json", "checkpoint-9/adapter_config.json")


def _shard_gone(base: Any, folder: Path) -> None:
    _plain(base, folder)
    (folder / WEIGHTS).unlink()
    places = {f"{Q0}.lora_A.weight": "adapter_model-00001-of-00001.safetensors"}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": places}))


def _shard_elsewhere(base: Any, folder: Path) -> None:
    _shard_gone(base, folder)
    places = {f"{Q0}.lora_A.weight": "../../secrets.safetensors"}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": places}))


_LAYER = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"]}
REFUSED: dict[str, Refused] = {
    "modules_to_save": Refused(
        _with(modules_to_save=["lm_head"]), "unsupported_modules_to_save", "without modules_to_save"
    ),
    "added tokens": Refused(_added_tokens, "unsupported_embeddings", "train without adding tokens"),
    "trainable tokens": Refused(
        _with(trainable_token_indices=[3, 4]), "unsupported_embeddings", "train without new tokens"
    ),
    "dora": Refused(_with(use_dora=True), "unsupported_dora", "train with use_dora=False"),
    "lora_bias": Refused(_with(lora_bias=True), "unsupported_bias", "train with lora_bias=False"),
    "embeddings": Refused(
        _with(target_modules=["q_proj", "embed_tokens"]),
        "unsupported_embeddings",
        "without embed_tokens",
    ),
    "lm_head": Refused(
        _with(target_modules=[*ALL, "lm_head"]), "unsupported_lm_head", "without lm_head"
    ),
    "ia3": Refused(
        _other_method(IA3Config(**_LAYER, feedforward_modules=[])),
        "unsupported_peft_type",
        "train with peft.LoraConfig",
    ),
    "loha": Refused(
        _other_method(LoHaConfig(**_LAYER)), "unsupported_peft_type", "train with peft.LoraConfig"
    ),
    "prefix": Refused(
        _other_method(PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
        "unsupported_peft_type",
        "train with peft.LoraConfig",
    ),
    "alora": Refused(
        _config(alora_invocation_tokens=[1, 2]), "unsupported_alora", "train without alora"
    ),
    "experts": Refused(
        _config(target_parameters=["mlp.experts.gate_up_proj"]),
        "unsupported_target_parameters",
        "train with target_modules",
    ),
    "pissa": Refused(
        _config(init_lora_weights="pissa_niter_16"),
        "unsupported_initialisation",
        "path_initial_model_for_weight_conversion",
    ),
    "a field of next year that is on": Refused(
        _config(spin=0.5), "invalid_config", "set it to null"
    ),
    "a classifier": Refused(_config(task_type="SEQ_CLS"), "unsupported_task_type", "train"),
    "a trained bias": Refused(
        _added(f"{Q0}.base_layer.bias"), "unsupported_bias", "train with bias='none'"
    ),
    "a quantised base": Refused(
        _added(f"{Q0}.base_layer.weight", f"{Q0}.base_layer.weight.quant_map", dtype=torch.uint8),
        "base_weights",
        "save only the adapter",
    ),
    "a whole model": Refused(
        _added("model.layers.0.self_attn.q_proj.weight"), "base_weights", "save only the adapter"
    ),
    "kohya's names": Refused(
        _added("lora_te_q_proj.lora_down.weight"), "unsupported_peft_type", "train with peft"
    ),
    "torchtune's own file": Refused(
        _torchtune_names, "not_peft_names", "adapter_model.safetensors"
    ),
    "mlx's config alone": Refused(_mlx_config_only, "unsupported_peft_type", "tenora adapter push"),
    "zero-3": Refused(_zero3, "invalid_shape", "gathered before saving"),
    "a git lfs pointer": Refused(
        _instead_of_weights(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid sha256:"),
        "format_refused",
        "git lfs pull",
    ),
    "gguf under another name": Refused(
        _instead_of_weights(WEIGHTS, b"GGUF" + bytes(90)), "format_refused", "save_pretrained"
    ),
    "gguf": Refused(_instead_of_weights("a.gguf", b"GGUF"), "", "upload the PEFT folder"),
    "pickle": Refused(
        _instead_of_weights("adapter_model.bin", b"\x80\x02"), "", "safe_serialization=True"
    ),
    "litgpt": Refused(
        _instead_of_weights("lit_model.pth.lora", b"\x80\x02"),
        "",
        "must contain adapter_config.json and",
    ),
    "another name": Refused(
        _instead_of_weights("pytorch_lora_weights.safetensors", b""), "", "rename it"
    ),
    "mlx dora": Refused(_mlx_dora, "", "--fine-tune-type lora"),
    "checkpoints alone": Refused(_checkpoints_only, "", "checkpoint-20"),
    "a shard gone": Refused(_shard_gone, "", "which is not in the folder"),
    "a shard elsewhere": Refused(_shard_elsewhere, "", "is not a file of this folder"),
}
