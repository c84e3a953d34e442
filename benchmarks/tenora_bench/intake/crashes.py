"""Uploads of two tenants while every process is killed at random, the checks' own included; then
whether what clients were told, the registry, the store and the quota agree."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import aiohttp
import httpx

from tenora_bench.client import BenchError
from tenora_bench.intake.client import How, Uploaded, Uploader
from tenora_bench.intake.files import File, good, harmful
from tenora_bench.kills.platform import Part, Platform, Pretend, children, up

_CLIENTS = 4
_NAMES = 30
_CHECKS: Literal["checks"] = "checks"
_PLAN = {"requests_per_min": 10**6, "parallel_requests": 1000, "adapter_bytes": 40_000_000}
_HOWS: tuple[tuple[How, int], ...] = (
    ("form", 60),
    ("parts", 20),
    ("broken off", 17),
    ("abandoned", 3),
)
_KILLED: tuple[tuple[Part | Literal["checks"], int], ...] = (
    ("api-1", 3),
    ("api-2", 3),
    ("worker", 4),
    (_CHECKS, 6),
    ("engine", 1),
    ("valkey", 1),
    ("postgres", 1),
)
"""So that most kills meet an upload or a check: without its database, all wait for it."""
_SETTLED_S = 600.0


@dataclass(frozen=True)
class Agreement:
    """What a stopped platform's rows, store and spool say of each other."""

    states: dict[str, tuple[str, list[str]]]  # version -> its state, the codes of its refusal
    owned: int  # objects that rows refer to
    collected: int  # that the collector removed
    unowned: list[str]  # objects that were left and are nobody's
    missing: list[str]  # objects that rows refer to and are not there
    spooled: list[str]
    quota_apart: dict[str, tuple[int, int]]  # tenant -> (bytes counted, bytes in the store)


@dataclass
class Seen:
    """By the clients and by who killed."""

    uploads: list[Uploaded] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    refused: int = 0  # 503, and sent again


def measure_crashes(
    scratch: Path,
    model: Path,
    settle: Callable[[Path], Agreement],
    *,
    uploads: int,
    seed: int,
    pretend: Pretend | None = None,
) -> dict[str, Any]:
    """`settle` reads the data directory of a platform that has stopped. Raises BenchError."""
    seen = Seen()
    with up(scratch, model, pretend) as platform:
        _bound(platform)
        asyncio.run(_upload_and_kill(platform, model, uploads, seed, seen))
    agreement = settle(platform.data_dir)
    states = Counter(state for state, _ in agreement.states.values())
    found = {key: value for key, value in asdict(agreement).items() if key != "states"}
    return {
        "uploads": len(seen.uploads),
        "taken": sum(each.version is not None for each in seen.uploads),
        "answers": dict(Counter(each.answer for each in seen.uploads)),
        "sent_again": seen.refused,
        "kills": dict(seen.kills),
        "seconds": round(seen.seconds, 1),
        "states": dict(states),
        **found,
        "faults": list(_faults(seen, agreement)),
    }


def _bound(platform: Platform) -> None:
    """So that the quota is met."""
    key = (platform.data_dir / "admin_key").read_text().strip()
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=platform.url, headers=headers, timeout=60) as http:
        http.put("/admin/v1/plans/kills", json={"limits": _PLAN}).raise_for_status()


async def _upload_and_kill(
    platform: Platform, model: Path, count: int, seed: int, seen: Seen
) -> None:
    began_s, over = time.monotonic(), asyncio.Event()
    left = iter(range(count))
    files = harmful(model)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(
        platform.url, timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)
    ) as http:
        keys = list(platform.keys.values())
        clients = [
            _client(Uploader(http, keys[number % 2]), model, files, left, seen)
            for number in range(_CLIENTS)
        ]
        killing = asyncio.create_task(_kill(platform, Random(seed), seen, over))
        await asyncio.gather(*clients)
        over.set()
        await killing
        seen.seconds = time.monotonic() - began_s
        for key in keys:
            await _settled(Uploader(http, key))


