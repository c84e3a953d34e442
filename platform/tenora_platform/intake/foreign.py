"""Tensors that adapters really hold and that cannot be served: each kind by its name, with what a
person can do about it. Knows what trainers write, not the base model."""

from __future__ import annotations

import re

from tenora_engine.adapters.peft_format import parse_tensor_name
from tenora_platform.intake.report import Problem

_NO_NEW_TOKENS = (
    "all tenants share the base model's tokens; train without adding tokens, and without saving "
    "the embedding layers (save_pretrained(..., save_embedding_layers=False))"
)
_WITHOUT_BASE = (
    "save only the adapter, with PeftModel.save_pretrained, which leaves the base model out"
)

_KINDS: tuple[tuple[str, str, str], ...] = (
    (
        r"lora_magnitude_vector",
        "unsupported_dora",
        "belongs to DoRA, which rescales the output of the base model's own weights; train with "
        "use_dora=False",
    ),
    (
        r"modules_to_save",
        "unsupported_modules_to_save",
        "is a whole trained module, not LoRA; train without modules_to_save",
    ),
    (
        r"trainable_tokens|token_adapter",
        "unsupported_embeddings",
        f"contains trained tokens; {_NO_NEW_TOKENS}",
    ),
    (
        r"lora_embedding_|embed_tokens\.lora_|embed_tokens\.weight\.lora_",
        "unsupported_embeddings",
        "is LoRA on the embedding table, which is not supported; train without embed_tokens among "
        "target_modules",
    ),
    (
        r"embed_tokens|(\A|\.)wte\.",
        "unsupported_embeddings",
        f"is a whole embedding table, which PEFT saves if tokens were added; {_NO_NEW_TOKENS}",
    ),
    (
        r"lm_head.*lora_",
        "unsupported_lm_head",
        "is LoRA on the output head, which is not supported; train without lm_head among "
        "target_modules",
    ),
    (
        r"lm_head",
        "unsupported_lm_head",
        f"is a whole output head, which PEFT saves if tokens were added; {_NO_NEW_TOKENS}",
    ),
    (
        r"\.experts\.|block_sparse_moe",
        "unsupported_target_parameters",
        "belongs to a mixture of experts, but this base model has no experts",
    ),
    (
        r"hada_w|lokr_w|(\A|\.)ia3_|prompt_embeddings|prompt_encoder|lora_E|ranknum|vera_lambda"
        r"|oft_|boft_|hra_u|randlora|delora|(\A|\.)lora_(up|down)\.",
        "unsupported_peft_type",
        "belongs to a method other than PEFT's LoRA; train with peft.LoraConfig",
    ),
    (
        r"\.lora_[ab](\Z|\.)",
        "not_peft_names",
        "has a name from MLX or torchtune: for MLX, push the folder with `tenora adapter push`, "
        "which converts it; for torchtune, upload its adapter_model.safetensors",
    ),
    (
        r"absmax|quant_map|quant_state|\.SCB\Z|weight_format|\.(qweight|qzeros|scales|g_idx)\Z",
        "base_weights",
        f"is part of a quantised base model; {_WITHOUT_BASE}",
    ),
    (
        r"\.bias\Z",
        "unsupported_bias",
        "is a trained bias; train with bias='none' and lora_bias=False",
    ),
    (
        r"base_layer\.|norm\.weight\Z|_proj\.weight\Z",
        "base_weights",
        f"is a weight of the base model itself; {_WITHOUT_BASE}",
    ),
)
_COMPILED = tuple((re.compile(pattern), code, message) for pattern, code, message in _KINDS)


def foreign_kind(name: str) -> Problem | None:
    """What is wrong with a tensor of this name, where its kind is known; None for LoRA matrices and
    for names that nobody knows."""
    if parse_tensor_name(name) is not None:
        return None
    for pattern, code, message in _COMPILED:
        if pattern.search(name):
            return Problem(field=name, code=code, message=f"this tensor {message}")
    return None
