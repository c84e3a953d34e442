"""The bodies of /v1/responses on the wire, in OpenAI's shapes: text and functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tenora_platform.inference.bounds import (
    METADATA_MAX,
    TEMPLATE_ARGUMENTS_MAX,
    TOOLS_MAX,
    at_most,
    check_messages,
)
from tenora_platform.inference.given import Given, QuickList
from tenora_platform.inference.schemas import (
    COUNT_MAX,
    Choosing,
    MetadataName,
    MetadataText,
    Role,
    ServiceTier,
    TemplateArguments,
    Unheeded,
)
from tenora_platform.inference.tool_schemas import FunctionTool

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class Part(Given):
    """One piece of an item's content. Only text is supported; others are refused by name, and
    fields that nobody knows passed over."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None  # of an earlier answer; nothing reads them, nor the next
    logprobs: Any = None
    detail: Any = None
    image_url: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None


class InputItem(Given):
    """One item of the conversation: a message, a call of a tool or what a tool answered. Items of
    an earlier answer may be given back as they are; fields that nobody knows are passed over."""

    model_config = ConfigDict(extra="ignore")

    type: str = "message"
    role: Role | None = None
    content: str | QuickList[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None  # of a custom tool
    action: dict[str, Any] | None = None  # of a local shell
    output: str | QuickList[Part] | None = None
    id: str | None = None
    status: str | None = None
    phase: Any = None


LEFT_OUT = frozenset(
    {
        "compaction",
        "compaction_summary",
        "ghost_snapshot",
        "image_generation_call",
        "reasoning",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Items of a history that no model here is shown: what another has thought, and what OpenAI's own
tools did. Their fields are not looked at."""


def _items(value: Any) -> Any:
    """A text is a message of the user's."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    checked = check_messages(value)
    if not isinstance(checked, list):
        return checked
    return [{"type": item["type"]} if _is_left_out(item) else item for item in checked]


def _is_left_out(item: Any) -> bool:
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and kind in LEFT_OUT


class ResponseTool(Given):
    """A function, its fields beside its type. Those that Codex has beside are left out, and other
    types refused by name."""

    model_config = ConfigDict(extra="ignore")

    type: str
    name: str | None = Field(default=None, pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def function(self) -> FunctionTool:
        return FunctionTool(
            name=self.name or "",
            description=self.description,
            parameters=self.parameters,
            strict=bool(self.strict),
        )


class NamedFunction(Given):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Given):
    """What the text may be. `schema` belongs to the type json_schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(Given):
    format: TextFormat = TextFormat()
    verbosity: Unheeded = None  # accepted, and without effect


class ResponseStreamOptions(Given):
    model_config = ConfigDict(extra="ignore")

    include_obfuscation: bool = False  # accepted; events are never padded


class Reasoning(Given):
    """How much a model is to think, which none here does apart from its answer."""

    model_config = ConfigDict(extra="ignore")

    effort: Unheeded = None
    summary: Unheeded = None


class ResponseRequest(Choosing):
    """POST /v1/responses. What comes after the blank line is known to OpenAI's API, not to this
    one: any value but the neutral one is refused by name."""

    model: str = Field(min_length=1, max_length=256)
    input: Annotated[
        QuickList[InputItem],
        Field(min_length=1),
        BeforeValidator(_items, json_schema_input_type=str | list[InputItem]),
    ]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    tools: Annotated[QuickList[ResponseTool] | None, at_most(TOOLS_MAX)] = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool = True
    include: Annotated[list[str] | None, at_most(METADATA_MAX)] = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    text: TextConfig | None = None
    stream: bool = False
    store: bool | None = None
    previous_response_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,128}$")
    stream_options: ResponseStreamOptions | None = None
    user: str | None = Field(default=None, max_length=512)
    service_tier: ServiceTier | None = None
    metadata: Annotated[dict[MetadataName, MetadataText] | None, at_most(METADATA_MAX)] = None
    prompt_cache_key: str | None = Field(default=None, max_length=512)
    safety_identifier: str | None = Field(default=None, max_length=512)
    chat_template_kwargs: TemplateArguments = None  # vLLM's
    enable_response_messages: bool = False  # vLLM's

    # Accepted, and without effect.
    access_programs: Any = None
    client_metadata: Annotated[dict[str, Any] | None, at_most(TEMPLATE_ARGUMENTS_MAX)] = None
    prompt_cache_retention: Unheeded = None
    reasoning: Reasoning | None = None

    background: Any = None
    context_management: Any = None
    conversation: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    prompt: Any = None
    truncation: Any = None


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(BaseModel):
    """What the model says, before, between or behind calls."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText]


class OutputCall(BaseModel):
    """One call; the answer to it is a function_call_output with the same `call_id`."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: Status
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputCall


class InputTokensDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """As the engine metered it."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFailure(BaseModel):
    code: str
    message: str


class StoreError(BaseModel):
    """Why a response that was to be stored is not."""

    code: str
    message: str


class RawMessage(BaseModel):
    """vLLM's: all of a prompt or of an answer, and the tokens that it is."""

    type: Literal["raw_message_tokens"] = "raw_message_tokens"
    message: str
    tokens: list[int]


RawMessages = Annotated[
    list[RawMessage] | None, Field(exclude_if=lambda messages: messages is None)
]
"""One, where `enable_response_messages` asked for it."""


class ResponseObject(BaseModel):
    """An answer, also as its events show it while it is made. `store`: whether it is stored, or
    will be when it ends."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    background: Literal[False] = False
    store: bool
    store_error: StoreError | None = None
    service_tier: str
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    input_messages: RawMessages = None
    output_messages: RawMessages = None


class ResponseInputItems(BaseModel):
    """A page of a stored response's input."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
