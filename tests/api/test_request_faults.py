"""What a request alone makes an engine fail at is the client's to mend: 400 by the name of the
field, in a stream too, not to be tried again, not charged and no mark against a version."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api_harness import Api, running_api
from fake_engine import FakeEngine
from tenora_engine.errors import GrammarsUnavailableError
from tenora_engine.events import FinishEvent, FinishReason, SequenceEvent, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_platform.settings import Settings

WORDS = "the grammar cannot be followed any further: too many items"


class LimitedEngine(FakeEngine):
    """Whose grammars fail when they have been followed for a while."""

    async def submit(self, request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        grammar = request.sampling.grammar
        async for event in super().submit(request):
            if grammar is not None and isinstance(event, FinishEvent):
                yield replace(
                    event, reason="error", error=WORDS, fault="request", param=grammar.param
                )
            else:
                yield event

    def _meter(
        self, request: GenerationRequest, index: int, made: int, reason: FinishReason
    ) -> UsageRecord:
        record = super()._meter(request, index, made, reason)
        if request.sampling.grammar is None:
            return record
        free = replace(record, prompt_tokens=0, output_tokens=0, finish_reason="error")
        self.outbox[-1] = free
        return free


@pytest.fixture
async def api(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Api]:
    monkeypatch.setattr("api_harness.FakeEngine", LimitedEngine)
    async with running_api(settings, tmp_path) as made:
        yield made


FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string"}}}
CHAT = {"model": "fake-base", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
BODIES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {**CHAT, "response_format": FORMAT}, "response_format"),
    ("/v1/chat/completions", {**CHAT, "guided_regex": "a"}, "guided_regex"),
    (
        "/v1/completions",
        {"model": "fake-base", "prompt": ["a", "b"], "guided_grammar": 'root ::= "a"'},
        "guided_grammar",
    ),
    (
        "/v1/responses",
        {"model": "fake-base", "input": "Hi", "text": {"format": {"type": "json_object"}}},
        "text",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), BODIES)
async def test_it_is_400_by_the_name_of_its_field(
    api: Api, path: str, body: dict[str, Any], param: str
) -> None:
    tenant = await api.new_tenant("limited")
    answer = await api.call(tenant.key, "POST", path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
    assert error["param"].startswith(param)
    assert WORDS in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert not any(r.output_tokens + r.prompt_tokens for r in api.engine.outbox[-1:])
    if path == "/v1/completions":  # its other prompt is not charged either
        assert "invalid" in {reason for *_, reason in api.engine.aborted}, api.engine.aborted


@pytest.mark.parametrize(("path", "body", "param"), BODIES)
async def test_a_stream_that_has_begun_says_the_same(
    api: Api, path: str, body: dict[str, Any], param: str
) -> None:
    tenant = await api.new_tenant("limited")
    answer = await api.call(tenant.key, "POST", path, json={**body, "stream": True})
    assert answer.status_code == 200
    said = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:6] == "data: "]
    last = said[-1]
    error = last["response"]["error"] if path == "/v1/responses" else last["error"]
    assert error["code"] == "invalid_value"
    assert WORDS in error["message"]
    if path != "/v1/responses":
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_where_grammars_cannot_be_checked_a_client_tries_again(api: Api) -> None:
    tenant = await api.new_tenant("limited")
    api.engine.refusal = GrammarsUnavailableError("grammars cannot be checked at the moment")
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=BODIES[0][1])
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "grammars_unavailable"
    assert answer.headers["retry-after"] == "1"


TOKENS: list[Any] = [-1, 10**6, 2**31 - 1, 2**31, 2**64, 10**400, True, 1.5, None, "x"]


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        ("/v1/completions", "prompt", lambda ids: {"prompt": ids}),
        ("/v1/completions", "prompt", lambda ids: {"prompt": [[1], ids]}),
        ("/v1/completions", "prompt", lambda ids: {"prompt": ids, "echo": True, "logprobs": 1}),
        ("/v1/completions", "stop_token_ids", lambda ids: {"prompt": "a", "stop_token_ids": ids}),
        (
            "/v1/completions",
            "allowed_token_ids",
            lambda ids: {"prompt": "a", "allowed_token_ids": ids},
        ),
        ("/v1/embeddings", "input", lambda ids: {"input": ids}),
        ("/v1/embeddings", "input", lambda ids: {"input": [[1], ids]}),
        ("/v1/detokenize", "tokens", lambda ids: {"tokens": ids}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_no_token_is_refused_by_the_name_of_its_place(
    api: Api, path: str, param: str, body: Any
) -> None:
    key = (await api.new_tenant("ids")).key
    for wrong in TOKENS:
        content = {"model": "fake-base", **body([1, wrong])}
        answer = await api.call(key, "POST", path, json=content)
        assert answer.status_code == 400, (wrong, answer.text)
        assert answer.json()["error"]["param"].partition("[")[0] == param, answer.text
    assert not api.engine.requests


async def test_a_bias_is_a_number_of_a_token(api: Api) -> None:
    key = (await api.new_tenant("ids")).key
    biases: list[dict[str, Any]] = [{"1": True}, {"1": float("nan")}, {"1": float("inf")}]
    for bias in [*biases, {"-1": 1}, {"99999": 1}, {"9" * 400: 1}, {"True": 1}]:
        body = json.dumps({"model": "fake-base", "prompt": "a", "logit_bias": bias})
        headers = {"content-type": "application/json"}
        answer = await api.call(key, "POST", "/v1/completions", content=body, headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].partition(".")[0] == "logit_bias"


async def test_a_padding_row_of_the_logits_is_a_token_without_text(api: Api) -> None:
    """Models have more rows than their tokenizers have tokens; one beyond them is no token."""
    key = (await api.new_tenant("ids")).key
    known = api.engine.text.vocab_size
    api.engine.model = replace(api.engine.model, vocab=known + 64)
    for token, status in ((known, 200), (known + 63, 200), (known + 64, 400)):
        asked: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": [5, token], "echo": True, "logprobs": 1, "max_tokens": 1},
            "/v1/embeddings": {"input": [5, token]},
            "/v1/detokenize": {"tokens": [5, token]},
        }
        for path, body in asked.items():
            answer = await api.call(key, "POST", path, json={"model": "fake-base", **body})
            assert answer.status_code == status, (path, answer.text)
    usual: dict[str, Any] = {"model": "fake-base", "prompt": "a", "max_tokens": 2}
    for name in ("stop_token_ids", "allowed_token_ids"):
        content = {**usual, name: [known], "logprobs": 1}
        answer = await api.call(key, "POST", "/v1/completions", json=content)
        assert answer.status_code == 200, answer.text
