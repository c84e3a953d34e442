"""/v1/tokenize and /v1/detokenize: what they say is what an answer's prompt really is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api_harness import Api, TestTenant
from served_api import HELLO, reset


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("tokens", plan="premium")


@pytest.fixture(autouse=True)
def fresh_engine(api: Api) -> None:
    reset(api.engine)


async def tokens_of(api: Api, tenant: TestTenant, **body: Any) -> dict[str, Any]:
    answer = await api.call(tenant.key, "POST", "/v1/tokenize", json={"model": "fake-base", **body})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    assert made["count"] == len(made["tokens"])
    assert made["max_model_len"] == api.engine.model.context_tokens
    return made


async def test_a_prompts_tokens_are_those_of_its_completion(api: Api, tenant: TestTenant) -> None:
    for prompt in ("Grüße 👩‍🚀", "<|im_end|> as text", "x" * 3000):
        made = await tokens_of(api, tenant, prompt=prompt)
        body = {"model": "fake-base", "prompt": prompt, "max_tokens": 1}
        body |= {"truncate_prompt_tokens": 500}
        await api.call(tenant.key, "POST", "/v1/completions", json=body)
        assert made["tokens"][-500:] == api.engine.requests[-1].prompt_token_ids
        assert made["token_strs"] is None
        said = await api.call(
            tenant.key,
            "POST",
            "/v1/detokenize",
            json={"model": "fake-base", "tokens": made["tokens"]},
        )
        assert said.json() == {"prompt": prompt}


@pytest.mark.parametrize("continued", [False, True])
async def test_a_chats_tokens_are_those_of_its_answer(
    api: Api, tenant: TestTenant, continued: bool
) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well,"}] if continued else HELLO
    chat = {"messages": messages, "continue_final_message": continued}
    made = await tokens_of(api, tenant, **chat, return_token_strs=True)
    await api.call(tenant.key, "POST", "/v1/chat/completions", json={"model": "fake-base", **chat})
    assert made["tokens"] == api.engine.requests[-1].prompt_token_ids
    assert made["token_strs"][:6] == ["<|im_start|>", *"userĊ"]
    text = "".join(made["token_strs"])
    assert text.endswith("Well," if continued else "<|im_start|>assistantĊ")


async def test_a_chats_tools_are_among_its_tokens(api: Api, tenant: TestTenant) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    made = await tokens_of(api, tenant, messages=HELLO, tools=tools)
    assert json.dumps(tools[0]) in api.engine.text.decode(made["tokens"])


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("tokenize", {}, 400, None),
        ("tokenize", {"prompt": "x", "messages": HELLO}, 400, None),
        ("tokenize", {"messages": []}, 400, "messages"),
        ("tokenize", {"prompt": "x", "colour": 1}, 400, "colour"),
        ("tokenize", {"prompt": "x" * 20_000}, 400, "prompt"),
        ("tokenize", {"prompt": "x", "model": "nobodys"}, 404, "model"),
        ("detokenize", {"tokens": [10**6]}, 400, "tokens"),
        ("detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("detokenize", {"tokens": [1], "model": "nobodys"}, 404, "model"),
    ],
)
async def test_refusals(
    api: Api, tenant: TestTenant, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    asked = {"model": "fake-base", **body}
    answer = await api.call(tenant.key, "POST", f"/v1/{path}", json=asked)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
