"""A usage record's id is `request_id:index`, and the database takes each id once: so every attempt
at the engine, a client's own retry too, needs a request id that no other has had."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from api_harness import Api
from fake_engine import default_answer
from served_api import HELLO, reset, served
from tenora_engine.errors import EngineUnavailableError
from tenora_engine.request import GenerationRequest

CLIENTS_ID = "the-clients-own-id"


@pytest.fixture(scope="module")
async def base_url(api: Api) -> AsyncIterator[str]:
    async with served(api) as url:
        yield url


def dies(request: GenerationRequest, index: int) -> str:
    raise EngineUnavailableError("the engine process died")


async def test_attempts_never_share_an_engine_request_id(api: Api, base_url: str) -> None:
    """Two that the engine's death cut off and two served, under one x-request-id, of two prompts
    each."""
    reset(api.engine)
    tenant = await api.new_tenant("attempts", plan="premium")
    headers = {"authorization": f"Bearer {tenant.key}", "x-request-id": CLIENTS_ID}
    statuses = []
    async with httpx.AsyncClient(base_url=base_url, headers=headers) as client:
        for attempt in range(4):
            api.engine.answer = dies if attempt % 2 == 0 else default_answer
            answer = await client.post(
                "/completions",
                json={"model": "fake-base", "prompt": [str(HELLO), "again"], "max_tokens": 2},
            )
            statuses.append(answer.status_code)
            assert answer.headers["x-request-id"] == CLIENTS_ID
    asked = [request.request_id for request in api.engine.requests]
    reset(api.engine)
    assert statuses == [503, 200, 503, 200]
    assert len(asked) == len(set(asked)) >= 6
    assert not any(CLIENTS_ID in request_id for request_id in asked)
