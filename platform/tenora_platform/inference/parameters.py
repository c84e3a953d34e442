"""What a body's fields mean: sampling for the engine, stop strings for the text, and a clear
refusal of what this API does not do. Knows neither tenants nor streams."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tenora_engine.config import ModelInfo
from tenora_engine.request import SamplingParams
from tenora_platform.errors import BadRequestError
from tenora_platform.inference.schemas import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    SamplingFields,
    TextPart,
)

STOP_STRINGS_MAX = 4
STOP_LENGTH_MAX = 256
LOGIT_BIAS_MAX = 1024
PROMPTS_MAX = 128
CHOICES_MAX = 128
COMPLETION_TOKENS_DEFAULT = 16  # OpenAI's default of /v1/completions

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),  # says nothing without tools
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "store": (None, False),
    "response_format": (None, {"type": "text"}),
}
"""Values of OpenAI's fields that ask for nothing beyond what is done anyway."""


@dataclass(frozen=True)
class Generation:
    """How to generate for one prompt, complete: sampling, stop strings and the stop ids the text
    must not show."""

    sampling: SamplingParams
    stop: tuple[str, ...]
    hidden_stop_ids: frozenset[int]


def refuse_unsupported(body: ChatCompletionRequest) -> None:
    """Raises BadRequestError naming the first field that asks for what is not supported."""
    for name, neutral in _NEUTRAL.items():
        if getattr(body, name) not in neutral:
            raise unsupported(name)
    for number, message in enumerate(body.messages):
        if message.role == "tool":
            raise unsupported(f"messages[{number}].role", "the role 'tool' is not supported")
        for key, value in (message.model_extra or {}).items():
            if value not in (None, [], "") or key not in ("refusal", "tool_calls", "audio"):
                raise unsupported(f"messages[{number}].{key}")


def unsupported(param: str, why: str | None = None) -> BadRequestError:
    return BadRequestError(
        f"{why or f'{param} is not supported by this server'}; leave it out.",
        param=param,
        code="unsupported_parameter",
    )


def chat_messages(messages: list[ChatMessage]) -> list[dict[str, str]]:
    """Messages as a chat template takes them: plain texts. Raises BadRequestError for parts that
    are not text."""
    return [
        {
            # Templates know no "developer"; it is OpenAI's newer word for the system.
            "role": "system" if message.role == "developer" else message.role,
            "content": _content_text(message, number),
            **({"name": message.name} if message.name else {}),
        }
        for number, message in enumerate(messages)
    ]


def _content_text(message: ChatMessage, number: int) -> str:
    where = f"messages[{number}].content"
    if message.content is None:
        raise BadRequestError(
            f"{where} is missing.", param=where, code="missing_required_parameter"
        )
    if isinstance(message.content, str):
        return message.content
    return "".join(
        _part_text(part, f"{where}[{place}]") for place, part in enumerate(message.content)
    )


def _part_text(part: TextPart, where: str) -> str:
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "text":
        raise BadRequestError(
            f"{where}.text is missing.", param=f"{where}.text", code="missing_required_parameter"
        )
    raise unsupported(f"{where}.type", f"content of type {part.type[:40]!r} is not supported")


def chat_generation(
    body: ChatCompletionRequest, model: ModelInfo, prompt_tokens: int
) -> Generation:
    """Without a maximum, as much as the context still holds."""
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequestError(
            "top_logprobs needs logprobs to be true.", param="top_logprobs", code="invalid_value"
        )
    param = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
    wanted = body.max_completion_tokens or body.max_tokens
    max_tokens = _fit(wanted, prompt_tokens, model, param, "messages")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _generation(body, model, max_tokens, logprobs)


def completion_generation(
    body: CompletionRequest, model: ModelInfo, prompt_tokens: int
) -> Generation:
    if body.suffix:
        raise unsupported("suffix")
    if body.best_of not in (None, 1, body.n):
        raise unsupported("best_of")
    if body.echo and body.logprobs is not None:
        raise unsupported("logprobs", "logprobs of the prompt (echo with logprobs) are not made")
    wanted = COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    max_tokens = _fit(wanted, prompt_tokens, model, "max_tokens", "prompt")
    return _generation(body, model, max_tokens, body.logprobs)


