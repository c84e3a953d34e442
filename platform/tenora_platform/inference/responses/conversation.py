"""A body of /v1/responses as the chat that it is: items become messages, and everything else has
its field there. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tenora_engine.errors import InvalidRequestError
from tenora_platform.errors import ApiError, BadRequestError
from tenora_platform.inference.given import conversion
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.response_formats import NamedSchema, ResponseFormat
from tenora_platform.inference.responses.schemas import (
    LEFT_OUT,
    InputItem,
    NamedFunction,
    Part,
    ResponseRequest,
    ResponseTool,
    TextFormat,
)
from tenora_platform.inference.schemas import (
    ChatMessage,
    Choosing,
    FunctionCall,
    MadeChat,
    TextPart,
    ToolCall,
)
from tenora_platform.inference.tool_schemas import ChosenFunction, NamedTool, Tool

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (None, False),
    "context_management": (None, []),
    "conversation": (None,),
    "max_tool_calls": (None,),
    "moderation": (None,),
    "prompt": (None,),
    "truncation": (None, "disabled"),
}
"""The values which ask for nothing."""

LOGPROBS = "message.output_text.logprobs"
"""What `include` says for the log probabilities of the text's tokens."""

_NOTHING_TO_INCLUDE = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""Parts of items that there never are."""

NOT_CALLED = frozenset(
    {
        "apply_patch",
        "custom",
        "image_generation",
        "local_shell",
        "namespace",
        "shell",
        "tool_search",
        "web_search",
        "web_search_preview",
    }
)
"""Types of tools that Codex sends beside its functions: no model here is shown them."""

_TEXTS = ("input_text", "output_text", "text", "summary_text")
_CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
}
"""Items that are calls, and the field that says what of."""

_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
SHOWN_FIELDS: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    **{kind: ("call_id", "name", field) for kind, field in _CALLS.items()},
    **dict.fromkeys(_OUTPUTS, ("call_id", "output")),
}
"""What the model is shown of items of each type."""
WARNINGS_MAX = 20
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""Of the chat's fields, where an error names one."""


def _why(body: ResponseRequest, name: str) -> str | None:
    """In the words that clients know, where there are some."""
    if name == "background" and body.store is False:
        return "background can only be used when `store` is true, and not on this server"
    return None


@conversion
def as_chat(body: ResponseRequest, earlier: Sequence[InputItem] = ()) -> MadeChat:
    """`earlier` items stand before the body's input, as if they were sent with it. Raises
    BadRequestError for what is not supported, by the names of this body."""
    for name, neutral in _NEUTRAL.items():
        if getattr(body, name) not in neutral:
            raise unsupported(name, _why(body, name))
    if not (_NOTHING_TO_INCLUDE | {LOGPROBS}).issuperset(body.include or ()):
        raise unsupported("include")
    is_scored = LOGPROBS in (body.include or ())
    if body.top_logprobs and not is_scored:
        raise BadRequestError(
            f'top_logprobs needs include: ["{LOGPROBS}"].',
            param="top_logprobs",
            code="invalid_value",
        )
    messages = list(_messages(body, earlier))
    if not messages:
        raise BadRequestError(
            "input holds nothing that the model is shown.", param="input", code="invalid_value"
        )
    return MadeChat(
        model=body.model,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=is_scored,
        top_logprobs=body.top_logprobs if is_scored else None,
        chat_template_kwargs=body.chat_template_kwargs,
        **{name: getattr(body, name) for name in Choosing.model_fields},
        tools=[
            _tool(tool, f"tools[{place}]")
            for place, tool in enumerate(body.tools or ())
            if tool.type not in NOT_CALLED
        ]
        or None,
        tool_choice=_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text.format) if body.text is not None else None,
        stream=body.stream,
        user=body.user,
        service_tier=body.service_tier,
        metadata=body.metadata,
        prompt_cache_key=body.prompt_cache_key,
        safety_identifier=body.safety_identifier,
    )


def warnings(body: ResponseRequest) -> list[str]:
    """What of the body has no effect here, in words."""
    left_out = [tool for tool in body.tools or () if tool.type in NOT_CALLED]
    return [
        f"the tool {tool.name or tool.type} of type {tool.type} is left out"
        for tool in left_out[:WARNINGS_MAX]
    ]


