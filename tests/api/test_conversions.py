"""Bodies of /v1/messages and /v1/responses become chats, whatever their schemas allow, by work that
grows with the body alone, in a thread where there is much of it."""

from __future__ import annotations

import ast
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec.structs import replace
from pydantic import Field, ValidationError

import tenora_platform
from api_harness import Api, TestTenant
from served_api import reset
from tenora_platform.inference import anthropic, responses
from tenora_platform.inference.anthropic.conversation import as_chat as chat_of_messages
from tenora_platform.inference.anthropic.schemas import MessagesRequest
from tenora_platform.inference.responses.conversation import as_chat as chat_of_responses
from tenora_platform.inference.responses.schemas import ResponseRequest
from tenora_platform.inference.schemas import ChatCompletionRequest, ChatMessage

HI = [{"role": "user", "content": "Hi"}]
PARTS = [{"type": "text", "text": ""}] * 300
TOOL = {"name": "f", "input_schema": {"type": "object"}}


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant(plan="premium")


def messages_chat(**more: Any) -> ChatCompletionRequest:
    body = {"model": "m", "max_tokens": 1, "messages": HI, **more}
    return chat_of_messages(MessagesRequest.model_validate(body))


def responses_chat(**more: Any) -> ChatCompletionRequest:
    return chat_of_responses(ResponseRequest.model_validate({"model": "m", "input": "Hi", **more}))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ChatMessage]:
    """Every message that a conversion makes, in between or for good."""
    found: list[ChatMessage] = []

    class Noted(ChatMessage):
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            found.append(self)

        def model_copy(self, **how: Any) -> Any:
            found.append(super().model_copy(**how))
            return found[-1]

    for package in (anthropic, responses):
        monkeypatch.setattr(f"{package.__name__}.conversation.ChatMessage", Noted)
    return found


def test_turns_of_one_side_are_joined_once(made: list[ChatMessage]) -> None:
    chat = messages_chat(messages=[{"role": "user", "content": "a" * 10}] * 1000)
    assert [each.content for each in chat.messages] == ["\n\n".join(["a" * 10] * 1000)]
    assert sum(len(str(each.content)) for each in made) < 3 * 10 * 1000


NAME = "mcp__" + "n" * 123
TURNS = [{"role": ("user", "assistant")[place % 2], "content": "x"} for place in range(4096)]
CALLS = [{"type": "tool_use", "id": f"c{place}", "name": "f", "input": {}} for place in range(129)]
FUNCTION = {"type": "function", "name": NAME, "parameters": {"type": "object"}}
RESULTS = [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}] * 4096
CALL_ITEMS = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 4000


@pytest.mark.parametrize(
    ("make", "body", "messages"),
    [
        (messages_chat, {"tools": [TOOL | {"name": NAME}]}, 1),
        (messages_chat, {"messages": TURNS, "system": "s"}, 4097),
        (messages_chat, {"messages": [*HI, {"role": "assistant", "content": CALLS}]}, 2),
        (messages_chat, {"messages": [{"role": "user", "content": RESULTS}], "system": "s"}, 4097),
        (responses_chat, {"tools": [FUNCTION]}, 1),
        (responses_chat, {"input": TURNS, "instructions": "s"}, 4097),
        (responses_chat, {"input": [*HI, *CALL_ITEMS]}, 2),
    ],
)
def test_what_a_body_may_hold_becomes_a_chat(
    make: Callable[..., ChatCompletionRequest], body: dict[str, Any], messages: int
) -> None:
    assert len(make(**body).messages) == messages


async def test_long_names_of_tools_are_served(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.engine, "model", replace(api.engine.model, context_tokens=4096))
    function = {"name": NAME, "parameters": {"type": "object"}}
    of_chat = {"tools": [{"type": "function", "function": function}]}
    for path, body in (
        ("messages", {"messages": HI, "max_tokens": 5, "tools": [TOOL | {"name": NAME}]}),
        ("messages/count_tokens", {"messages": HI, "tools": [TOOL | {"name": NAME}]}),
        ("responses", {"input": "Hi", "tools": [FUNCTION]}),
        ("chat/completions", {"messages": HI, **of_chat}),
        ("tokenize", {"messages": HI, **of_chat}),
    ):
        answer = await api.call(
            tenant.key, "POST", f"/v1/{path}", json={"model": "fake-base", **body}
        )
        assert answer.status_code == 200, answer.text


