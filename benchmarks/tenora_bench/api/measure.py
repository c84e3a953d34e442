"""The three measurements of an API under load: how much later its clients have a token, what a
request and a token take of its processors, and how many requests a second it answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenora_bench.api.load import Seen, Target, load
from tenora_bench.api.stamps import Stamps
from tenora_bench.metrics import percentile

QUESTION = (
    "You are the assistant of a shop for kettles and toasters. A customer writes: my kettle does "
    "not switch itself off any more when the water boils. How long is the warranty, and whom do I "
    "ask for another one? Answer in one or two friendly sentences."
)
LATENCY_PACE_US = 50_000
COST_PACE_US = 20_000
_REST_S = 0.4
_REST_SHARE = 0.05  # of a core: a worker at rest takes less
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class System:
    """A server under measurement. `pids`: its API's processes, all of them and nothing else."""

    name: str
    target: Target
    pids: tuple[int, ...]
    stamps: Stamps


def processor_s(pids: Sequence[int]) -> float:
    """What these processes have had of the processors, all their threads (Linux)."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def chat(number: int, tokens: int, *, stream: bool, pace_us: int | None = None) -> dict[str, Any]:
    """The number-th body; no two are equal, as no two customers' are."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Order {number}. {QUESTION}"}],
        "max_tokens": tokens,
        "temperature": 0.7,
        "stream": stream,
    }
    return body if pace_us is None else {**body, "seed": pace_us}


async def added_latency(
    system: System, *, streams: int, tokens: int, turns: int
) -> dict[str, float]:
    """From the engine's making a token to its client's reading it: `streams` at once, each of them
    `turns` times, twenty tokens a second each, all of one moment as a step makes them."""

    def body(number: int) -> dict[str, Any]:
        return chat(number, tokens, stream=True, pace_us=LATENCY_PACE_US)

    used_s = processor_s(system.pids)
    seen, took_s = await _load(system, body, connections=streams, requests=streams * turns)
    return {
        "streams": streams,
        "tokens": seen.words,
        "tokens_per_s": round(seen.words / took_s, 1),
        "p50_ms": _rounded(percentile(seen.ages_ms, 0.5)),
        "p99_ms": _rounded(percentile(seen.ages_ms, 0.99)),
        "max_ms": _rounded(max(seen.ages_ms)),
        "cores": round((processor_s(system.pids) - used_s) / took_s, 3),
    }


async def costs(
    system: System, *, connections: int, requests: int, tokens: int
) -> dict[str, float]:
    """Processor time of the API alone, over streams of one token and of `tokens`: the slope is a
    token's, and what is left of a request without any is its own."""
    totals = {}
    for length in (1, tokens):

        def body(number: int, length: int = length) -> dict[str, Any]:
            return chat(number, length, stream=True, pace_us=COST_PACE_US)

        count = requests if length == 1 else max(connections, requests // 5)
        before_s = await _at_rest(system)
        await _load(system, body, connections=connections, requests=count)
        totals[length] = (await _at_rest(system) - before_s) / count
    token_s = (totals[tokens] - totals[1]) / (tokens - 1)
    return {
        "request_ms": round((totals[1] - token_s) * 1e3, 3),
        "token_us": round(token_s * 1e6, 2),
    }


async def rates(
    system: System, *, connections: int, requests: int, tokens: int
) -> dict[str, dict[str, float]]:
    """Requests a second, whole and streamed, as fast as they are answered."""
    found = {}
    for name, stream in (("whole", False), ("streamed", True)):

        def body(number: int, stream: bool = stream) -> dict[str, Any]:
            return chat(number, tokens, stream=stream)

        before_s = processor_s(system.pids)
        _, took_s = await _load(system, body, connections=connections, requests=requests)
        found[name] = {
            "requests_per_s": round(requests / took_s, 1),
            "processor_ms": round((processor_s(system.pids) - before_s) / requests * 1e3, 3),
        }
    return found


async def _at_rest(system: System) -> float:
    """What the API's processes have had of the processors once they have done what they put off
    (usage that is stored after the answer): it is part of the price."""
    before_s = processor_s(system.pids)
    while True:
        await asyncio.sleep(_REST_S)
        now_s = processor_s(system.pids)
        if now_s - before_s < _REST_SHARE * _REST_S:
            return now_s
        before_s = now_s


async def _load(
    system: System, body: Callable[[int], dict[str, Any]], *, connections: int, requests: int
) -> tuple[Seen, float]:
    return await load(
        system.target, body, connections=connections, requests=requests, stamps=system.stamps
    )


def _rounded(value: float | None) -> float:
    return round(value or 0.0, 2)
