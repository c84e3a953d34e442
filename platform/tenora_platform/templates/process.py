"""The task of rendering a chat template, as it is done in a process apart (`apart.process`)."""

from __future__ import annotations

import marshal
from typing import Any

import msgspec

from tenora_engine.errors import EngineError
from tenora_engine.printable import brief
from tenora_engine.text.chat_template import ChatTemplate


class Question(msgspec.Struct, frozen=True):
    """What is rendered. `is_open`: up to the end of the last message, which is left open.
    `compiled` is what an Answer said of the same source."""

    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]]
    arguments: dict[str, Any]
    is_open: bool
    characters_most: int
    compiled: bytes | None = None


class Answer(msgspec.Struct, frozen=True):
    """The text, or why there is none; and the compiled source, unless the Question had it."""

    text: str | None = None
    error: str | None = None
    compiled: bytes | None = None


def rendered(question: Question) -> Answer:
    """Renders in this process."""
    try:
        known = None if question.compiled is None else marshal.loads(question.compiled)
        template = ChatTemplate(question.source, question.special_tokens, known)
        compiled = marshal.dumps(template.code) if known is None else None
        render = template.render_open if question.is_open else template.render
        text = render(question.messages, question.characters_most, **question.arguments)
        return Answer(text=text, compiled=compiled)
    except EngineError as error:
        return Answer(error=brief(error))
    except (MemoryError, RecursionError) as error:
        return Answer(
            error=(f"it needs more memory or recursion than allowed ({type(error).__name__})")
        )


def answer(question: bytes) -> bytes:
    """The Answer to a Question, each in msgpack."""
    made = rendered(msgspec.msgpack.decode(question, type=Question))
    if made.text is not None:  # a template can write half of a character
        text = made.text.encode(errors="replace").decode()
        made = msgspec.structs.replace(made, text=text)
    return msgspec.msgpack.encode(made)


def warm_up() -> None:
    """One rendering of everything, so that all is imported before no file can be read."""
    source = (
        "{% for m in messages %}{{ m.content | trim | tojson }}{{ strftime_now('%Y') }}{% endfor %}"
    )
    for each in (source, "{{", "{{ raise_exception('no') }}"):
        rendered(
            Question(each, {}, [{"role": "user", "content": "Hi"}], {"tools": None}, False, 99)
        )
    last = Question("{{ messages[0].content }}", {}, [{"content": "Hi"}], {}, True, 99)
    answer(msgspec.msgpack.encode(last))