def _fit(
    wanted: int | None, prompt_tokens: int, model: ModelInfo, param: str, prompt_param: str
) -> int:
    room = model.context_tokens - prompt_tokens
    if room < 1 or (wanted is not None and wanted > room):
        asked = "" if wanted is None else f" and {wanted} for the completion"
        raise BadRequestError(
            f"This model's context is {model.context_tokens} tokens, but {prompt_tokens} were "
            f"given in the {prompt_param}{asked}. Shorten one of them.",
            param=prompt_param if room < 1 else param,
            code="context_length_exceeded",
        )
    return room if wanted is None else wanted


def _generation(
    body: SamplingFields, model: ModelInfo, max_tokens: int, logprobs: int | None
) -> Generation:
    stop_ids = tuple(dict.fromkeys(body.stop_token_ids or ()))
    _check_token_ids(stop_ids, model, "stop_token_ids")
    hidden = set(stop_ids) if body.ignore_eos else {*stop_ids, *model.eos_token_ids}
    return Generation(
        sampling=SamplingParams(
            temperature=_or(body.temperature, 1.0),
            top_p=_or(body.top_p, 1.0),
            top_k=max(0, body.top_k or 0),  # -1 is vLLM's "off"
            min_p=_or(body.min_p, 0.0),
            seed=body.seed,
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            logit_bias=_logit_bias(body.logit_bias, model),
            stop_token_ids=stop_ids,
            max_tokens=max_tokens,
            ignore_eos=body.ignore_eos,
            n=body.n,
            logprobs=logprobs,
        ),
        stop=_stop_strings(body.stop),
        hidden_stop_ids=frozenset(hidden),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else list(stop or ())
    if len(texts) > STOP_STRINGS_MAX:
        raise BadRequestError(
            f"stop has {len(texts)} texts; at most {STOP_STRINGS_MAX} are allowed.",
            param="stop",
            code="invalid_value",
        )
    if any(not text or len(text) > STOP_LENGTH_MAX for text in texts):
        raise BadRequestError(
            f"Each text of stop must have 1 to {STOP_LENGTH_MAX} characters.",
            param="stop",
            code="invalid_value",
        )
    return tuple(dict.fromkeys(texts))


def _logit_bias(bias: dict[str, float] | None, model: ModelInfo) -> dict[int, float]:
    if bias is None:
        return {}
    if len(bias) > LOGIT_BIAS_MAX:
        raise BadRequestError(
            f"logit_bias has {len(bias)} entries; at most {LOGIT_BIAS_MAX} are allowed.",
            param="logit_bias",
            code="invalid_value",
        )
    out: dict[int, float] = {}
    for key, value in bias.items():
        if not key.isascii() or not key.isdigit() or len(key) > 9:
            raise BadRequestError(
                "The keys of logit_bias are token ids.", param="logit_bias", code="invalid_value"
            )
        if not math.isfinite(value) or abs(value) > 100:
            raise BadRequestError(
                "The values of logit_bias are from -100 to 100.",
                param="logit_bias",
                code="invalid_value",
            )
        out[int(key)] = value
    _check_token_ids(tuple(out), model, "logit_bias")
    return out


def _check_token_ids(ids: tuple[int, ...], model: ModelInfo, param: str) -> None:
    if any(not 0 <= token < model.vocab for token in ids):
        raise BadRequestError(
            f"{param} names a token id outside 0 to {model.vocab - 1}.",
            param=param,
            code="invalid_value",
        )


def completion_prompts(body: CompletionRequest, model: ModelInfo) -> list[str | list[int]]:
    """The prompts, each a text or token ids. Raises BadRequestError when there are too many, one is
    empty or an id does not exist."""
    prompts = _as_prompts(body.prompt)
    if not prompts or len(prompts) > PROMPTS_MAX or len(prompts) * body.n > CHOICES_MAX:
        raise BadRequestError(
            f"prompt must hold 1 to {PROMPTS_MAX} prompts, and prompts times n may be "
            f"{CHOICES_MAX} at most.",
            param="prompt",
            code="invalid_value",
        )
    for prompt in prompts:
        if not prompt:
            raise BadRequestError("A prompt is empty.", param="prompt", code="invalid_value")
        if not isinstance(prompt, str):
            _check_token_ids(tuple(prompt), model, "prompt")
    return prompts


def _as_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    prompts: list[str | list[int]] = []
    token_ids: list[int] = []
    for item in prompt:
        if isinstance(item, int):
            token_ids.append(item)
        else:
            prompts.append(item)
    return [token_ids] if token_ids else prompts