async def _client(
    uploader: Uploader, model: Path, files: Sequence[File], left: Iterator[int], seen: Seen
) -> None:
    for number in left:
        chance = Random(number)
        how = chance.choices([how for how, _ in _HOWS], [weight for _, weight in _HOWS])[0]
        wrong = how != "abandoned" and chance.random() < 0.25
        file = chance.choice(files) if wrong else good(model, number % 50)
        name = f"a{chance.randrange(_NAMES)}"
        done = await uploader.upload(file, name, how)
        while done.answer.startswith("503"):
            await asyncio.sleep(0.2)
            seen.refused += 1
            done = await uploader.upload(file, name, how)
        seen.uploads.append(done)
        if chance.random() < 0.1 or "exceeded" in done.answer or "limit" in done.answer:
            await uploader.delete(f"a{chance.randrange(_NAMES)}")


async def _kill(platform: Platform, chance: Random, seen: Seen, over: asyncio.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), chance.uniform(0.2, 2.0))
        part = chance.choices([part for part, _ in _KILLED], [weight for _, weight in _KILLED])[0]
        with contextlib.suppress(OSError):  # between two
            pid = _check_of(platform, chance) if part == _CHECKS else platform.pid_of(part)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                seen.kills[part] += 1


def _check_of(platform: Platform, chance: Random) -> int | None:
    """The process that checks are forked from, or a check that runs."""
    worker = platform.pid_of("worker")
    nurseries = [] if worker is None else children(worker, "tenora-checks")
    found = nurseries + [pid for each in nurseries for pid in children(each, "tenora-checks")]
    return chance.choice(found) if found else None


async def _settled(uploader: Uploader) -> None:
    """Nothing waits for a check any more."""
    until_s = time.monotonic() + _SETTLED_S
    while time.monotonic() < until_s:
        with contextlib.suppress(Exception):  # the last kill is a moment ago
            if not await uploader.waiting():
                return
        await asyncio.sleep(0.5)
    raise BenchError(f"uploads still wait for their check after {_SETTLED_S:.0f} s")


def _faults(seen: Seen, agreement: Agreement) -> Iterator[str]:
    """Empty when all agree."""
    for upload in seen.uploads:
        if upload.version is None:
            continue
        if upload.version not in agreement.states:
            yield f"{upload.version} was taken and is not in the registry"
            continue
        state, codes = agreement.states[upload.version]
        wanted = ("active", "revoked") if upload.file.code is None else ("rejected", "revoked")
        if state not in wanted and codes != ["check_crashed"]:
            yield f"{upload.version} ({upload.file.name}) is {state} {codes}"
        if state == "rejected" and upload.file.code not in codes and codes != ["check_crashed"]:
            yield f"{upload.version} ({upload.file.name}) was refused as {codes}"
    yield from (f"nobody's: {name}" for name in agreement.unowned)
    yield from (f"missing: {name}" for name in agreement.missing)
    yield from (f"spooled: {name}" for name in agreement.spooled)
    for tenant, (counted, stored) in agreement.quota_apart.items():
        yield f"{tenant} is counted with {counted} bytes and has {stored}"


def lines(result: dict[str, Any]) -> Iterator[str]:
    """For a person."""
    kills = ", ".join(f"{count} {part}" for part, count in sorted(result["kills"].items()))
    yield f"{result['uploads']} uploads in {result['seconds']} s, {result['taken']} taken"
    yield f"{result['sent_again']} more were refused with 503 and sent again"
    yield f"kills: {sum(result['kills'].values())} ({kills})"
    yield f"answers: {result['answers']}"
    yield f"versions: {result['states']}; {result['owned']} objects owned"
    yield f"{result['collected']} objects without an owner were collected"
    yield from (f"FAULT: {fault}" for fault in result["faults"])
    if not result["faults"]:
        yield "registry, store, spool and quota agree; nothing is orphaned"
