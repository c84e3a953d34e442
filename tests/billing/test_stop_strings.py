"""A request with stop strings costs what its answer has, and is told, booked and shown alike,
however far the engine had got when the text was read. On the real engine, with a model of random
weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from api_harness import Api, TestTenant
from tenora_engine.client import AbortReason
from tenora_engine.events import UsageRecord
from tenora_engine.grammar.guide import Guide
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.transport.inprocess import InProcessEngineClient
from tenora_engine.transport.outbox import UsageOutbox
from tenora_platform.settings import Settings
from tenora_platform.usage.tables import UsageEventRow
from tiny_engine_api import PATIENCE_S, api_over, tiny_config

PROMPT_TOKENS = 4  # of "Once"


class LateClient(InProcessEngineClient):
    """What it is told of stop strings comes when the engine has generated all that was asked for;
    or never, where it `is_deaf`."""

    is_deaf = False

    def _send_abort(
        self,
        request_id: str,
        index: int | None,
        reason: AbortReason,
        output_tokens: int | None,
    ) -> None:
        send: Callable[[], None] = lambda: super(LateClient, self)._send_abort(  # noqa: E731
            request_id, index, reason, output_tokens
        )
        if reason != "stop":
            send()
        elif not self.is_deaf:
            late = self.__dict__.setdefault("_late", set())  # or a task may be collected
            late.add(asyncio.get_running_loop().create_task(self._send_late(request_id, send)))

    async def _send_late(self, request_id: str, send: Callable[[], None]) -> None:
        assert self._loop is not None
        while request_id in self._loop.engine._requests.flights:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        send()


@pytest.fixture
async def api(settings: Settings, tmp_path: Path) -> AsyncIterator[Api]:
    engine = LateClient(tiny_config(tmp_path))
    async with api_over(settings, engine) as made:
        yield made


async def booked(api: Api, tenant: TestTenant, sequences: int) -> list[tuple[int, int, str]]:
    """Prompt and output tokens and reason of each event, once there are so many."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with api.state.db.tenant_session(tenant.id) as session:
                rows = list(await session.scalars(select(UsageEventRow)))
            if len(rows) >= sequences:
                return [(row.prompt_tokens, row.output_tokens, row.finish_reason) for row in rows]
            await asyncio.sleep(0.02)


def said(answer: httpx.Response) -> tuple[dict[str, Any], list[str]]:
    """Usage and the reasons of its choices, streamed or not."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("application/json"):
        body = answer.json()
        return body["usage"], [choice["finish_reason"] for choice in body["choices"]]
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    reasons = [
        choice["finish_reason"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    ]
    return chunks[-1]["usage"], reasons


ENDINGS: list[tuple[dict[str, Any], int]] = [
    ({"guided_regex": "a{40}", "max_tokens": 9, "stop": ["aaa"]}, 3),  # by its length
    ({"guided_choice": ["ab cd ef"], "max_tokens": 20, "stop": [" c"]}, 4),  # its grammar is done
    ({"guided_choice": ["ab cd ef"], "max_tokens": 4, "stop": [" c"]}, 4),  # in the same step
    ({"guided_regex": "a{40}", "max_tokens": 9, "stop": ["b"]}, 9),  # no stop string is met
]
BODIES: list[dict[str, Any]] = [
    {"prompt": "Once"},
    {"prompt": "Once", "n": 3},
    {"prompt": ["Once", "upon", "time"]},
    {"prompt": ["Once", "upon"], "n": 2},
]


@pytest.mark.parametrize("body", BODIES)
async def test_answer_ledger_and_limits_agree(api: Api, body: dict[str, Any]) -> None:
    for number, (ending, tokens) in enumerate(ENDINGS):
        for stream in (False, True):
            tenant = await api.new_tenant(f"stopped-{number}-{stream}".lower())
            await check_agreement(api, tenant, {**ending, **body, "stream": stream}, tokens)


async def check_agreement(api: Api, tenant: TestTenant, body: dict[str, Any], tokens: int) -> None:
    more = {"stream_options": {"include_usage": True}} if body["stream"] else {}
    asked = {"model": "fake-base", **body, **more}
    answer = await api.call(tenant.key, "POST", "/v1/completions", json=asked)
    usage, reasons = said(answer)
    num_prompts = len(body["prompt"]) if isinstance(body["prompt"], list) else 1
    sequences = body.get("n", 1) * num_prompts
    rows = await booked(api, tenant, sequences)
    reason = "stop" if body["stop"] != ["b"] else "length"
    assert [(output, why) for _, output, why in rows] == [(tokens, reason)] * sequences
    assert reasons == [reason] * sequences
    assert usage["completion_tokens"] == tokens * sequences
    assert usage["prompt_tokens"] == sum(prompt for prompt, *_ in rows)
    assert usage["prompt_tokens"] == PROMPT_TOKENS * num_prompts
    limits = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    assert limits["tokens_per_min"]["used"] == usage["total_tokens"]
    assert limits["parallel_requests"]["used"] == 0


async def test_a_grammar_that_fails_behind_the_stop_string_has_given_its_answer(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, counts = Guide.advance, dict[int, tuple[Guide, int]]()

    def fails(guide: Guide, token_id: int) -> bool:
        _, count = counts.get(id(guide), (guide, 0))
        counts[id(guide)] = guide, count + 1
        if count + 1 == 6:
            guide.error = "the grammar cannot be followed any further: too many items"
        return advance(guide, token_id)

    monkeypatch.setattr(Guide, "advance", fails)
    tenant = await api.new_tenant("faulted")
    body = {"model": "fake-base", "prompt": "Once", "guided_regex": "a{40}", "max_tokens": 9}
    answer = await api.call(tenant.key, "POST", "/v1/completions", json={**body, "stop": ["aaa"]})
    usage, reasons = said(answer)
    assert (usage["completion_tokens"], reasons) == (3, ["stop"])
    answer = await api.call(tenant.key, "POST", "/v1/completions", json={**body, "stop": ["b"]})
    assert answer.status_code == 400
    assert await booked(api, tenant, 2) == [(PROMPT_TOKENS, 3, "stop"), (0, 0, "error")]


async def test_a_client_that_dies_before_it_tells_is_charged_as_it_ended(tmp_path: Path) -> None:
    """Its engine is stopped, and what waited is in the outbox, once."""
    client = LateClient(tiny_config(tmp_path))
    client.is_deaf = True
    await client.start()
    for number in range(2):
        request = GenerationRequest(
            request_id=f"r{number}",
            tenant=Tenant(key="t", namespace="t"),
            prompt_token_ids=[5, 6],
            sampling=SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
            ends_by_text=True,
        )
        async for _ in client.submit(request):
            pass
        await client.abort(request.request_id, 0, "stop", 1)
    await client.stop()
    outbox = UsageOutbox(tmp_path / "outbox")
    records = [each for each in outbox.oldest() if isinstance(each, UsageRecord)]
    outbox.close()
    assert [(each.event_id, each.output_tokens) for each in records] == [("r0:0", 4), ("r1:0", 4)]
