"""A receipt of a real request to the official client: it says what the answer's headers and usage
said, verifies offline, and costs what a plain computation from the prices costs; contents are kept
where the tenant chose so, also of a stream that its client cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from running_platform import Running
from shell import run

KEYS = "/.well-known/tenora-keys.json"
ASKED: list[Any] = [{"role": "user", "content": "Count from 1 to 12345 in big steps."}]


@pytest.fixture
async def acme(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=running.api, api_key=running.acme.key, max_retries=0
    ) as api:
        yield api


@pytest.fixture
def keeping(running: Running) -> Any:
    """acme keeps contents for as long as the test runs."""
    path, key = "/v1/settings", running.acme.key
    assert running.call(key, "PATCH", path, json={"keep_contents_days": 1}).status_code == 200
    yield
    off = {"keep_contents_days": None, "delete_kept_contents": True}
    assert running.call(key, "PATCH", path, json=off).status_code == 200


async def booked(running: Running, path: str, sequences: int = 1) -> httpx.Response:
    """Usage is in the books, and contents are written, a moment after the answer, those of each
    sequence by themselves."""
    async with asyncio.timeout(60):
        while True:
            answer = await asyncio.to_thread(running.call, running.acme.key, "GET", path)
            if answer.status_code != 200:
                assert answer.status_code == 404, answer.text
            elif sequences == 1 or answer.json()["ran"]["sequences"] == sequences:
                return answer
            await asyncio.sleep(0.1)


def plain_cost(running: Running, tokens: dict[str, int]) -> Decimal:
    price = running.call(running.acme.key, "GET", "/v1/prices").json()["data"][0]
    each = price["per_million"]
    return (
        sum((Decimal(each[meter]) * count for meter, count in tokens.items()), Decimal(0)) / 10**6
    )


async def test_a_receipt_says_what_the_answer_said(
    running: Running, acme: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    raw = await acme.chat.completions.with_raw_response.create(
        model="support", messages=ASKED, max_tokens=7, n=2, temperature=1, service_tier="flex"
    )
    said, headers = raw.parse(), raw.headers
    answer = await booked(running, f"/v1/requests/{headers['x-request-id']}", sequences=2)
    found = answer.json()
    assert found["id"] == said.id
    assert found["asked"]["model"] == "support"
    assert found["asked"]["class"] == "flex"
    assert found["asked"]["max_tokens"] == 7
    adapter = found["ran"]["adapter"]
    assert f"{adapter['name']}@{adapter['version']}" == headers["x-tenora-adapter"]
    assert adapter["digest"] == headers["x-tenora-adapter-digest"]
    assert found["ran"]["residency"] == headers["x-tenora-residency"]
    assert {each["class"] for each in found["sequences"]} == {said.service_tier}
    assert said.usage is not None
    tokens = found["tokens"]
    assert tokens["uncached_prefill"] + tokens["cached_prefill"] == said.usage.prompt_tokens
    assert tokens["output"] == said.usage.completion_tokens
    for each in found["sequences"]:
        times = each["times_ms"]
        spans = times["queue"] + times["prefill"] + times["decode"]
        assert spans == pytest.approx(times["total"], abs=0.01)  # three roundings to a microsecond

    cold = sum(each["cold_loads"] for each in found["sequences"])
    assert Decimal(found["amount"]) == plain_cost(running, tokens | {"cold_load": cold})

    file, keys = tmp_path / "receipt.json", tmp_path / "keys.json"
    file.write_bytes(answer.content)
    keys.write_bytes(running.call("none", "GET", KEYS).content)
    assert run("receipt", "verify", str(file), "--keys", str(keys))[0] == 0
    file.write_bytes(answer.content.replace(b'"max_tokens":7', b'"max_tokens":8'))
    code, why = run("receipt", "verify", str(file), "--keys", str(keys))
    assert code == 1
    assert "'asked' was changed" in why

    page = running.call(running.acme.key, "GET", "/v1/requests?adapter=support&class=flex").json()
    assert said.id in [item["id"] for item in page["data"]]
    other = running.call(running.globex.key, "GET", f"/v1/requests/{said.id}")
    assert other.status_code == 404


@pytest.mark.usefixtures("keeping")
async def test_contents_of_a_stream_and_of_one_cut_off(
    running: Running, acme: openai.AsyncOpenAI
) -> None:
    async def read(chunks_max: int) -> tuple[str, str]:
        texts, request_id = [], ""
        stream = await acme.chat.completions.create(
            model="support", messages=ASKED, max_tokens=48, stream=True, temperature=0
        )
        async with stream:
            async for chunk in stream:
                request_id = chunk.id
                texts += [choice.delta.content or "" for choice in chunk.choices]
                if len(texts) >= chunks_max:
                    break
        return request_id, "".join(texts)

    request_id, text = await read(1000)
    found = (await booked(running, f"/v1/requests/{request_id}/contents")).json()
    assert found["request"]["messages"] == ASKED
    (choice,) = found["choices"]
    assert choice["text"] == text
    assert choice["finish_reason"] is not None

    cut_id, begun = await read(3)
    found = (await booked(running, f"/v1/requests/{cut_id}/contents")).json()
    (choice,) = found["choices"]
    assert begun
    assert choice["text"].startswith(begun)
    assert len(choice["text"]) < len(text)
    assert choice["finish_reason"] is None
    receipt = json.loads((await booked(running, f"/v1/requests/{cut_id}")).content)
    assert receipt["status"] == "aborted"

    out = await acme.chat.completions.create(
        model="support",
        messages=ASKED,
        max_tokens=2,
        extra_headers={"x-tenora-keep-contents": "false"},
    )
    await booked(running, f"/v1/requests/{out.id}")
    kept = running.call(running.acme.key, "GET", f"/v1/requests/{out.id}/contents")
    assert kept.status_code == 404
