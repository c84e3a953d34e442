"""The bodies of /v1/messages and /v1/messages/count_tokens, in the shapes of Anthropic's Messages
API: text and tools. Fields that the API gains are ignored by name, so that newer clients connect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from tenora_platform.inference.bounds import (
    PARTS_MAX,
    STOP_STRINGS_MAX,
    TOOLS_MAX,
    at_most,
    check_messages,
)
from tenora_platform.inference.given import Given, QuickList
from tenora_platform.inference.schemas import COUNT_MAX

MODEL = Annotated[str, Field(min_length=1, max_length=256)]


class ResultBlock(Given):
    """A piece of what a tool answered. Only text is supported; others are refused by name."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str | None = None


class Block(Given):
    """A piece of a message: `text`, `tool_use` or `tool_result`. Thinking of earlier answers is
    left out; others are refused by name."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | QuickList[ResultBlock] | None = None
    is_error: bool = False


class Message(Given):
    """One turn."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["user", "assistant", "system"]
    content: str | QuickList[Block]


class ToolDefinition(Given):
    """A tool of the client's. Tools that a server would run have a `type` of their own and no
    `input_schema`."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    type: str = "custom"
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool = False


class ToolPick(Given):
    """Whether a tool must be called, and which."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class RequestMetadata(Given):
    """`user_id` keeps a user at one version of a weighted alias."""

    model_config = ConfigDict(extra="ignore")

    user_id: str | None = Field(default=None, max_length=512)


class OutputFormat(Given):
    """What the text has to follow."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Given):
    """`effort` has no effect."""

    model_config = ConfigDict(extra="ignore")

    format: OutputFormat | None = None


def _bounded(value: Any) -> Any:
    """MESSAGES_MAX messages, PARTS_MAX parts in all, those within tools' answers too."""
    parts = 0
    for message in check_messages(value) if isinstance(value, list) else ():
        blocks = message.get("content") if isinstance(message, dict) else None
        for block in blocks if isinstance(blocks, list) else ():
            inner = block.get("content") if isinstance(block, dict) else None
            parts += 1 + (len(inner) if isinstance(inner, list) else 0)
    if parts > PARTS_MAX:
        raise PydanticCustomError(
            "too_long",
            "has {count} content blocks in all; at most {most} are allowed",
            {"count": parts, "most": PARTS_MAX},
        )
    return value


class CountRequest(Given):
    """POST /v1/messages/count_tokens: what a request's prompt consists of."""

    model_config = ConfigDict(extra="allow")

    model: MODEL
    messages: Annotated[QuickList[Message], Field(min_length=1), BeforeValidator(_bounded)]
    system: Annotated[str | QuickList[ResultBlock] | None, at_most(PARTS_MAX)] = None
    tools: Annotated[QuickList[ToolDefinition] | None, at_most(TOOLS_MAX)] = None
    tool_choice: ToolPick | None = None
    thinking: dict[str, Any] | None = None  # no model here thinks apart from its answer
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: Annotated[list[Any] | None, at_most(0)] = None
    cache_control: Any = None  # every prefix is cached
    context_management: Any = None  # nothing is cleared from a conversation


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=COUNT_MAX)
    stop_sequences: Annotated[list[str] | None, at_most(STOP_STRINGS_MAX)] = None
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=COUNT_MAX)
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: None = None
    inference_geo: Any = None
    speed: Any = None


class TextBlock(BaseModel):
    type: Literal["text"] = "text"
    text: str
    citations: None = None


class ToolUseBlock(BaseModel):
    """A call; its answer is a `tool_result` with this id."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(BaseModel):
    """As the engine metered it. `input_tokens` are those that no cache held."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    service_tier: Literal["standard"] = "standard"


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class AnthropicMessage(BaseModel):
    """An answer; within a stream's first event it has neither content nor a reason."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock | ToolUseBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(BaseModel):
    input_tokens: int
