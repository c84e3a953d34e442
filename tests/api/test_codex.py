"""The body that Codex CLI sends to /v1/responses: its own tools are left out and said so, and the
history that it gives back is understood."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from agent_bodies import CODEX_TOOLS, codex_body
from api_harness import Api, TestTenant
from served_api import reset


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("codex", plan="premium")


@pytest.fixture(autouse=True)
def fresh_engine(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    reset(api.engine)
    roomy = msgspec.structs.replace(api.engine.model, context_tokens=8192)
    monkeypatch.setattr(api.engine, "model", roomy)


async def asked(api: Api, tenant: TestTenant, **more: Any) -> httpx.Response:
    headers = {"accept": "text/event-stream", "originator": "codex_cli_rs", "session_id": "019a"}
    return await api.call(
        tenant.key, "POST", "/v1/responses", json=codex_body("fake-base", **more), headers=headers
    )


async def test_it_is_answered(api: Api, tenant: TestTenant) -> None:
    call = '<tool_call>{"name": "shell", "arguments": {"command": ["ls"]}}</tool_call>'
    api.engine.answer = lambda request, index: call
    answer = await asked(api, tenant)
    assert answer.status_code == 200, answer.text
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: ")
    ]
    assert events[0]["type"] == "response.created"
    last = events[-1]
    assert last["type"] == "response.completed"
    [item] = last["response"]["output"]
    assert (item["type"], item["name"]) == ("function_call", "shell")
    assert [tool["name"] for tool in last["response"]["tools"]] == ["shell"]
    assert last["response"]["usage"]["total_tokens"] > 0
    warning = answer.headers["x-tenora-warning"]
    for tool in CODEX_TOOLS:
        assert f"of type {tool['type']} is left out" in warning
    assert "the tool apply_patch of type custom" in warning


async def test_the_model_sees_its_history(api: Api, tenant: TestTenant) -> None:
    answer = await asked(api, tenant)
    assert answer.status_code == 200, answer.text
    token_ids = api.engine.requests[-1].prompt_token_ids
    prompt = api.engine.text.decode(token_ids, skip_special=False)
    places = [
        prompt.index(text)
        for text in (
            "You are a coding agent.",
            "You may write.",
            "List the files.",
            '"ls"',
            "a.txt",
            '"pwd"',
            "/tmp",
            "*** Begin Patch",
            "Done.",
            "Thanks.",
        )
    ]
    assert places == sorted(places)
    assert prompt.count("I look.") == 1, "what it has thought is left out"
    assert "mcp__files" not in prompt


@pytest.mark.parametrize("kind", ["web_search", "custom"])
@pytest.mark.parametrize("name", ["b\u00f6\r\nx: y", "x" * 900])
async def test_a_warning_is_a_header(api: Api, tenant: TestTenant, kind: str, name: str) -> None:
    answer = await asked(api, tenant, tools=[{"type": kind, "name": name}] * 40)
    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        assert len(answer.headers["x-tenora-warning"]) <= 2048
