"""The model families that can be served, each as what it has otherwise than Llama, and the way from
config.json to a DecoderSpec. One more family is one more entry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tenora_engine.errors import ModelLoadError
from tenora_engine.model.end_tokens import read_eos_token_ids
from tenora_engine.model.spec import DecoderSpec, LayerSpec, Norms, QueryKeyNorm

ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_MODULES = ("gate_proj", "up_proj", "down_proj")
POST_NORMS = Norms(attention_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")
PRE_NORMS = Norms(attention_in="input_layernorm", mlp_in="post_attention_layernorm")


@dataclass(frozen=True)
class Family:
    """An architecture. `defaults` are the keys that it reads of a config beside Llama's, or with
    another default: what transformers' config class falls back to where config.json is silent."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    norms: Norms = PRE_NORMS
    query_key_norm: QueryKeyNorm | None = None
    attention_biases: tuple[str, ...] | None = None  # None: all or none, as `attention_bias` says


_LATE_WINDOWS = {"sliding_window": 4096, "max_window_layers": 28, "layer_types": None}

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "use_sliding_window": True,
        }
    ),
    "Qwen2ForCausalLM": Family(
        defaults=_LATE_WINDOWS, attention_biases=("q_proj", "k_proj", "v_proj")
    ),
    "Qwen3ForCausalLM": Family(defaults={**_LATE_WINDOWS, "head_dim": 128}, query_key_norm="head"),
    "Olmo2ForCausalLM": Family(
        defaults={"rms_norm_eps": 1e-5}, norms=POST_NORMS, query_key_norm="width"
    ),
    "SmolLM3ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 4,
            "rope_theta": 2000000.0,
            "tie_word_embeddings": True,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "layer_types": None,
        }
    ),
    "GraniteForCausalLM": Family(
        defaults={
            "embedding_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        }
    ),
}

_OF_ANY_ROPE = ("rope_theta", "partial_rotary_factor")

