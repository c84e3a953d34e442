"""The intake check of a chat template: it has to render what chats are made of."""

from __future__ import annotations

from typing import Any

from tenora_engine.errors import InvalidRequestError
from tenora_platform.errors import BadRequestError
from tenora_platform.intake.report import Problem
from tenora_platform.templates.renderer import AdapterTemplate

TEMPLATE_BYTES_MAX = 64 * 1024
RENDERED_MAX = 2 * TEMPLATE_BYTES_MAX
"""Characters that a template may make of a short chat."""
_WORDS = ("tenora-first-words", "tenora-answer", "tenora-last-words")
_SAMPLES: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": _WORDS[0]}],
    [
        {"role": "user", "content": _WORDS[0]},
        {"role": "assistant", "content": _WORDS[1]},
        {"role": "user", "content": _WORDS[2]},
    ],
)


def template_text(data: bytes) -> str | None:
    """A template that was sent; None for none. Raises BadRequestError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequestError("chat_template is not valid UTF-8.", param="chat_template") from error
    if "\0" in text:
        raise BadRequestError("chat_template contains a NUL character.", param="chat_template")
    return text or None


def template_problem(template: AdapterTemplate) -> Problem | None:
    """Why the template cannot be used; None if it can. Blocks."""
    for messages in _SAMPLES:
        try:
            text = template.render(messages, RENDERED_MAX, add_generation_prompt=True, tools=None)
        except InvalidRequestError as error:
            return _problem(str(error))
        if messages[-1]["content"] not in text:
            return _problem("it leaves out the user's message")
    return None


def _problem(why: str) -> Problem:
    return Problem(
        field="chat_template",
        code="invalid_chat_template",
        message=f"a short chat could not be rendered: {why}; fix the template, or upload the "
        "adapter without chat_template to use the base model's",
    )