async def test_what_only_the_chat_refuses_is_a_named_error(
    api: Api,
    tenant: TestTenant,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Were there such a field again. It is said and logged without what was given."""

    class Strict(ChatMessage):
        content: Annotated[str, Field(max_length=3)]

    for name in ("anthropic", "responses"):
        monkeypatch.setattr(f"tenora_platform.inference.{name}.conversation.ChatMessage", Strict)
    secret = "a secret of mine"
    for path, body in (
        ("messages", {"messages": [{"role": "user", "content": secret}], "max_tokens": 5}),
        ("messages/count_tokens", {"messages": [{"role": "user", "content": secret}]}),
        ("responses", {"input": secret}),
    ):
        answer = await api.call(
            tenant.key, "POST", f"/v1/{path}", json={"model": "fake-base", **body}
        )
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("content", "invalid_value")
        assert error["message"] == "content: must have at most 3 characters."
    assert "secret" not in "".join(capsys.readouterr())
    with pytest.raises(ValidationError) as caught:
        Strict(role="user", content=secret)
    assert "secret" not in str(caught.value)


def test_whatever_makes_a_chat_is_a_conversion() -> None:
    """In the whole platform: who makes one otherwise answers 500 where its schema is stricter."""
    makers = {"ChatCompletionRequest", "MadeChat", "CompletionRequest"}
    found = 0
    root = Path(tenora_platform.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            calls = (each for each in ast.walk(function) if isinstance(each, ast.Call))
            if makers & {ast.unparse(each.func) for each in calls}:
                found += 1
                decorators = [ast.unparse(each) for each in function.decorator_list]
                assert "conversion" in decorators, f"{path}: {function.name}"
    assert found == 3


def test_calls_in_a_row_are_collected_once(made: list[ChatMessage]) -> None:
    items = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 100
    chat = responses_chat(input=[{"role": "user", "content": "Hi"}, *items])
    assert len(chat.messages[1].tool_calls or ()) == 100
    turn = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]}
    assert len(messages_chat(messages=[*HI, *[turn] * 100]).messages[1].tool_calls or ()) == 100
    assert sum(len(each.tool_calls or ()) for each in made) < 3 * 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("messages", {"messages": HI * 300}),
        ("messages", {"messages": [{"role": "user", "content": PARTS}]}),
        ("messages", {"messages": HI, "system": [{"type": "text", "text": ""}] * 300}),
        ("messages/count_tokens", {"messages": HI * 300}),
        ("responses", {"input": HI * 300}),
        ("responses", {"input": [{"role": "user", "content": PARTS}]}),
        ("chat/completions", {"messages": HI * 300}),
        ("chat/completions", {"messages": HI, "tools": "many"}),
        ("tokenize", {"messages": HI * 300}),
        ("tokenize", {"messages": HI, "tools": "many"}),
    ],
)  # fmt: skip
async def test_large_bodies_are_gone_through_in_a_thread(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """Neither made into a chat nor counted on the event loop."""
    threads: list[int] = []
    for place in (
        "anthropic.routes.as_chat",
        "responses.routes.as_chat",
        "requests.count_characters",
    ):
        module, _, name = place.rpartition(".")
        really = getattr(importlib.import_module(f"tenora_platform.inference.{module}"), name)

        def noted(*given: Any, really: Callable[..., Any] = really) -> Any:
            threads.append(threading.get_ident())
            return really(*given)

        monkeypatch.setattr(f"tenora_platform.inference.{place}", noted)
    if "tools" in body:
        properties: dict[str, Any] = {f"p{place}": {} for place in range(300)}
        function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
        body = body | {"tools": [{"type": "function", "function": function}]}
    if path == "messages":
        body = body | {"max_tokens": 5}
    answer = await api.call(tenant.key, "POST", f"/v1/{path}", json={"model": "fake-base", **body})
    assert answer.status_code in (200, 400), answer.text[:300]
    assert threads
    if path.startswith(("chat", "tokenize")):
        assert threading.get_ident() not in threads
    else:
        assert threads[0] != threading.get_ident()