ROPE_KEYS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""What each kind of scaling must have, beside what transformers has a default for."""

_LLAMA: dict[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 10000.0,
    "rope_parameters": None,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
}


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
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} is not valid JSON: {error}") from error
    try:
        return spec_of(config, folder, read_eos_token_ids(path))
    except KeyError as error:
        raise ModelLoadError(f"{file} lacks {error.args[0]!r}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file} has a value of the wrong kind: {error}") from error


def spec_of(
    config: Mapping[str, Any], folder: str = "", eos_token_ids: tuple[int, ...] = ()
) -> DecoderSpec:
    """What a config says. Raises ModelLoadError for what is not supported, and KeyError when a
    size is not there."""
    if config.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(f"hidden_act {config['hidden_act']!r} is not supported, only 'silu'")
    if config.get("quantization_config"):
        raise ModelLoadError("quantised checkpoints are not supported; use the original weights")
    architecture = (config.get("architectures") or ["unnamed"])[0]
    if architecture not in FAMILIES:
        raise ModelLoadError(
            f"the architecture {architecture} is not supported; supported: {', '.join(FAMILIES)}"
        )
    family = FAMILIES[architecture]
    optional = {**_LLAMA, **family.defaults}
    optional.update((key, config[key]) for key in optional if key in config)
    num_layers = config["num_hidden_layers"]
    layer = _layer(config, optional, family)
    turns = _has_rope(optional, num_layers)
    windows = _windows(optional, turns)
    embedding_factor, final_norm_factor = _factors(optional)
    return DecoderSpec(
        folder=folder,
        architecture=architecture,
        layers=tuple(
            replace(layer, rotary_dim=layer.rotary_dim if turned else 0, window=window)
            for turned, window in zip(turns, windows, strict=True)
        ),
        vocab=config["vocab_size"],
        context_tokens=config["max_position_embeddings"],
        tied_embeddings=bool(optional["tie_word_embeddings"]),
        rope=_rope_parameters(optional),
        eos_token_ids=eos_token_ids,
        embedding_factor=embedding_factor,
        final_norm_factor=final_norm_factor,
    )


def _layer(config: Mapping[str, Any], optional: Mapping[str, Any], family: Family) -> LayerSpec:
    heads = config["num_attention_heads"]
    head_dim = optional["head_dim"] or config["hidden_size"] // heads
    biased = family.attention_biases
    if biased is None:
        biased = ATTENTION_MODULES if optional["attention_bias"] else ()
    if optional["mlp_bias"]:
        biased += MLP_MODULES
    return LayerSpec(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=optional["num_key_value_heads"] or heads,
        head_dim=head_dim,
        norm_eps=optional["rms_norm_eps"] / optional.get("residual_multiplier", 1.0) ** 2,
        norms=family.norms,
        attention_scale=optional.get("attention_multiplier", head_dim**-0.5),
        query_key_norm=family.query_key_norm,
        rotary_dim=head_dim,
        window=None,
        biased=frozenset(biased),
    )


def _has_rope(optional: Mapping[str, Any], num_layers: int) -> list[bool]:
    """Of each layer. `no_rope_layers` has 0 where one turns nothing, 1 where it does."""
    listed = optional.get("no_rope_layers")
    if listed is not None:
        if len(listed) < num_layers:
            raise ModelLoadError(f"no_rope_layers names {len(listed)} of {num_layers} layers")
        return [bool(turns) for turns in listed[:num_layers]]
    interval = optional.get("no_rope_layer_interval", num_layers + 1)
    return [index % interval != 0 for index in range(1, num_layers + 1)]


def _windows(optional: Mapping[str, Any], turns: list[bool]) -> list[int | None]:
    """Of each layer, whichever way its family says which ones have one: by `layer_types`, from
    layer `max_window_layers` on, where there is no rotary embedding, or all."""
    window, num_layers = optional["sliding_window"], len(turns)
    if window is None or not optional["use_sliding_window"]:
        return [None] * num_layers
    types = optional.get("layer_types")
    if types is not None:
        if len(types) < num_layers or not {*types} <= {"sliding_attention", "full_attention"}:
            raise ModelLoadError(
                f"layer_types {types} does not say for each of {num_layers} layers whether it is"
                " 'sliding_attention' or 'full_attention'"
            )
        has_one = [each == "sliding_attention" for each in types[:num_layers]]
    elif "max_window_layers" in optional:
        has_one = [index >= optional["max_window_layers"] for index in range(num_layers)]
    elif "no_rope_layers" in optional:
        has_one = [not turned for turned in turns]
    else:
        has_one = [True] * num_layers
    return [window if has else None for has in has_one]


def _factors(optional: Mapping[str, Any]) -> tuple[float, float]:
    """(of the embedding, of the final norm) for models whose layers add `residual_multiplier` times
    what they compute.

    The residual stream is kept divided by that, which RMS norms do not see if their epsilon is
    divided by its square; so each layer stays as Llama's, and its adapters as they are. The logits
    are divided in the final norm, where a tied head's larger weights are made up for too.
    """
    embedding: float = optional.get("embedding_multiplier", 1.0)
    embedding /= optional.get("residual_multiplier", 1.0)
    logits: float = optional.get("logits_scaling", 1.0)
    return embedding, 1.0 / (logits * (embedding if optional["tie_word_embeddings"] else 1.0))


def _rope_parameters(optional: Mapping[str, Any]) -> dict[str, Any]:
    """transformers >= 5 writes `rope_parameters`; before, `rope_theta` beside `rope_scaling`.
    Raises ModelLoadError where they do not say what to compute."""
    found = optional["rope_parameters"] or optional["rope_scaling"] or {}
    if not isinstance(found, dict):
        raise ModelLoadError(f"rope_scaling {found!r} is no object with a rope_type")
    rope = {"rope_theta": optional["rope_theta"], **found}
    kind = rope.setdefault("rope_type", rope.get("type"))
    scaling = sorted(found.keys() - {"rope_type", "type", *_OF_ANY_ROPE})
    if kind is None and scaling:
        raise ModelLoadError(
            f"rope_scaling has {', '.join(scaling)} and no rope_type; say which kind of scaling it"
            " is: 'linear', 'dynamic', 'llama3' or 'yarn'"
        )
    rope["rope_type"] = kind or "default"
    _check_rope(rope)
    return rope


def _check_rope(rope: Mapping[str, Any]) -> None:
    """Raises ModelLoadError unless it has the numbers that its kind asks for."""
    kind = rope["rope_type"]
    for name in ("rope_theta", *ROPE_KEYS.get(kind, ())):
        if name not in rope:
            raise ModelLoadError(f"rope_scaling of rope_type {kind!r} lacks {name!r}")
        if not isinstance(rope[name], int | float) or not 0 < rope[name] < math.inf:
            raise ModelLoadError(f"{name} {rope[name]!r} of the rotary embedding must be above 0")
