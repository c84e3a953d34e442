"""Requests of several sequences that do not end well: what the engine generated is billed, each
token once, whether the client has left, a sequence failed or a part of it was refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from api_harness import Api, TestTenant
from served_api import served, until
from tenora_engine.errors import QueueFullError
from tenora_engine.events import FinishReason, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_platform.usage.tables import UsageEventRow

Made = dict[tuple[str, int], int]


@pytest.fixture
def made(api: Api, monkeypatch: pytest.MonkeyPatch) -> Made:
    """How many tokens the engine has metered, by request and sequence of its own: none where the
    platform cut it off."""
    found: Made = {}
    meter = api.engine._meter

    def metered(
        request: GenerationRequest, index: int, tokens: int, reason: FinishReason
    ) -> UsageRecord:
        assert (request.request_id, index) not in found
        record = meter(request, index, tokens, reason)
        found[request.request_id, index] = record.output_tokens
        return record

    monkeypatch.setattr(api.engine, "_meter", metered)
    return found


async def is_billed(api: Api, tenant: TestTenant, made: Made) -> None:
    """In events and in the sums, no more and no less."""
    tokens = sum(made.values())
    async with asyncio.timeout(10):
        while True:
            page = (await api.call(tenant.key, "GET", "/v1/usage")).json()
            results = [each for bucket in page["data"] for each in bucket["results"]]
            if sum(each["sequences"] for each in results) >= len(made):
                break
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)  # what would come twice, comes now
    async with api.state.db.tenant_session(tenant.id) as session:
        rows = list(await session.scalars(select(UsageEventRow.output_tokens)))
    assert sorted(rows) == sorted(made.values())
    assert sum(each["output_tokens"] for each in results) == tokens


@pytest.mark.parametrize("chunks", [1, 4, 25])
@pytest.mark.parametrize("prompt", ["abc", ["abc", "de"]])
async def test_the_client_leaves(api: Api, made: Made, prompt: Any, chunks: int) -> None:
    tenant = await api.new_tenant("leaves")
    body = {"model": "fake-base", "prompt": prompt, "n": 2, "max_tokens": 40, "stream": True}
    auth = {"authorization": f"Bearer {tenant.key}"}
    async with (
        served(api) as url,
        httpx.AsyncClient(base_url=url, headers=auth) as http,
        http.stream("POST", "/completions", json=body) as answer,
    ):
        seen = 0
        async for line in answer.aiter_lines():
            seen += line.startswith("data: {")
            if seen == chunks:
                break
    await until(lambda: bool(made))
    await is_billed(api, tenant, made)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["abc", ["abc", "de"]])
async def test_a_sequence_or_a_part_is_refused(
    api: Api, made: Made, monkeypatch: pytest.MonkeyPatch, prompt: Any, stream: bool
) -> None:
    """The second sequence of a text, or the second text of a list."""

    def answer(request: GenerationRequest, index: int) -> str:
        if index == 1 or (isinstance(prompt, list) and len(request.prompt_token_ids) == 2):
            raise QueueFullError("no room")
        return "a few words"

    monkeypatch.setattr(api.engine, "answer", answer)
    tenant = await api.new_tenant("refused")
    body = {"model": "fake-base", "prompt": prompt, "n": 2, "max_tokens": 40, "stream": stream}
    said = await api.call(tenant.key, "POST", "/v1/completions", json=body)
    if said.status_code == 200:
        events = [line[6:] for line in said.text.splitlines() if line.startswith("data: {")]
        assert "error" in json.loads(events[-1])
    else:
        assert said.status_code in (429, 503), said.text
    await is_billed(api, tenant, made)