@contextmanager
def in_its_words() -> Iterator[None]:
    """Errors of the chat name the fields of this body."""
    try:
        yield
    except (ApiError, InvalidRequestError) as error:
        name, bracket, rest = (error.param or "").partition("[")
        if name in _NAMES:
            error.param = _NAMES[name] + bracket + rest
        elif name == "tools":
            error.param = (error.param or "").replace(".function", "", 1)
        raise


def _messages(body: ResponseRequest, earlier: Sequence[InputItem]) -> Iterator[ChatMessage]:
    if body.instructions:
        yield ChatMessage(role="system", content=body.instructions)
    calling: ChatMessage | None = None  # the assistant's message that may go on
    for place, item in enumerate([*earlier, *body.input], -len(earlier)):
        if item.type in LEFT_OUT:
            continue
        message = _message(item, f"input[{place}]" if place >= 0 else "previous_response_id")
        if message.role == "assistant" and message.tool_calls and calling is not None:
            calling.tool_calls = calling.tool_calls or []
            calling.tool_calls += message.tool_calls
            continue
        if calling is not None:
            yield calling
        calling = message if message.role == "assistant" else None
        if calling is None:
            yield message
    if calling is not None:
        yield calling


def _message(item: InputItem, where: str) -> ChatMessage:
    if item.type == "message":
        _require(item, where, "role", "content")
        return ChatMessage(
            role=item.role or "user", content=_content(item.content, f"{where}.content")
        )
    if item.type in _CALLS:
        return _call(item, where)
    if item.type in _OUTPUTS:
        _require(item, where, "call_id", "output")
        content = _content(item.output, f"{where}.output")
        return ChatMessage(role="tool", tool_call_id=item.call_id, content=content)
    raise unsupported(f"{where}.type", f"items of type {item.type[:40]!r} are not supported")


def _call(item: InputItem, where: str) -> ChatMessage:
    """Of a function, or of another tool that Codex has, as if it were one."""
    field = _CALLS[item.type]
    _require(item, where, "call_id", field, *(["name"] if item.type != "local_shell_call" else []))
    given = getattr(item, field)
    arguments = given if field == "arguments" else {field: given}
    function = FunctionCall(name=item.name or "local_shell", arguments=arguments)
    return ChatMessage(role="assistant", tool_calls=[ToolCall(id=item.call_id, function=function)])


def _require(item: InputItem, where: str, *names: str) -> None:
    for name in names:
        if getattr(item, name) is None:
            raise BadRequestError(
                f"{where}.{name} is missing.",
                param=f"{where}.{name}",
                code="missing_required_parameter",
            )


def _content(given: str | Sequence[Part] | None, where: str) -> str | list[TextPart]:
    if given is None or isinstance(given, str):
        return given or ""
    return [_part(part, f"{where}[{place}]") for place, part in enumerate(given)]


def _part(part: Part, where: str) -> TextPart:
    if part.type in _TEXTS and part.text is not None:
        return TextPart(type="text", text=part.text)
    if part.type == "refusal" and part.refusal is not None:
        return TextPart(type="refusal", refusal=part.refusal)
    raise unsupported(f"{where}.type", f"content of type {part.type[:40]!r} is not supported")


def _tool(tool: ResponseTool, where: str) -> Tool:
    if tool.type != "function":
        raise unsupported(f"{where}.type", f"tools of type {tool.type[:40]!r} are not supported")
    if tool.name is None:
        raise BadRequestError(
            f"{where}.name is missing.", param=f"{where}.name", code="missing_required_parameter"
        )
    return Tool(type="function", function=tool.function())


def _choice(body: ResponseRequest) -> Any:
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        return NamedTool(function=ChosenFunction(name=choice.name))
    return choice


def _format(given: TextFormat) -> ResponseFormat:
    if given.type != "json_schema":
        return ResponseFormat(type=given.type)
    schema = NamedSchema(name="text", schema=given.json_schema)
    return ResponseFormat(type="json_schema", json_schema=schema)
