"""A body of /v1/messages as the chat that it is: blocks become messages, and everything else has
its field there. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

from tenora_engine.errors import InvalidRequestError
from tenora_platform.errors import ApiError, BadRequestError
from tenora_platform.inference.anthropic.schemas import (
    Block,
    CountRequest,
    Message,
    MessagesRequest,
    ResultBlock,
    ToolDefinition,
)
from tenora_platform.inference.given import conversion
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.response_formats import NamedSchema, ResponseFormat
from tenora_platform.inference.schemas import (
    ChatMessage,
    FunctionCall,
    MadeChat,
    ToolCall,
)
from tenora_platform.inference.tool_schemas import ChosenFunction, FunctionTool, NamedTool, Tool

_LEFT_OUT = frozenset({"thinking", "redacted_thinking"})
"""Of an earlier answer: no model here is shown what another has thought."""

_BILLING = "x-anthropic-billing-header:"
"""Claude Code begins its system prompt with a line of this name, different in each request, which
would keep every prompt out of the prefix cache."""

_NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
}
"""Of the chat's fields, where an error names one."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@conversion
def as_chat(body: CountRequest) -> MadeChat:
    """Raises BadRequestError for what is not supported, by the names of this body."""
    messages = list(_joined(_messages(body)))
    continues = messages[-1].role == "assistant" and not messages[-1].tool_calls
    format_ = body.output_config.format if body.output_config is not None else None
    format_ = format_ or body.output_format
    more: dict[str, Any] = {}
    if isinstance(body, MessagesRequest):
        more = {
            "max_completion_tokens": body.max_tokens,
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k or None,
            "stream": body.stream,
            "user": body.metadata.user_id if body.metadata is not None else None,
        }
    tools = [_tool(tool) for tool in body.tools or () if _is_ours(tool)]
    return MadeChat(
        model=body.model,
        messages=messages,
        tools=tools or None,
        tool_choice=_choice(body, tools),
        parallel_tool_calls=body.tool_choice is None
        or not body.tool_choice.disable_parallel_tool_use,
        response_format=None
        if format_ is None
        else ResponseFormat(
            type="json_schema",
            json_schema=NamedSchema(name="output", schema=format_.json_schema),
        ),
        continue_final_message=continues,
        **more,
    )


def warnings(body: CountRequest) -> list[str]:
    """What of the body has no effect here, in words."""
    found = [
        f"the tool {tool.name} of type {tool.type[:40]} is left out"
        for tool in body.tools or ()
        if not _is_ours(tool)
    ]
    return found + [f"{name[:100]} is ignored" for name in sorted(body.model_extra or {})][:20]


@contextmanager
def in_its_words() -> Iterator[None]:
    """Errors of the chat name the fields of this body."""
    try:
        yield
    except (ApiError, InvalidRequestError) as error:
        name, bracket, rest = (error.param or "").partition("[")
        if name == "messages":  # a body's block may be a chat's message
            error.param = "messages"
        elif name in _NAMES:
            error.param = _NAMES[name] + bracket + rest
        raise


def _messages(body: CountRequest) -> Iterator[ChatMessage]:
    if body.system:
        system = _texts(body.system, "system")
        if system:
            yield ChatMessage(role="system", content=system)
    for place, message in enumerate(body.messages):
        yield from _of_message(message, f"messages[{place}].content")


def _of_message(message: Message, where: str) -> Iterator[ChatMessage]:
    """Its tools' answers, each a message; then its text and the tools that it called."""
    if isinstance(message.content, str):
        yield ChatMessage(role=message.role, content=message.content)
        return
    texts: list[str] = []
    calls: list[ToolCall] = []
    answered = False
    for place, block in enumerate(message.content):
        at = f"{where}[{place}]"
        if block.type == "text":
            texts.append(_required(block.text, f"{at}.text"))
        elif block.type == "tool_use" and message.role == "assistant":
            calls.append(_call(block, at))
        elif block.type == "tool_result" and message.role == "user":
            answered = True
            yield _answer(block, at)
        elif block.type not in _LEFT_OUT:
            raise unsupported(
                f"{at}.type",
                f"a {message.role} message with content of type {block.type[:40]!r} is not "
                "supported",
            )
    if texts or calls or not answered:
        yield ChatMessage(
            role=message.role,
            content="".join(texts) or None if calls else "".join(texts),
            tool_calls=calls or None,
        )


def _joined(messages: Iterator[ChatMessage]) -> Iterator[ChatMessage]:
    """Turns of one side in a row are one turn, as the API has it."""
    for role, turns in groupby(messages, attrgetter("role")):
        if role == "tool":
            yield from turns
        else:
            yield _as_one(list(turns))


def _as_one(turns: Sequence[ChatMessage]) -> ChatMessage:
    if len(turns) == 1:
        return turns[0]
    texts = [str(each.content) for each in turns if each.content]
    calls = [call for each in turns for call in each.tool_calls or ()]
    content = "\n\n".join(texts) if texts or not calls else None
    return ChatMessage(role=turns[0].role, content=content, tool_calls=calls or None)


def _call(block: Block, at: str) -> ToolCall:
    function = FunctionCall(name=_required(block.name, f"{at}.name"), arguments=block.input or {})
    return ToolCall(id=_required(block.id, f"{at}.id"), function=function)


def _answer(block: Block, at: str) -> ChatMessage:
    text = _texts(block.content or "", f"{at}.content")
    if block.is_error:
        text = f"Error: {text}"
    call_id = _required(block.tool_use_id, f"{at}.tool_use_id")
    return ChatMessage(role="tool", tool_call_id=call_id, content=text)


def _texts(given: str | Sequence[ResultBlock], where: str) -> str:
    if isinstance(given, str):
        return given
    texts = []
    for place, block in enumerate(given):
        if block.type != "text":
            raise unsupported(
                f"{where}[{place}].type",
                f"{where} with a block of type {block.type[:40]!r} is not supported",
            )
        text = _required(block.text, f"{where}[{place}].text")
        if not text.startswith(_BILLING):
            texts.append(text)
    return "\n\n".join(texts)


def _required(value: str | None, where: str) -> str:
    if value is None:
        raise BadRequestError(
            f"{where} is missing.", param=where, code="missing_required_parameter"
        )
    return value


def _is_ours(tool: ToolDefinition) -> bool:
    """A tool that the client runs, as opposed to one of Anthropic's servers."""
    return tool.type == "custom" or tool.input_schema is not None


def _tool(tool: ToolDefinition) -> Tool:
    function = FunctionTool(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _choice(body: CountRequest, tools: Sequence[Tool]) -> Any:
    choice = body.tool_choice
    if choice is None or (choice.type == "auto" and not tools):
        return None
    if choice.type == "tool":
        name = _required(choice.name, "tool_choice.name")
        return NamedTool(function=ChosenFunction(name=name))
    return _CHOICES[choice.type]
