"""What uploads that mean harm cost another tenant: its time to the first token, alone and beside
them, in turns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp

from tenora_bench.intake.client import How, Uploader
from tenora_bench.intake.files import File, harmful
from tenora_bench.kills.platform import Pretend, up
from tenora_bench.machine import machine
from tenora_engine.priority import stand_behind

_VICTIM, _ATTACKER, _NAME = "acme", "globex", "harmful"


def measure_neighbours(
    scratch: Path,
    model: Path,
    *,
    rounds: int,
    requests: int,
    every_s: float,
    pretend: Pretend | None = None,
) -> dict[str, Any]:
    """So many requests a half round; one upload begins each `every_s`. Raises BenchError."""
    with up(scratch, model, pretend) as platform:
        return asyncio.run(_measure(platform.url, platform.keys, model, rounds, requests, every_s))


async def _measure(
    url: str, keys: dict[str, str], model: Path, rounds: int, requests: int, every_s: float
) -> dict[str, Any]:
    times: dict[str, list[float]] = {"alone": [], "beside": []}
    sent = accepted = 0
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(url, timeout=timeout) as victim,
        aiohttp.ClientSession(url, timeout=timeout) as other,
    ):
        uploader = Uploader(other, keys[_ATTACKER])
        await _ask(victim, keys[_VICTIM], 20)  # warm
        for number in range(rounds):
            for name in ("alone", "beside")[:: 1 if number % 2 == 0 else -1]:
                if name == "alone":
                    times[name] += await _ask(victim, keys[_VICTIM], requests)
                    continue
                with _attacker(url, keys[_ATTACKER], model, every_s) as count:
                    times[name] += await _ask(victim, keys[_VICTIM], requests)
                sent += count.value
                accepted += await _accepted(uploader)
    return {
        "machine": machine(),
        "uploads": sent,
        "uploads_accepted": accepted,
        **{f"{name}_{key}": value for name in times for key, value in _of(times[name]).items()},
        "p99_ratio": _of(times["beside"])["p99_ms"] / _of(times["alone"])["p99_ms"],
        "times_ms": times,
    }


@contextlib.contextmanager
def _attacker(url: str, key: str, model: Path, every_s: float) -> Iterator[Any]:
    """A process that uploads, in cores that nobody else wants: its own work is another machine's in
    life. The block is given the count of what it has sent."""
    context = multiprocessing.get_context("spawn")
    count, ready = context.Value("i", 0), context.Event()
    arguments = (url, key, model, every_s, count, ready)
    process = context.Process(target=_attack, args=arguments, daemon=True)
    process.start()
    ready.wait(60)
    try:
        yield count
    finally:
        process.kill()
        process.join()


def _attack(url: str, key: str, model: Path, every_s: float, count: Any, ready: Any) -> None:
    os.setsid()  # Linux shares the cores among sessions first
    stand_behind(19)
    asyncio.run(_come(url, key, model, every_s, count, ready))


async def _come(url: str, key: str, model: Path, every_s: float, count: Any, ready: Any) -> None:
    """For ever: in turn what is refused when checked, and bodies that break off."""
    files: list[tuple[File, How]] = [(file, "form") for file in harmful(model)]
    files += [(file, "broken off") for file, _ in files if len(file.weights) > 10_000]
    ready.set()
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60)) as http:
        uploader = Uploader(http, key)
        for file, how in cycle(files):
            began_s = time.monotonic()
            await uploader.upload(file, _NAME, how)
            count.value += 1
            await asyncio.sleep(max(0.0, every_s - (time.monotonic() - began_s)))


async def _accepted(uploader: Uploader) -> int:
    """How many of them were, once all are checked."""
    async with asyncio.timeout(120):
        while await uploader.waiting():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.2)
    versions = (await uploader.versions()).values()
    await uploader.delete(_NAME)
    return sum(each["state"] == "active" for each in versions if each["name"] == _NAME)


async def _ask(http: aiohttp.ClientSession, key: str, count: int) -> list[float]:
    """Milliseconds to the first token of each of so many requests, one after the other."""
    times = []
    for number in range(count):
        body = {
            "model": "support",
            "prompt": f"Question {number}: how long is the warranty of the kettle?",
            "max_tokens": 4,
            "temperature": 0,
            "stream": True,
        }
        began_s = time.perf_counter()
        headers = {"authorization": f"Bearer {key}"}
        async with http.post("/v1/completions", json=body, headers=headers) as reply:
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    times.append((time.perf_counter() - began_s) * 1000)
                    if "error" in json.loads(line[6:]):
                        raise RuntimeError(line.decode())
                    break
            with contextlib.suppress(aiohttp.ClientError):
                await reply.read()
    return times


def _of(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {"p50_ms": ordered[len(ordered) // 2], "p99_ms": ordered[int(len(ordered) * 0.99)]}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """For a person."""
    yield f"{result['uploads']} uploads came, {result['uploads_accepted']} of them were accepted"
    for name in ("alone", "beside"):
        count = len(result["times_ms"][name])
        p50, p99 = result[f"{name}_p50_ms"], result[f"{name}_p99_ms"]
        yield f"{name}: first token after p50 {p50:.1f} ms, p99 {p99:.1f} ms ({count} requests)"
    yield f"p99 beside uploads over alone: {result['p99_ratio']:.3f}"
