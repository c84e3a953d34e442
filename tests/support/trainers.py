"""Adapters' folders as real trainers leave them, each made with peft and then laid out after its
trainer's own habits: names of tensors and files, fields of the config, dtypes."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Trainer = Callable[[Any, Path], None]


def as_saved(folder: Path) -> Path:
    """Where `saved` keeps what peft wrote, before the trainer's habits were laid over it."""
    return folder.parent / f"{folder.name}.as-saved"


def saved(base: Any, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> None:
    """What peft's save_pretrained writes, with matrices that change answers."""
    options = {"task_type": "CAUSAL_LM", **options}
    model = get_peft_model(copy.deepcopy(base), LoraConfig(**options))
    generator = torch.Generator().manual_seed(len(folder.name))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            with torch.no_grad():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise * 0.3 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    tensors = load_file(folder / WEIGHTS)
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / WEIGHTS)
    shutil.copytree(folder, as_saved(folder))


def configured(folder: Path, **changes: Any) -> None:
    fields = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps(fields))


def renamed(folder: Path, new_name: Callable[[str], str]) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({new_name(name): tensor for name, tensor in tensors.items()}, folder / WEIGHTS)


def with_files(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"not the adapter's")


def sharded(folder: Path, shards: int) -> None:
    """Several files with an index, as accelerate's save_model leaves them."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    parts: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    for number, (name, tensor) in enumerate(tensors.items()):
        parts[number % shards][name] = tensor
    places: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        file = f"adapter_model-{number:05}-of-{shards:05}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def transformers_trainer(base: Any, folder: Path) -> None:
    """No task_type, so that peft fills auto_mapping; checkpoints and training state beside."""
    saved(base, folder, r=4, target_modules=["q_proj", "v_proj"], task_type=None)
    with_files(folder, "README.md", "training_args.bin", "checkpoint-5/optimizer.pt", "runs/events")


def trl(base: Any, folder: Path) -> None:
    """The tokenizer and its template beside; a field of a newer peft that is null."""
    saved(base, folder, torch.bfloat16, r=8, lora_alpha=16, target_modules="all-linear")
    configured(folder, peft_version="9.1.0", quantum_config=None, enable_lora=None)
    with_files(folder, "README.md", "tokenizer.json", "special_tokens_map.json")


def unsloth(base: Any, folder: Path) -> None:
    """Of get_peft_regex: a regular expression over vision and language models alike."""
    parts = "|".join(ALL)
    blocks = "self_attn|attention|attn|mixer|mlp|feed_forward|ffn|dense"
    target = (
        rf"(?:.*?(?:vision|image|visual|patch|language|text).*?(?:{blocks}).*?(?:{parts}).*?)"
        rf"|(?:\bmodel\.layers\.[\d]{{1,}}\.(?:{blocks})\.(?:(?:{parts})))"
    )
    saved(base, folder, r=8, lora_alpha=8, target_modules=target, use_rslora=True)
    mapping = {
        "base_model_class": "LlamaForCausalLM",
        "parent_library": "transformers.models.llama.modeling_llama",
        "unsloth_fixed": True,
    }
    configured(folder, auto_mapping=mapping, base_model_name_or_path="unsloth/tiny-bnb-4bit")


def axolotl(base: Any, folder: Path) -> None:
    """Some layers of all; float16; names as FSDP and activation checkpointing leave them."""
    saved(
        base,
        folder,
        torch.float16,
        r=6,
        lora_alpha=12,
        target_modules=ALL,
        layers_to_transform=[1],
        layers_pattern="layers",
    )
    wrapped = "_fsdp_wrapped_module.layers.{}._checkpoint_wrapped_module."
    renamed(folder, lambda name: re.sub(r"layers\.(\d)\.", lambda m: wrapped.format(m[1]), name))
    with_files(folder, "config.json", "tokenizer.model", "last-checkpoint/trainer_state.json")


def llama_factory(base: Any, folder: Path) -> None:
    """Ranks and alphas of single modules; bias='all' of a model without any."""
    saved(
        base,
        folder,
        r=4,
        lora_alpha=8,
        target_modules=ALL,
        rank_pattern={"down_proj": 2, "q_proj": 7},
        alpha_pattern={"down_proj": 5},
        bias="all",
    )
    with_files(folder, "all_results.json", "training_loss.png", "trainer_log.jsonl")


def torchtune(base: Any, folder: Path) -> None:
    """A config of four fields, and its own file of the same weights beside."""
    saved(base, folder, torch.bfloat16, r=8, lora_alpha=16, target_modules=["q_proj", "down_proj"])
    fields = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"]}
    (folder / CONFIG).write_text(json.dumps(fields))
    with_files(folder, "adapter_model.pt")


def mlx(base: Any, folder: Path) -> None:
    """Its own names, matrices the other way round, and the training's arguments as the config."""
    saved(base, folder, r=4, lora_alpha=10, target_modules=["q_proj", "v_proj"])
    tensors = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        plain = name.removeprefix("base_model.model.").removesuffix(".weight")
        plain = plain.replace("lora_A", "lora_a").replace("lora_B", "lora_b")
        tensors[plain] = tensor.T.contiguous()
    (folder / WEIGHTS).unlink()
    save_file(tensors, folder / "adapters.safetensors")
    fields = {
        "fine_tune_type": "lora",
        "model": "mlx-community/tiny-4bit",
        "num_layers": 16,
        "lora_parameters": {"rank": 4, "scale": 2.5, "dropout": 0.0},
    }
    (folder / CONFIG).write_text(json.dumps(fields))
    with_files(folder, "0000100_adapters.safetensors")


def ms_swift(base: Any, folder: Path) -> None:
    """A regular expression with a lookahead; its own arguments beside."""
    target = r"^(model(?=\.).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj))$"
    saved(base, folder, torch.bfloat16, r=8, lora_alpha=32, target_modules=target)
    with_files(folder, "additional_config.json", "args.json")


def lightning(base: Any, folder: Path) -> None:
    """The state dict as it is: the adapter's name in every key, DDP's `module.` before it."""
    saved(base, folder, r=5, target_modules=["k_proj", "up_proj"])
    renamed(folder, lambda name: "module." + name.replace(".weight", ".default.weight"))


def accelerate_compiled(base: Any, folder: Path) -> None:
    """A compiled model in several files with an index."""
    saved(base, folder, r=4, lora_alpha=4, target_modules=ALL, exclude_modules=["v_proj"])
    renamed(folder, lambda name: name.replace("base_model.model.", "_orig_mod."))
    sharded(folder, 3)


ACCEPTED: dict[str, Trainer] = {
    "transformers": transformers_trainer,
    "trl": trl,
    "unsloth": unsloth,
    "axolotl": axolotl,
    "llama-factory": llama_factory,
    "torchtune": torchtune,
    "mlx": mlx,
    "ms-swift": ms_swift,
    "lightning": lightning,
    "accelerate": accelerate_compiled,
}
