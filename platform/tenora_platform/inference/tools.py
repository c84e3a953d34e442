"""What a body's tools mean: which the model is shown, how its calls are read, and what must be
called. Knows neither tenants nor streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenora_engine.request import Grammar
from tenora_engine.text.processor import TextProcessor
from tenora_engine.text.tool_formats import ToolFormat
from tenora_engine.text.tool_grammar import CallableTool, calls_in_text, calls_or_json, forced_calls
from tenora_engine.text.tool_parser import ToolParser
from tenora_platform.errors import BadRequestError
from tenora_platform.ids import new_ulid, random_text
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.schemas import ChatCompletionRequest
from tenora_platform.inference.tool_schemas import FunctionTool, NamedTool


@dataclass(frozen=True)
class ToolUse:
    """The tools of one request, complete: those that may be called, and whether one must be."""

    form: ToolFormat
    functions: Sequence[FunctionTool]
    parallel: bool
    forced: bool

    def grammar(self, other: Grammar | None) -> Grammar | None:
        """What the answer has to be, where a call is forced or a tool strict, or where what is no
        call has to follow `other`, JSON. Raises BadRequestError where both cannot be."""
        tools = [CallableTool(each.name, each.parameters, each.strict) for each in self.functions]
        schema = _schema_of(other) if other is not None else None
        if other is not None and (schema is None or (self.form.bare and not self.forced)):
            raise unsupported(other.param, f"{other.param} cannot be combined with these tools")
        if self.forced:
            return Grammar("grammar", forced_calls(self.form, tools, self.parallel), "tools")
        if other is not None and schema is not None:
            text = calls_or_json(self.form, tools, self.parallel, schema)
            return Grammar("grammar", text, other.param)
        if any(each.strict for each in self.functions):
            return Grammar("grammar", calls_in_text(self.form, tools, self.parallel), "tools")
        return None

    def parser(self) -> ToolParser:
        """For one choice."""
        names = {function.name for function in self.functions}
        return ToolParser(self.form, names, self.parallel, self.forced)

    def new_id(self) -> str:
        """Of one call."""
        length = self.form.id_length
        return f"call_{new_ulid()}" if length is None else random_text(length)


def offered(body: ChatCompletionRequest) -> list[FunctionTool]:
    """The functions that the model may call; none where `tool_choice` is none. Raises
    BadRequestError for tools which are no functions, and for a choice that there is not."""
    functions = [
        _function(tool.type, tool.function, f"tools[{place}]")
        for place, tool in enumerate(body.tools or ())
    ]
    names = [function.name for function in functions]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise _invalid(
            "tools", f"tools contains two functions named {twice!r}; give each its own name."
        )
    choice = body.tool_choice or "auto"
    if not functions and choice not in ("auto", "none"):
        raise _invalid(
            "tool_choice", "tool_choice can only be set when tools has at least one function."
        )
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise _invalid(
            "tool_choice",
            f"tool_choice names {choice.function.name!r}, which is not one of the functions "
            "in tools.",
        )
    return [] if choice == "none" else functions


def for_template(functions: Sequence[FunctionTool]) -> list[dict[str, Any]] | None:
    """As chat templates take them; None for none."""
    tools = [
        {"type": "function", "function": each.model_dump(exclude_none=True, exclude={"strict"})}
        for each in functions
    ]
    return tools or None


def tool_use(body: ChatCompletionRequest, form: ToolFormat, text: TextProcessor) -> ToolUse | None:
    """None where nothing may be called. Raises BadRequestError."""
    functions, choice = offered(body), body.tool_choice
    if not functions:
        return None
    if isinstance(choice, NamedTool):
        chosen = [each for each in functions if each.name == choice.function.name]
        return ToolUse(form, chosen, parallel=False, forced=True)
    use = ToolUse(form, functions, body.parallel_tool_calls, forced=choice == "required")
    strict = next((place for place, each in enumerate(functions) if each.strict), None)
    if strict is not None and not use.forced and not form.bare and text.is_control(form.opening):
        raise unsupported(
            f"tools[{strict}].function.strict",
            "with this model, strict needs tool_choice 'required' or a named function",
        )
    return use


def _schema_of(grammar: Grammar) -> dict[str, Any] | None:
    """None where it is none of JSON objects."""
    if grammar.kind != "json_schema":
        return None
    try:
        schema = json.loads(grammar.text)
    except (ValueError, RecursionError):
        return None
    return schema if isinstance(schema, dict) else None


def _function(kind: str, function: FunctionTool | None, where: str) -> FunctionTool:
    if kind != "function":
        raise unsupported(
            f"{where}.type", f"tools of type {kind[:40]!r} are not supported, only 'function'"
        )
    if function is None:
        raise BadRequestError(
            f"{where}.function is missing.",
            param=f"{where}.function",
            code="missing_required_parameter",
        )
    return function


def _invalid(param: str, message: str) -> BadRequestError:
    return BadRequestError(message, param=param, code="invalid_value")
