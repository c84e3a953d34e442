"""Versions of a real platform with two API processes: led to all requests by its worker, shadowed,
and revoked in both processes at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from running_platform import Running
from tenora_bench.client import Management

ADAPTER = "/v1/adapters/moving"
ALIAS = f"{ADAPTER}/aliases/prod"
MANY = 12  # connections, each of which the kernel gives to one of the two


async def push(running: Running, count: int) -> None:
    """Versions of equal content, so that greedy answers are equal."""
    async with httpx.AsyncClient(base_url=running.server.url, timeout=60) as http:
        management = Management(http, running.server.admin_key)
        for _ in range(count):
            folder = running.acme.adapters["support"]
            await management.upload(running.acme.key, "moving", folder)


def ask(running: Running, model: str) -> httpx.Response:
    body = {"model": model, "prompt": "Hello", "max_tokens": 4, "temperature": 0, "user": "me"}
    return running.call(running.acme.key, "POST", "/v1/completions", json=body)


def versions(running: Running, model: str) -> set[str]:
    answers = [ask(running, model) for _ in range(MANY)]
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return {answer.headers["x-tenora-adapter"] for answer in answers}


async def until(running: Running, path: str, said: Any) -> Any:
    """The answer, once `said` is true of it."""
    async with asyncio.timeout(30):
        while True:
            found = running.call(running.acme.key, "GET", path).json()
            if said(found):
                return found
            await asyncio.sleep(0.2)


async def test_a_version_on_its_way_and_out_again(running: Running) -> None:
    await push(running, 2)
    key = running.acme.key
    running.call(key, "PUT", ALIAS, json={"targets": [{"version": 1, "weight": 100}]})
    assert versions(running, "moving") == {"moving@1"}

    stages = [{"percent": 50, "after_s": 6}, {"percent": 100, "after_s": 1}]
    body = {"version": 2, "stages": stages}
    assert running.call(key, "POST", f"{ALIAS}/rollout", json=body).status_code == 201
    assert len(versions(running, "moving")) == 1  # the same user, in both processes
    await until(running, f"{ALIAS}/rollout", lambda found: found["state"] == "completed")
    assert versions(running, "moving") == {"moving@2"}

    running.call(key, "PUT", ALIAS, json={"shadow": {"version": 1, "percent": 100}})
    assert ask(running, "moving").status_code == 200
    report = await until(running, f"{ALIAS}/shadow", lambda found: found["data"])
    assert report["data"][0]["error"] is None
    assert report["data"][0]["equal"] is True
    running.call(key, "PUT", ALIAS, json={"shadow": None})

    body = {"targets": [{"version": 1, "weight": 50}, {"version": 2, "weight": 50}]}
    running.call(key, "PUT", ALIAS, json=body)
    assert versions(running, "moving@2") == {"moving@2"}  # in both caches
    state = {"state": "revoked"}
    assert running.call(key, "PATCH", f"{ADAPTER}/versions/2", json=state).status_code == 200
    # Not one is answered, though the first come within milliseconds.
    assert {ask(running, "moving@2").status_code for _ in range(MANY)} == {404}
    assert versions(running, "moving") == {"moving@1"}
