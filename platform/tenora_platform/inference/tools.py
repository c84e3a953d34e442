"""What a body's tools mean: which the model is shown, how its calls are read, and what must be
called. Knows neither tenants nor streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenora_engine.text.tool_formats import ToolFormat
from tenora_engine.text.tool_parser import ToolParser
from tenora_platform.errors import BadRequestError
from tenora_platform.ids import new_ulid, random_text
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.schemas import ChatCompletionRequest
from tenora_platform.inference.tool_schemas import FunctionTool, NamedTool


@dataclass(frozen=True)
class ToolUse:
    """The tools of one request, complete."""

    form: ToolFormat
    functions: Sequence[FunctionTool]
    parallel: bool

    def parser(self) -> ToolParser:
        """For one choice."""
        names = {function.name for function in self.functions}
        return ToolParser(self.form, names, self.parallel)

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
        raise _invalid("tools", f"Two tools have the name {twice!r}.")
    choice = body.tool_choice or "auto"
    if not functions and choice not in ("auto", "none"):
        raise _invalid("tool_choice", "tool_choice needs tools to choose from.")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise _invalid(
            "tool_choice", f"tool_choice names {choice.function.name!r}, which is not in tools."
        )
    return [] if choice == "none" else functions


def for_template(functions: Sequence[FunctionTool]) -> list[dict[str, Any]] | None:
    """As chat templates take them; None for none."""
    tools = [
        {"type": "function", "function": each.model_dump(exclude_none=True, exclude={"strict"})}
        for each in functions
    ]
    return tools or None


def tool_use(body: ChatCompletionRequest, form: ToolFormat) -> ToolUse | None:
    """None where nothing may be called. Raises BadRequestError."""
    functions = offered(body)
    if body.tool_choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "a model cannot be made to call a tool")
    for place, function in enumerate(functions):
        if function.strict:
            where = f"tools[{place}].function.strict"
            raise unsupported(where, "a model cannot be held to the schema of a tool")
    return ToolUse(form, functions, body.parallel_tool_calls) if functions else None


def _function(kind: str, function: FunctionTool | None, where: str) -> FunctionTool:
    if kind != "function":
        raise unsupported(f"{where}.type", f"tools of type {kind[:40]!r} are not supported")
    if function is None:
        raise BadRequestError(
            f"{where}.function is missing.",
            param=f"{where}.function",
            code="missing_required_parameter",
        )
    return function


def _invalid(param: str, message: str) -> BadRequestError:
    return BadRequestError(message, param=param, code="invalid_value")
