"""How much of each list and mapping a body may hold. Looked at before its members are: a validator
that meets a million of them, each wrong, takes seconds, in which nobody else is served."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import (
    BeforeValidator,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from tenora_platform.schemas import too_many

MESSAGES_MAX = 4096
PARTS_MAX = 4096  # of all messages: parts of their contents and outputs, and calls of tools
STOP_STRINGS_MAX = 32
STOP_TOKENS_MAX = 64
STOP_PATTERNS_MAX = 4
NAMED_LOGPROBS_MAX = 128  # tokens whose log probabilities are wanted by name
BAD_WORDS_MAX = 64
ALLOWED_TOKENS_MAX = 4096
LOGIT_BIAS_MAX = 1024
CHOICES_GIVEN_MAX = 1024  # texts of which an answer is to be one
METADATA_MAX = 16
TEMPLATE_ARGUMENTS_MAX = 64
PROMPTS_MAX = 128  # each is generated for
INPUTS_MAX = 2048  # OpenAI's, of embeddings
ROLE_MAX = 64
TOOLS_MAX = 128


def at_most(most: int) -> BeforeValidator:
    """No more entries than that, in a list or a mapping."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > most:
            raise too_many(len(value), most)
        return value

    return BeforeValidator(check)


def token_list(most: int | None = None) -> BeforeValidator:
    """Token ids, no more than that. Pydantic takes `true` for 1, which here is a mistake."""

    def check(value: Any) -> Any:
        if isinstance(value, list):
            if most is not None and len(value) > most:
                raise too_many(len(value), most)
            _refuse_booleans(value)
        return value

    return BeforeValidator(check)


def prompts(most: int) -> WrapValidator:
    """No more than that; the token ids of one are bounded by the context."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        one = isinstance(value, list) and value and isinstance(value[0], int)
        if isinstance(value, list):
            if not one and len(value) > most:
                raise too_many(len(value), most)
            for each in (value, *value) if not one else (value,):
                if isinstance(each, list):
                    _refuse_booleans(each)
        try:
            return validate(value)
        except ValidationError as error:  # of each form that it might have been
            raise PydanticCustomError(
                "prompts",
                "must be a string, an array of strings, an array of token ids, or an array "
                "of arrays of token ids",
            ) from error

    return WrapValidator(check)


def biases(value: Any) -> Any:
    """LOGIT_BIAS_MAX numbers by token."""
    if isinstance(value, dict):
        if len(value) > LOGIT_BIAS_MAX:
            raise too_many(len(value), LOGIT_BIAS_MAX)
        _refuse_booleans(value.values())
    return value


def _refuse_booleans(values: Iterable[Any]) -> None:
    if bool in set(map(type, values)):
        raise PydanticCustomError("no_number", "must contain numbers, not true or false")


def check_messages(value: Any) -> Any:
    """MESSAGES_MAX of them, PARTS_MAX in all."""
    if not isinstance(value, list):
        return value
    if len(value) > MESSAGES_MAX:
        raise too_many(len(value), MESSAGES_MAX)
    parts = 0
    for message in value:
        if isinstance(message, dict):
            lists = map(message.get, ("content", "tool_calls", "output"))
            parts += sum(len(each) for each in lists if isinstance(each, list))
    if parts > PARTS_MAX:
        raise PydanticCustomError(
            "too_long",
            "has {count} content parts and tool calls in total; at most {most} are allowed",
            {"count": parts, "most": PARTS_MAX},
        )
    return value
