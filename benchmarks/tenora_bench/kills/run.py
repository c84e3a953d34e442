"""Kills and stops in turn, each once the one before is over, and looks what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import aiohttp

from tenora_bench.books import Books
from tenora_bench.client import BenchError
from tenora_bench.kills.load import Load, Outcome, ask, count_errors, under_load
from tenora_bench.kills.platform import LEASE_S, PARTS, Part, Platform, Pretend, processes_of, up
from tenora_bench.kills.verdict import BOUND_S, Event, Found, verdict

_GIVE_UP_S = 90.0
_LOADED_S = 1.0  # of load before each, where nothing else is said, and after the last
_CLIENTS = 3
_PRETEND_CLIENTS = 6
_PACE_US = 4000
"""A pretend engine's from token to token: a request lasts some 70 ms, and most kills meet one."""
_PROBE_S = 5.0  # a probe may have met the very process that is stopped


@dataclass(frozen=True)
class Blow:
    """What is done to which part, after so long of load; `stop_s` is for how long it is stopped."""

    part: Part
    how: Literal["kill", "stop"] = "kill"
    stop_s: float = 0.0
    after_s: float = _LOADED_S


def random_blows(times: int, seed: int) -> list[Blow]:
    """Each part killed and stopped so often, in random order. Stops are of 0.2 to 6 s: shorter and
    longer than a silence that ends a client's requests."""
    chance = Random(seed)
    blows = [Blow(part) for part in PARTS * times]
    blows += [Blow(part, "stop", round(chance.uniform(0.2, 6.0), 1)) for part in PARTS * times]
    chance.shuffle(blows)
    return blows


def random_kills(count: int, seed: int) -> list[Blow]:
    """So many kills, of each part as often as of any other or once more, in random order and at
    random times."""
    chance = Random(seed)
    parts = [PARTS[number % len(PARTS)] for number in range(count)]
    chance.shuffle(parts)
    return [Blow(part, after_s=chance.uniform(0.05, 2.0)) for part in parts]


def measure_kills(
    scratch: Path,
    model: Path,
    blows: Sequence[Blow],
    read_books: Callable[[Path], Books],
    engine_stop_s: float = 0.0,
    bound_s: float = BOUND_S,
    pretend: Pretend | None = None,
) -> dict[str, Any]:
    """Deal the blows under load; stop the engine for `engine_stop_s` at the end (0: do not); see
    what is held one lease later; take the platform down and read the books of its data directory.
    """
    load, found = Load(), Found(bound_s=bound_s)
    with up(scratch, model, pretend) as platform:
        seen = [platform.pid_of(part) for part in PARTS]
        clients, seed = (_CLIENTS, None) if pretend is None else (_PRETEND_CLIENTS, _PACE_US)
        loaded = partial(under_load, platform.url, platform.keys, load, clients, seed)
        asyncio.run(_deal(platform, load, found, blows, engine_stop_s, loaded))
        seen += [platform.pid_of(part) for part in PARTS]
    found.processes_left += processes_of(platform.data_dir, seen)
    books = read_books(platform.data_dir)
    return {
        "events": [asdict(event) for event in found.events],
        "stopped_engine_shown_s": found.shown_s,
        "requests": len(load.outcomes),
        "answered": len(load.answered),
        "errors": count_errors(load.failed),
        "output_tokens_answered": sum((e.usage or {})["completion_tokens"] for e in load.answered),
        "books": books.summary(),
        "held_after": found.held,
        "processes_left": found.processes_left,
        "faults": verdict(load, books, found),
    }


async def _deal(
    platform: Platform,
    load: Load,
    found: Found,
    blows: Sequence[Blow],
    engine_stop_s: float,
    loaded: Callable[[], AbstractAsyncContextManager[None]],
) -> None:
    # Probes have connections of their own: one that is kept might lead to a stopped process.
    async with aiohttp.ClientSession(
        platform.url,
        timeout=aiohttp.ClientTimeout(total=_PROBE_S),
        connector=aiohttp.TCPConnector(force_close=True),
    ) as probe:
        async with loaded():
            for blow in blows:
                await asyncio.sleep(blow.after_s)
                found.events.append(await _blow(platform, load, probe, blow))
            await asyncio.sleep(_LOADED_S)
            if engine_stop_s:
                found.shown_s = await _stop_engine(platform, load, probe, engine_stop_s)
        await asyncio.sleep(LEASE_S + 1)
        for tenant, key in platform.keys.items():
            if held := await _held(probe, key):
                found.held[tenant] = held


async def _blow(platform: Platform, load: Load, probe: aiohttp.ClientSession, blow: Blow) -> Event:
    """Deal it, and time until all is served again: by another process, if it was killed."""
    old, engine = platform.pid_of(blow.part), platform.pid_of("engine")
    if old is None:
        raise BenchError(f"no process serves as {blow.part}")
    if blow.how == "kill":
        os.kill(old, signal.SIGKILL)
    else:
        await _stopped(old, blow.stop_s)
    over_s = time.monotonic()

    async def back() -> bool:
        now = platform.pid_of(blow.part)
        replaced = now not in (None, old) if blow.how == "kill" else now == old
        return replaced and await _serves(platform, load, probe)

    await _until(back)
    back_s = round(time.monotonic() - over_s, 2)
    return Event(blow.part, blow.how, back_s, engine, platform.pid_of("engine"))


async def _stopped(pid: int, stop_s: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(stop_s)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _stop_engine(
    platform: Platform, load: Load, probe: aiohttp.ClientSession, stop_s: float
) -> float:
    """SIGSTOP, and SIGCONT after so long: when `/readyz` says so."""
    pid = platform.pid_of("engine")
    if pid is None:
        raise BenchError("no engine to stop")
    stopped_s = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        await _until(lambda: _ready(probe, wanted=False))
        shown_s = time.monotonic() - stopped_s
        await asyncio.sleep(max(0.0, stop_s - shown_s))
    finally:
        os.kill(pid, signal.SIGCONT)
    await _until(lambda: _serves(platform, load, probe))
    return round(shown_s, 2)


async def _serves(platform: Platform, load: Load, probe: aiohttp.ClientSession) -> bool:
    """Ready; and each tenant is told what only the database knows, and answered by its adapter."""
    try:
        if not await _ready(probe):
            return False
        for key in platform.keys.values():
            for path in ("/v1/adapters", "/v1/limits"):
                async with probe.get(path, headers=_bearer(key)) as reply:
                    if reply.status != 200:
                        return False
            outcome = Outcome()
            await ask(probe, key, outcome, stream=False)
            if outcome.usage is None:
                return False
            load.outcomes.append(outcome)
    except (aiohttp.ClientError, TimeoutError):
        return False
    return True


async def _ready(probe: aiohttp.ClientSession, *, wanted: bool = True) -> bool:
    try:
        async with probe.get("/readyz") as reply:
            return (reply.status == 200) is wanted
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _held(probe: aiohttp.ClientSession, key: str) -> dict[str, Any]:
    """Places and money that nothing runs for."""
    async with probe.get("/v1/limits", headers=_bearer(key)) as reply:
        limits = await reply.json()
    places = limits["parallel_requests"]["used"]
    return {"parallel_requests": places} if places else {}


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_GIVE_UP_S):
        while not await condition():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.1)
