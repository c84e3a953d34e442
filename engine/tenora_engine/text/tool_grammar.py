"""Grammars of answers that call tools: what a model must write where a call is forced, and where
its calls are held to the tools' schemas. They are in Lark's form, for guided decoding."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tenora_engine.grammar.limits import ITEM_SEPARATOR, KEY_SEPARATOR
from tenora_engine.text.tool_formats import ToolFormat


class CallableTool(msgspec.Struct, frozen=True):
    """A function's name and the JSON schema of its arguments. What the library cannot hold them to
    is refused where the tool is `strict`, and left to the model elsewhere."""

    name: str
    schema: dict[str, Any] | None = None
    strict: bool = False


def forced_calls(form: ToolFormat, tools: Sequence[CallableTool], parallel: bool) -> str:
    """An answer is a call of one of `tools` in the form, or several of them where `parallel`, and
    nothing else."""
    if form.bare:
        start = _several("call", f"{form.separator} ", parallel)
    else:
        marked = f"{_text(form.opening)} {_opened(form, parallel)}"
        start = _several(marked, "\n", parallel and not form.listed)
    return "\n".join([f"start: {start}", *_rules(form, tools)])


def calls_in_text(form: ToolFormat, tools: Sequence[CallableTool], parallel: bool) -> str:
    """An answer is what the model likes, up to where it begins a call: that is one of `tools`. It
    ends with the call where calls are not `parallel`."""
    rules = _rules(form, tools)
    if form.bare:  # no text begins as a call does
        start = f"start: {_several('call', f'{form.separator} ', parallel)} | PROSE?"
        return "\n".join([start, r"PROSE: /[^ \t\r\n{](.|\n)*/", *rules])
    marked = f"trigger {_opened(form, parallel)}"
    start = f"start: ({marked})* TEXT" if parallel else f"start: {marked} | TEXT"
    trigger = f"trigger[lazy]: TEXT {_text(form.opening)}"
    return "\n".join([start, trigger, r"TEXT: /(.|\n)*/", *rules])


def calls_or_json(
    form: ToolFormat, tools: Sequence[CallableTool], parallel: bool, schema: dict[str, Any]
) -> str:
    """An answer is JSON of this schema, without spaces between its tokens, or calls of `tools`. Not
    for a bare form: the library's lexer cannot tell the two apart at the first brace."""
    assert not form.bare
    start, *rules = forced_calls(form, tools, parallel).split("\n")
    options = {
        "whitespace_flexible": False,
        "lenient": False,
        "key_separator": KEY_SEPARATOR,
        "item_separator": ITEM_SEPARATOR,
    }
    answer = f"answer: %json {json.dumps({**schema, 'x-guidance': options})}"
    return "\n".join([f"{start} | answer", answer, *rules])


_RULE = re.compile(r'call_\d+: ("(?:[^"\\]|\\.)*") \Z')


def tool_before(text: str) -> str | None:
    """The name of the tool whose schema comes behind this beginning of a grammar; None where it is
    no tool's."""
    found = _RULE.match(text, text.rfind("\n") + 1)
    if found is None:
        return None
    name, _ = json.JSONDecoder().raw_decode(json.loads(found[1]), len('{"name": '))
    return str(name)


def _opened(form: ToolFormat, parallel: bool) -> str:
    """What follows a mark, as models of the form are trained to write it."""
    if not form.listed:
        return f"{_text(chr(10))} call {_text(chr(10) + form.closing)}"
    begin = "[" if form.closing else " ["
    return f"{_text(begin)} {_several('call', ', ', parallel)} {_text(']' + form.closing)}"


def _several(one: str, between: str, parallel: bool) -> str:
    return f"{one} ({_text(between)} {one})*" if parallel else one


def _rules(form: ToolFormat, tools: Sequence[CallableTool]) -> list[str]:
    rules = ["call: " + " | ".join(f"call_{place}" for place in range(len(tools)))]
    for place, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{form.arguments}": '
        rules.append(f"call_{place}: {_text(head)} %json {_schema(tool)} {_text('}')}")
    return rules


def _schema(tool: CallableTool) -> str:
    """An object in any case; its own definitions stay where they are, at its root."""
    schema = {"type": "object", **(tool.schema or {})}
    options = {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "lenient": not tool.strict,
    }
    return json.dumps({**schema, "x-guidance": options})


def _text(text: str) -> str:
    return json.dumps(text)
