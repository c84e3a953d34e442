"""The clients: what they ask, one after the other, and what became of each request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_OUTPUT_TOKENS = 16


@dataclass
class Outcome:
    """One request as its client saw it. `usage` only when it was answered in full."""

    id: str | None = None
    usage: dict[str, int] | None = None
    error: str | None = None  # "503 engine_unavailable", or how the connection ended


@dataclass
class Load:
    """What the clients saw, all of them together."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def answered(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.usage is not None]

    @property
    def failed(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.usage is None]


def count_errors(outcomes: Sequence[Outcome]) -> dict[str, int]:
    errors = [outcome.error or "none" for outcome in outcomes]
    return {error: errors.count(error) for error in sorted(set(errors))}


@asynccontextmanager
async def under_load(
    url: str, keys: Mapping[str, str], load: Load, clients: int, seed: int | None = None
) -> AsyncIterator[None]:
    """Requests of all tenants, one after the other from each client, until the block ends; those
    in flight then are waited for."""
    timeout = aiohttp.ClientTimeout(total=180)
    over = asyncio.Event()
    async with aiohttp.ClientSession(url, timeout=timeout) as http:
        tasks = [
            asyncio.create_task(_client(list(keys.values()), http, load, number, seed, over))
            for number in range(clients)
        ]
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(*tasks)


async def _client(
    keys: list[str],
    http: aiohttp.ClientSession,
    load: Load,
    number: int,
    seed: int | None,
    over: asyncio.Event,
) -> None:
    while not over.is_set():
        turn = len(load.outcomes)
        outcome = Outcome()
        load.outcomes.append(outcome)
        key = keys[turn % len(keys)]
        await ask(http, key, outcome, stream=number > 0, turn=turn, seed=seed)
        if outcome.error is not None:
            await asyncio.sleep(0.2)


async def ask(
    http: aiohttp.ClientSession,
    key: str,
    outcome: Outcome,
    *,
    stream: bool,
    turn: int = 0,
    seed: int | None = None,
) -> None:
    """One completion by the tenant's adapter `support`; what became of it goes into `outcome`. A
    pretend engine takes its pace from the seed."""
    body: dict[str, Any] = {
        "model": "support",
        "prompt": f"Question {turn}: how long is the warranty?",
        "max_tokens": _OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
        **({} if seed is None else {"seed": seed}),
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    headers = {"authorization": f"Bearer {key}"}
    try:
        async with http.post("/v1/completions", json=body, headers=headers) as reply:
            if reply.status != 200:
                outcome.error = f"{reply.status} {(await reply.json())['error']['code']}"
            elif not stream:
                _note(outcome, await reply.json())
            else:
                async for line in reply.content:
                    if line.startswith(b"data: {"):
                        _note(outcome, json.loads(line[6:]))
                if outcome.usage is None and outcome.error is None:
                    outcome.error = "cut off"
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        outcome.error = type(error).__name__


def _note(outcome: Outcome, answer: dict[str, Any]) -> None:
    outcome.id = answer.get("id") or outcome.id
    if "error" in answer:
        outcome.error = f"503 {answer['error']['code']}"
    elif answer.get("usage"):
        outcome.usage = answer["usage"]
