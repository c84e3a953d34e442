"""How families of models write that they call tools: each form is data, and which one a model has
is read off its chat template. Knows text only."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

ToolFormatName = Literal["hermes", "smollm", "llama3", "mistral"]


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One form. A call is a JSON object with `name` and `arguments`, behind `opening`."""

    name: ToolFormatName
    opening: str
    closing: str = ""  # may follow each; nothing where the JSON ends it
    separator: str = ""  # may stand between two
    bare: bool = False  # an answer that begins with the object needs no opening
    listed: bool = False  # all calls of an answer are one list
    arguments: Literal["arguments", "parameters"] = "arguments"  # what the model writes
    id_length: int | None = None  # letters and digits, where the template takes no other ids

    @property
    def marks(self) -> tuple[str, ...]:
        """What must reach the parser, also where a model has control tokens for it."""
        return tuple(mark for mark in (self.opening, self.closing) if mark)


HERMES = ToolFormat(name="hermes", opening="<tool_call>", closing="</tool_call>")
"""Hermes, Qwen 2.5 and 3, SmolLM3, and every model whose template knows nothing of tools."""

FORMATS: dict[str, ToolFormat] = {
    each.name: each
    for each in (
        HERMES,
        ToolFormat(name="smollm", opening="<tool_call>", closing="</tool_call>", listed=True),
        ToolFormat(
            name="llama3",
            opening="<|python_tag|>",
            separator=";",
            bare=True,
            arguments="parameters",
        ),
        ToolFormat(name="mistral", opening="[TOOL_CALLS]", listed=True, id_length=9),
    )
}

_TOOLS = re.compile(r"\btools\b")


def takes_tools(source: str) -> bool:
    """Whether a chat template does anything with `tools`."""
    return _TOOLS.search(source) is not None


def takes_tool_messages(source: str) -> bool:
    """Whether it does anything with calls in a history."""
    return "tool_calls" in source


def format_of(source: str, chosen: ToolFormatName | None = None) -> ToolFormat:
    """The form in which a model of this template calls tools; `chosen` is another's word for it. A
    template that takes no tools has them in `tool_prompt`'s words, which are Hermes'."""
    if not takes_tools(source):
        return HERMES
    if chosen is not None:
        return FORMATS[chosen]
    if "[TOOL_CALLS]" in source:
        return FORMATS["mistral"]
    if "<tool_call>[" in source:
        return FORMATS["smollm"]
    if "<tool_call>" not in source and ("<|python_tag|>" in source or '"parameters":' in source):
        return FORMATS["llama3"]
    return HERMES
