"""A system behind an OpenAI-compatible server, driven by the one client of the benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tenora_bench.client import Completion, complete, load_session
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.interface import Request

Spell = Callable[[Request], Completion]  # how this server wants a request put


async def closed_loop(
    url: str, requests: Sequence[Request], streams: int, spell: Spell
) -> list[RequestRecord]:
    """Send `requests` in order, `streams` of them in flight; the records are in that order too."""
    waiting = iter(enumerate(requests))
    records: dict[int, RequestRecord] = {}

    async with load_session(url) as load:

        async def stream() -> None:
            for number, request in waiting:
                records[number] = await complete(load, spell(request))

        await asyncio.gather(*(stream() for _ in range(streams)))
    return [records[number] for number in sorted(records)]
