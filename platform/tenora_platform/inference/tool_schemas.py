"""Tools on the wire, in OpenAI's shapes: what a request offers and chooses, and the calls that an
answer makes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from tenora_platform.inference.given import Given


class FunctionTool(Given):
    """`parameters` is a JSON schema of an object. The model sees it; with `strict` the call must
    follow it."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")  # Claude Code's of MCP exceed 64
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(Given):
    """Functions only; other types are refused by name."""

    type: str
    function: FunctionTool | None = None
    custom: Any = None


class ChosenFunction(Given):
    name: str


class NamedTool(Given):
    """The one function that must be called."""

    type: Literal["function"] = "function"
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class FunctionMade(BaseModel):
    """`arguments` is JSON as the model wrote it; it may be invalid or incomplete."""

    name: str
    arguments: str


class ToolCallMade(BaseModel):
    """One tool call in an answer."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionMade


class FunctionDelta(BaseModel):
    """`name` comes first; concatenate the `arguments` of all deltas."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(BaseModel):
    """What this chunk adds to the call with this `index`. `id`, `type` and the name are sent
    once."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta
