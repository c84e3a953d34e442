"""A system behind an OpenAI-compatible server, driven by the one client of the benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import httpx

from tenora_bench.client import Completion, complete
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.interface import Request

Spell = Callable[[Request], Completion]  # how this server wants a request put


def connect(url: str) -> httpx.AsyncClient:
    # A connection of its own for each request: llama.cpp's server at times closes one just as it
    # is used again.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, timeout=600, limits=limits)


async def closed_loop(
    url: str, requests: Sequence[Request], streams: int, spell: Spell
) -> list[RequestRecord]:
    """Send `requests` in order, `streams` of them in flight."""
    waiting = iter(requests)
    records: list[RequestRecord] = []

    async def stream(http: httpx.AsyncClient) -> None:
        for request in waiting:
            records.append(await complete(http, spell(request)))

    async with connect(url) as http:
        await asyncio.gather(*(stream(http) for _ in range(streams)))
    return records
