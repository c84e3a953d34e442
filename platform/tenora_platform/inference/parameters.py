"""What a body's fields mean: sampling for the engine, stop strings for the text, and how much of
the context is left. Knows neither tenants nor streams."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tenora_engine.config import ModelInfo
from tenora_engine.errors import ContextLengthError
from tenora_engine.printable import brief
from tenora_engine.request import SamplingParams
from tenora_engine.text.processor import TextProcessor
from tenora_engine.text.stop_patterns import PatternError, StopPattern
from tenora_engine.token_ids import are_token_ids, not_in_vocabulary
from tenora_platform.errors import BadRequestError
from tenora_platform.inference.bounds import PROMPTS_MAX
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.response_formats import grammar_of
from tenora_platform.inference.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingFields,
    TruncationSide,
)
from tenora_platform.inference.tools import ToolUse

STOP_LENGTH_MAX = 256
CHOICES_MAX = 128
WRONG_SHOWN_MAX = 10
"""Keys of logit_bias that an error names, if they are wrong."""
COMPLETION_TOKENS_DEFAULT = 16  # OpenAI's default of /v1/completions

Prompts = str | list[str] | list[int] | list[list[int]]
BadWords = tuple[tuple[int, ...], ...]
"""Token ids of each word that must not come."""


@dataclass(frozen=True)
class Generation:
    """How to generate for one prompt, complete: sampling, and how its tokens become text."""

    sampling: SamplingParams
    stop: tuple[str, ...]
    include_stop: bool  # whether what stopped it, a string or a token, is part of the text
    skip_special: bool
    tools: ToolUse | None = None  # that the answer may call
    offsets: bool = False  # whether it is told where in the text each token begins
    scores_end: bool = False  # whether logprobs have the token that ended it, too
    is_capped: bool = False  # more tokens were asked for than the context has room for
    stop_patterns: tuple[StopPattern, ...] = ()
    cache_salt: str = ""

    @property
    def ends_by_text(self) -> bool:
        """Whether its text may end before its tokens do."""
        return bool(self.stop or self.stop_patterns)


def chat_generation(
    body: ChatCompletionRequest, model: ModelInfo, prompt_tokens: int, bad_words: BadWords
) -> Generation:
    """Without a maximum, or with one that is larger, as much as the context still holds."""
    if body.top_logprobs is not None and not body.logprobs:
        raise _invalid("top_logprobs", "top_logprobs needs logprobs: true.")
    _check_best_of(body)
    if sequences_of(body) > body.n and not body.use_beam_search:
        raise unsupported("best_of", "best_of needs use_beam_search: true in a chat completion")
    max_tokens, is_capped = _fit(wanted_tokens(body), prompt_tokens, model, "messages")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    made = _generation(body, model, max_tokens, logprobs, bad_words)
    return dataclasses.replace(made, is_capped=is_capped)


def completion_generation(
    body: CompletionRequest, model: ModelInfo, prompt_tokens: int, bad_words: BadWords
) -> Generation:
    if body.suffix:
        raise unsupported("suffix")
    _check_best_of(body)
    sequences = sequences_of(body)
    if sequences > body.n and body.stream:
        raise _invalid(
            "best_of",
            "best_of larger than n cannot be streamed, because the best choices are known "
            "only at the end. Set stream to false.",
        )
    max_tokens, is_capped = _fit(wanted_tokens(body), prompt_tokens, model, "prompt")
    is_ranked = sequences > body.n and not body.use_beam_search
    logprobs = 0 if body.logprobs is None and is_ranked else body.logprobs
    made = _generation(body, model, max_tokens, logprobs, bad_words)
    scored = 0 if body.logprobs is None and not max_tokens else body.logprobs
    asked = [body.prompt_logprobs, scored if body.echo or not max_tokens else None]
    sampling = msgspec.structs.replace(
        made.sampling,
        n=sequences,
        prompt_logprobs=max((each for each in asked if each is not None), default=None),
    )
    return dataclasses.replace(made, sampling=sampling, is_capped=is_capped)


def _check_best_of(body: SamplingFields) -> None:
    if body.best_of is not None and body.best_of < body.n:
        raise _invalid("best_of", f"best_of must be at least n ({body.n}), not {body.best_of}.")


def sequences_of(body: SamplingFields) -> int:
    """How many are generated for each prompt; `n` of them are shown."""
    return body.best_of or body.n


def wanted_tokens(body: ChatCompletionRequest | CompletionRequest) -> int | None:
    """The most tokens asked for; None leaves it to the context."""
    if isinstance(body, CompletionRequest):
        return COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    return body.max_completion_tokens or body.max_tokens


def truncated(
    token_ids: list[int], body: ChatCompletionRequest | CompletionRequest, model: ModelInfo
) -> list[int]:
    """What `truncate_prompt_tokens` keeps of the prompt; -1: what the context has room for."""
    return kept_tokens(token_ids, body, wanted_tokens(body) or 1, model)


class Truncating(Protocol):
    """What bodies say of prompts that are too long."""

    @property
    def truncate_prompt_tokens(self) -> int | None: ...

    @property
    def truncation_side(self) -> TruncationSide: ...


def kept_tokens(
    token_ids: list[int], body: Truncating, output_tokens: int, model: ModelInfo
) -> list[int]:
    """The last tokens, or those before what is cut off on the right: at most as many as the body
    says, all where it says nothing, for -1 what leaves room for the output."""
    most = body.truncate_prompt_tokens
    if most is None:
        return token_ids
    if most == 0 or most > model.context_tokens:
        raise _invalid(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens must be -1 or from 1 to {model.context_tokens} (the "
            f"model's maximum context length), not {most}.",
        )
    if most == -1:
        room = model.context_tokens - output_tokens
        most = room if room > 0 else model.context_tokens - 1  # the output is capped, too
    return token_ids[:most] if body.truncation_side == "right" else token_ids[-most:]


def bad_words(body: SamplingFields, text: TextProcessor) -> BadWords:
    """Each word as the tokens that write it, at the beginning of a text and within one (behind a
    space), where that is as many others."""
    found: list[tuple[int, ...]] = []
    for word in body.bad_words or ():
        bare = word.lstrip()
        if not bare or len(word) > STOP_LENGTH_MAX:
            raise _invalid(
                "bad_words",
                f"Each entry of bad_words must have 1 to {STOP_LENGTH_MAX} characters, at "
                "least one of them not a space.",
            )
        plain = tuple(text.encode(bare, add_special_tokens=False))
        within = tuple(text.encode(f" {bare}", add_special_tokens=False))
        found.append(plain)
        if len(within) == len(plain) and within[0] != plain[0]:
            found.append(within)
    return tuple(dict.fromkeys(found))


def _fit(
    wanted: int | None, prompt_tokens: int, model: ModelInfo, prompt_param: str
) -> tuple[int, bool]:
    """How many tokens may come, and whether that is less than was wanted. Raises ContextLengthError
    where the prompt leaves room for none."""
    room = model.context_tokens - prompt_tokens
    if room < (1 if wanted is None else min(wanted, 1)):
        raise ContextLengthError.of(
            model.context_tokens, prompt_tokens, wanted, prompt_param, param=prompt_param
        )
    if wanted is None or wanted > room:
        return room, wanted is not None
    return wanted, False


def _generation(
    body: SamplingFields,
    model: ModelInfo,
    max_tokens: int,
    logprobs: int | None,
    words: BadWords,
) -> Generation:
    if body.stream_options is not None and not body.stream:
        raise _invalid("stream_options", "stream_options can only be set when stream is true.")
    if body.prompt_logprobs is not None and body.stream:
        raise _invalid(
            "prompt_logprobs", "prompt_logprobs cannot be streamed. Set stream to false."
        )
    if body.min_tokens > max_tokens:
        raise _invalid(
            "min_tokens",
            "min_tokens must be at most the maximum number of completion tokens "
            f"({max_tokens}), not {body.min_tokens}.",
        )
    top_p = _or(body.top_p, 1.0)
    stop_ids = tuple(dict.fromkeys(body.stop_token_ids or ()))
    allowed = body.allowed_token_ids
    check_token_ids(stop_ids, model, "stop_token_ids")
    check_token_ids(allowed or (), model, "allowed_token_ids")
    named = _named(body, model, logprobs)
    return Generation(
        sampling=SamplingParams(
            temperature=_or(body.temperature, 1.0) if top_p else 0.0,
            top_p=top_p or 1.0,
            top_k=max(0, body.top_k or 0),  # -1 is vLLM's "off"
            min_p=_or(body.min_p, 0.0),
            seed=body.seed,
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            logit_bias=_logit_bias(body.logit_bias, model),
            stop_token_ids=stop_ids,
            bad_words=words,
            allowed_token_ids=None if allowed is None else tuple(dict.fromkeys(allowed)),
            min_tokens=body.min_tokens,
            max_tokens=max_tokens,
            ignore_eos=body.ignore_eos,
            n=body.n,
            logprobs=0 if named else logprobs,
            logprob_token_ids=named,
            prompt_logprobs=body.prompt_logprobs,
            grammar=grammar_of(body),
        ),
        stop=_stop_strings(body.stop),
        include_stop=body.include_stop_str_in_output,
        scores_end=body.return_token_ids or isinstance(body, CompletionRequest),
        skip_special=body.skip_special_tokens,
        stop_patterns=_stop_patterns(body.stop_regex),
        cache_salt=body.cache_salt or "",
    )


def _named(body: SamplingFields, model: ModelInfo, logprobs: int | None) -> tuple[int, ...]:
    """The tokens whose log probabilities are told in the place of the likeliest, however many of
    these were asked for."""
    param, named = "logprob_token_ids", tuple(dict.fromkeys(body.logprob_token_ids or ()))
    if named and logprobs is None:
        raise _invalid(param, f"{param} needs logprobs.")
    check_token_ids(named, model, param)
    return named


def _stop_patterns(given: str | list[str] | None) -> tuple[StopPattern, ...]:
    patterns = [given] if isinstance(given, str) else given or []
    try:
        return tuple(StopPattern(pattern) for pattern in dict.fromkeys(patterns))
    except PatternError as error:
        raise _invalid(
            "stop_regex", f"A pattern of stop_regex cannot be used: {brief(error)}."
        ) from error


def _invalid(param: str, message: str) -> BadRequestError:
    return BadRequestError(message, param=param, code="invalid_value")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else list(stop or ())
    if any(not text or len(text) > STOP_LENGTH_MAX for text in texts):
        raise BadRequestError(
            f"Each stop string must have 1 to {STOP_LENGTH_MAX} characters.",
            param="stop",
            code="invalid_value",
        )
    return tuple(dict.fromkeys(texts))


def _logit_bias(bias: dict[str, float] | None, model: ModelInfo) -> dict[int, float]:
    if bias is None:
        return {}
    wrong = [key for key in bias if not key.isascii() or not key.isdigit() or len(key) > 9]
    if wrong:
        shown = ", ".join(repr(key[:40]) for key in wrong[:WRONG_SHOWN_MAX])
        more = len(wrong) - WRONG_SHOWN_MAX
        shown += f" and {more} more" if more > 0 else ""
        raise _invalid("logit_bias", f"The keys of logit_bias must be token ids, not {shown}.")
    out: dict[int, float] = {}
    for key, value in bias.items():
        if not math.isfinite(value) or abs(value) > 100:
            raise _invalid(
                "logit_bias", f"The values of logit_bias must be between -100 and 100, not {value}."
            )
        out[int(key)] = value
    check_token_ids(out, model, "logit_bias")
    return out


def check_token_ids(ids: Collection[int], model: ModelInfo, param: str) -> None:
    if not are_token_ids(ids, model.vocab):
        raise _invalid(param, not_in_vocabulary(ids, model.vocab, param) + ".")


def completion_prompts(body: CompletionRequest, model: ModelInfo) -> list[str | list[int]]:
    """The prompts, each a text or token ids. Raises BadRequestError when there are too many, one is
    empty or an id does not exist."""
    prompts = given_prompts(body.prompt, model, "prompt")
    if len(prompts) * sequences_of(body) > CHOICES_MAX:
        raise BadRequestError(
            f"The number of prompts times n (or best_of) can be at most {CHOICES_MAX}, not "
            f"{len(prompts) * sequences_of(body)}.",
            param="prompt",
            code="invalid_value",
        )
    return prompts


def given_prompts(
    prompt: Prompts, model: ModelInfo, param: str, most: int = PROMPTS_MAX
) -> list[str | list[int]]:
    """The prompts of a field, each a text or token ids. Raises BadRequestError as
    `completion_prompts`."""
    prompts = _as_prompts(prompt)
    if not prompts or len(prompts) > most:
        raise BadRequestError(
            f"{param} must contain 1 to {most} entries, not {len(prompts)}.",
            param=param,
            code="invalid_value",
        )
    for one in prompts:
        if not one:
            raise BadRequestError(
                f"{param} contains an empty entry; remove it.", param=param, code="invalid_value"
            )
        if not isinstance(one, str):
            check_token_ids(one, model, param)
    return prompts


def _as_prompts(prompt: Prompts) -> list[str | list[int]]:
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
