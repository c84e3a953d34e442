"""A conversation as chat templates take it: texts, tool calls with their arguments as objects, and
nothing of what clients leave in a history beside them. Knows no tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tenora_platform.errors import BadRequestError
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.schemas import ChatMessage, FunctionCall, TextPart
from tenora_platform.json_bodies import refuse_many_keys
from tenora_platform.texts import odd_in

_ROLES = {"developer": "system", "function": "tool"}
"""OpenAI's newer word for the system and its older one for a tool; templates know neither."""


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Raises BadRequestError for what is not text, or is missing."""
    return [_for_template(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _for_template(message: ChatMessage, where: str) -> dict[str, Any]:
    if message.audio not in (None, {}):
        raise unsupported(f"{where}.audio")
    calls = [
        {**(call.model_extra or {}), "type": call.type, "function": _function(call.function)}
        | ({"id": call.id} if call.id is not None else {})
        for call in message.tool_calls or ()
    ]
    if message.function_call is not None and not calls:
        calls = [{"type": "function", "function": _function(message.function_call)}]
    optional = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": calls,
        "reasoning_content": message.reasoning_content,
    }
    return {
        "role": _ROLES.get(message.role, message.role),
        "content": _content(message, where),
        **{key: value for key, value in optional.items() if value},
    }


def _function(call: FunctionCall) -> dict[str, Any]:
    """Templates write arguments out themselves; what a model wrote that is no object stays text."""
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        try:
            refuse_many_keys(arguments.encode(errors="replace"))
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError, BadRequestError):
            parsed = None
        if isinstance(parsed, dict) and odd_in(parsed) is None:
            arguments = parsed
    return {"name": call.name, "arguments": arguments}


def _content(message: ChatMessage, where: str) -> str:
    where = f"{where}.content"
    if message.content is None and message.role != "assistant":
        raise BadRequestError(
            f"{where} is missing.", param=where, code="missing_required_parameter"
        )
    if message.content is None:  # it called a tool, refused, or said nothing
        return message.refusal or ""
    if isinstance(message.content, str):
        return message.content
    return "".join(
        _part_text(part, f"{where}[{place}]") for place, part in enumerate(message.content)
    )


def _part_text(part: TextPart, where: str) -> str:
    if part.type not in ("text", "refusal"):
        raise unsupported(
            f"{where}.type", f"content of type {part.type[:40]!r} is not supported, only text"
        )
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        missing = f"{where}.{part.type}"
        raise BadRequestError(
            f"{missing} is missing.", param=missing, code="missing_required_parameter"
        )
    return text
