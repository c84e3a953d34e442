"""Limits where everything is real: two API processes, a worker and the engine."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from running_platform import Running, yesterday

CLIENTS = 64


async def make_tenant(running: Running, limits: dict[str, int]) -> tuple[str, str]:
    """The id and the key of a new tenant with a plan of these limits."""
    running.admin("PUT", "/admin/v1/plans/limited", json={"limits": limits}).raise_for_status()
    made = running.admin("POST", "/admin/v1/tenants", json={"name": "l", "plan": "limited"}).json()
    path = f"/admin/v1/tenants/{made['id']}/api_keys"
    return made["id"], running.admin("POST", path, json={"name": "l"}).json()["key"]


def clients(running: Running, key: str) -> httpx.AsyncClient:
    """A connection for each request, so that both processes take some."""
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=0)
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=running.api, headers=headers, timeout=120, limits=limits)


@pytest.mark.parametrize("what", ["requests", "tokens"])
async def test_of_64_parallel_clients_exactly_the_limit_passes(running: Running, what: str) -> None:
    """Over both processes, whoever of them takes a request."""
    most = 20
    ask = {"model": running.base_model, "prompt": [5] * 4, "max_tokens": 2, "ignore_eos": True}
    limits = {"requests": {"requests_per_min": most}, "tokens": {"tokens_per_min": most * 6}}
    _, key = await make_tenant(running, limits[what])
    async with clients(running, key) as http:
        answers = await asyncio.gather(
            *(http.post("/completions", json=ask) for _ in range(CLIENTS))
        )
        shown = (await http.get("/limits")).json()
    passed = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(passed) + len(refused) == CLIENTS, {answer.status_code for answer in answers}
    assert len(passed) == most
    assert all(0 < int(answer.headers["retry-after-ms"]) <= 60_250 for answer in refused)
    assert shown["parallel_requests"]["used"] == 0
    assert shown["tokens_per_min"]["used"] == sum(
        answer.json()["usage"]["total_tokens"] for answer in passed
    )


async def usage_of(running: Running, key: str, sequences: int) -> dict[str, int]:
    """What was billed, once so many sequences are."""
    deadline = time.monotonic() + 30
    while True:
        asked = {"start": yesterday(), "bucket": "1d"}
        found = running.call(key, "GET", "/v1/usage", params=asked).json()["data"]
        rows: list[dict[str, Any]] = [row for bucket in found for row in bucket["results"]]
        if sum(row["sequences"] for row in rows) == sequences:
            return {
                name: sum(row[name] for row in rows) for name in ("prompt_tokens", "output_tokens")
            }
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


@pytest.mark.parametrize(("stream", "leave_after_s"), [(False, 0.0), (True, 0.05), (True, 1.0)])
async def test_what_ran_is_charged_and_what_is_charged_is_billed(
    running: Running, stream: bool, leave_after_s: float
) -> None:
    """A client that hangs up while it waits, before its first token or in its answer: the limit is
    charged with what the engine metered, to the token."""
    _, key = await make_tenant(running, {"tokens_per_min": 100_000, "requests_per_min": 100})
    ask = {
        "model": running.base_model,
        "prompt": [list(range(5, 205)), [9] * 40],
        "n": 2,
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": stream,
    }
    async with clients(running, key) as http:
        leaving = asyncio.create_task(http.post("/completions", json=ask))
        deadline = time.monotonic() + 60
        while not (await http.get("/limits")).json()["parallel_requests"]["used"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        await asyncio.sleep(leave_after_s)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        while (await http.get("/limits")).json()["parallel_requests"]["used"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        charged = (await http.get("/limits")).json()["tokens_per_min"]["used"]
    billed = await usage_of(running, key, 4)
    assert charged == billed["prompt_tokens"] + billed["output_tokens"]
