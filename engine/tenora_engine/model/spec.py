"""What a model folder's config.json says about a decoder of the Llama family. No tensors here."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenora_engine.errors import ModelLoadError
from tenora_engine.model.end_tokens import read_eos_token_ids

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True)
class DecoderSpec:
    """The sizes and switches of one decoder, and the folder they were read from."""

    folder: str
    architecture: str
    num_layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_tokens: int
    norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    rope: dict[str, Any]  # config.json's rope_parameters, at least rope_type and rope_theta
    eos_token_ids: tuple[int, ...]

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    def module_shape(self, module: str) -> tuple[int, int]:
        """(in, out) features of one of LORA_MODULES."""
        return {
            "q_proj": (self.hidden, self.query_width),
            "k_proj": (self.hidden, self.kv_width),
            "v_proj": (self.hidden, self.kv_width),
            "o_proj": (self.query_width, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }[module]

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the checkpoint must hold, by its Hugging Face name."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            shapes.update((prefix + name, shape) for name, shape in self._layer_shapes().items())
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden,),
            "post_attention_layernorm.weight": (self.hidden,),
        }
        bias = {
            "q_proj": self.qkv_bias,
            "k_proj": self.qkv_bias,
            "v_proj": self.qkv_bias,
            "o_proj": self.out_bias,
            "gate_proj": self.mlp_bias,
            "up_proj": self.mlp_bias,
            "down_proj": self.mlp_bias,
        }
        for module, has_bias in bias.items():
            part = "self_attn" if module in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            width_in, width_out = self.module_shape(module)
            shapes[f"{part}.{module}.weight"] = (width_out, width_in)
            if has_bias:
                shapes[f"{part}.{module}.bias"] = (width_out,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (self.head_dim,)
            shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        return shapes

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    @property
    def num_linear_parameters(self) -> int:
        """Of all projections and the LM head, biases apart."""
        layer = sum(math.prod(shape) for shape in self._layer_shapes().values() if len(shape) == 2)
        return self.num_layers * layer + self.vocab * self.hidden

    @property
    def num_linear_outputs(self) -> int:
        layer = sum(shape[0] for shape in self._layer_shapes().values() if len(shape) == 2)
        return self.num_layers * layer + self.vocab


def read_spec(folder: str) -> DecoderSpec:
    """Read `folder`/config.json. Raises ModelLoadError when it is missing or unsupported."""
    path = Path(folder)
    file = path / "config.json"
    if not path.is_dir():
        raise ModelLoadError(
            f"the model folder {folder} does not exist; --model names a Hugging Face folder "
            "with config.json and safetensors"
        )
    if not file.is_file():
        raise ModelLoadError(f"the model folder {folder} has no config.json; is it a model's?")
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{file} is not valid JSON: {error}") from error
    if config.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(f"hidden_act {config['hidden_act']!r} is not supported, only 'silu'")
    if config.get("quantization_config"):
        raise ModelLoadError("quantised checkpoints are not supported; use the original weights")
    try:
        return _spec_of(folder, config)
    except KeyError as error:
        raise ModelLoadError(f"{file} lacks {error.args[0]!r}") from error


# What transformers' own config classes fall back to where config.json is silent.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"sliding_window": 4096, "num_key_value_heads": 8},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 128},
}


def _spec_of(folder: str, config: dict[str, Any]) -> DecoderSpec:
    architecture = (config.get("architectures") or ["unnamed"])[0]
    if architecture not in ARCHITECTURES:
        raise ModelLoadError(
            f"the architecture {architecture} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    config = {**_DEFAULTS[architecture], **config}
    heads = config["num_attention_heads"]
    attention_bias = bool(config.get("attention_bias", False))
    qwen2 = architecture == "Qwen2ForCausalLM"
    return DecoderSpec(
        folder=folder,
        architecture=architecture,
        num_layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
        context_tokens=config["max_position_embeddings"],
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or qwen2,
        out_bias=attention_bias and not qwen2,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=architecture == "Qwen3ForCausalLM",
        sliding_window=_sliding_window(architecture, config),
        rope=_rope_parameters(config),
        eos_token_ids=read_eos_token_ids(Path(folder)),
    )


def _sliding_window(architecture: str, config: dict[str, Any]) -> int | None:
    # Qwen keeps a window in its config that `use_sliding_window` switches; Mistral always uses it.
    used = config.get("use_sliding_window", architecture == "MistralForCausalLM")
    window: int | None = config.get("sliding_window")
    return window if used else None


def _rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """transformers >= 5 writes `rope_parameters`; before, `rope_theta` beside `rope_scaling`."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.get("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return rope
