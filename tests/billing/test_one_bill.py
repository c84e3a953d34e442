"""A request that is answered with an error of its own making is free as a whole: the choices and
prompts, too, that had ended before. On the real engine, with a model of random weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from api_harness import Api, TestTenant
from tenora_engine.grammar.guide import Guide
from tenora_engine.transport.inprocess import InProcessEngineClient
from tenora_platform.settings import Settings
from tenora_platform.usage.tables import UsageEventRow
from tiny_engine_api import PATIENCE_S, api_over, tiny_config

FAILS_AT = 6  # tokens
SHORT_OR_LONG = ["a", "b" * 40]
"""Some choices end before those that fail."""


@pytest.fixture
async def api(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Api]:
    """Its grammars fail after FAILS_AT tokens, as some do at a limit of the library's."""
    advance, seen = Guide.advance, dict[int, list[Any]]()

    def fails(guide: Guide, token_id: int) -> bool:
        _, count = seen.setdefault(id(guide), [guide, 0])
        seen[id(guide)][1] = count + 1
        if count + 1 == FAILS_AT:
            guide.error = "the grammar cannot be followed any further: too many items"
        return advance(guide, token_id)

    monkeypatch.setattr(Guide, "advance", fails)
    engine = InProcessEngineClient(tiny_config(tmp_path))
    async with api_over(settings, engine) as made:
        yield made


async def booked(api: Api, tenant: TestTenant, sequences: int) -> list[tuple[int, int]]:
    """Prompt and output tokens of each event, once there are so many."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with api.state.db.tenant_session(tenant.id) as session:
                rows = list(await session.scalars(select(UsageEventRow)))
            if len(rows) >= sequences:
                return [(row.prompt_tokens, row.output_tokens) for row in rows]
            await asyncio.sleep(0.02)


BODIES: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/completions", {"prompt": "Once", "n": 8}, 8),
    ("/v1/completions", {"prompt": ["Once", "upon", "a", "time", "there", "was", "one", "who"]}, 8),
    ("/v1/completions", {"prompt": ["Once", "upon", "a"], "n": 3}, 9),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "n": 8}, 8),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "sequences"), BODIES)
async def test_a_grammar_that_fails_late_costs_nothing(
    api: Api, path: str, body: dict[str, Any], sequences: int, stream: bool
) -> None:
    tenant = await api.new_tenant("faulted")
    more = {"model": "fake-base", "max_tokens": 20, "stream": stream}
    asked = {**body, **more, "guided_choice": SHORT_OR_LONG}
    answer = await api.call(tenant.key, "POST", path, json=asked)
    if stream:
        said = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
        ended = [c for chunk in said[:-1] for c in chunk["choices"] if c["finish_reason"]]
        assert ended, "none has ended before the fault: the test shows nothing"
        error = said[-1]["error"]
        assert "[DONE]" not in answer.text
    else:
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
    assert error["param"] == "guided_choice"
    assert await booked(api, tenant, sequences) == [(0, 0)] * sequences
    usage = (await api.call(tenant.key, "GET", "/v1/usage")).json()
    results = [each for bucket in usage["data"] for each in bucket["results"]]
    assert sum(each["prompt_tokens"] + each["output_tokens"] for each in results) == 0
    limits = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    assert limits["tokens_per_min"]["used"] > 0, "it had its time all the same"
    assert limits["parallel_requests"]["used"] == 0


async def test_without_a_fault_the_same_is_charged(api: Api) -> None:
    tenant = await api.new_tenant("whole")
    body = {"model": "fake-base", "prompt": ["Once", "upon"], "n": 2, "max_tokens": 3, "seed": 3}
    answer = await api.call(tenant.key, "POST", "/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    rows = await booked(api, tenant, 4)
    usage = answer.json()["usage"]
    assert sum(prompt for prompt, _ in rows) == usage["prompt_tokens"] == 8
    assert sum(output for _, output in rows) == usage["completion_tokens"] > 4
