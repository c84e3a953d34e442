"""Fields of OpenAI's and other engines' APIs that this one does not have: accepted where their
value asks for nothing beyond what is done anyway, else refused by name, as is any unknown field."""

from __future__ import annotations

from typing import Any

from tenora_platform.errors import BadRequestError
from tenora_platform.inference.schemas import SamplingFields

_EMPTY: tuple[Any, ...] = (None, "", [], {})
_OFF: tuple[Any, ...] = (None, False, 0)

OF_OPENAI: dict[str, tuple[Any, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "store": (None, False),
}
OF_OTHERS: dict[str, tuple[Any, ...]] = {
    # vLLM
    "add_special_tokens": (False,),  # chat: the template writes them
    "allowed_media_domains": _EMPTY,
    "detokenize": (True,),
    "documents": _EMPTY,
    "guided_decoding_backend": _EMPTY,
    "guided_whitespace_pattern": _EMPTY,
    "include_reasoning": (True,),
    "kv_transfer_params": _EMPTY,
    "logits_processors": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "priority": (0,),
    "spaces_between_special_tokens": (True,),
    "vllm_xargs": _EMPTY,
    # SGLang
    "json_schema": _EMPTY,
    "lora_path": _EMPTY,
    "no_stop_trim": (False,),
    "return_hidden_states": (False,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    # llama.cpp, text-generation-inference and their clients
    "cache_prompt": (True,),
    "do_sample": (True,),
    "dry_multiplier": _OFF,
    "grammar": _EMPTY,
    "mirostat": _OFF,
    "repeat_penalty": (1,),
    "tfs_z": (1,),
    "top_a": _OFF,
    "typical_p": (1,),
    "xtc_probability": _OFF,
}
"""The values which ask for nothing."""


def unsupported(param: str, why: str | None = None) -> BadRequestError:
    return BadRequestError(
        f"{why or f'{param} is not supported by this server'}; leave it out.",
        param=param,
        code="unsupported_parameter",
    )


def refuse_unsupported(body: SamplingFields) -> None:
    """Raises BadRequestError that names the first field which asks for what there is not, or which
    nobody knows."""
    for name, neutral in OF_OPENAI.items():
        if getattr(body, name, None) not in neutral:
            raise unsupported(name)
    for name, value in (body.model_extra or {}).items():
        if name not in OF_OTHERS:
            raise BadRequestError(
                f"Unknown parameter: {name[:100]}. Check the spelling, or leave it out.",
                param=name[:100],
                code="invalid_value",
            )
        if value not in OF_OTHERS[name]:
            raise unsupported(name)
