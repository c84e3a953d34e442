"""Kills the engine, PostgreSQL and Valkey of a `tenora up` under load, times how soon each is back,
and accounts for every request. What it must find, `verdict` says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import httpx

from tenora_bench.books import Books
from tenora_bench.client import BenchError
from tenora_bench.server import free_port, wait_ready

Part = Literal["engine", "postgres", "valkey"]
PARTS: tuple[Part, ...] = ("engine", "valkey", "postgres")
BOUND_S = 15.0
_GIVE_UP_S = 90.0
_LOADED_S = 2.0  # of load before the first kill and after each
_CLIENTS = 3
_OUTPUT_TOKENS = 16
_EXCUSED = {"engine_unavailable", "database_unavailable", "limits_unavailable", "request_aborted"}


@dataclass
class Outcome:
    """One request as its client saw it. `usage` only when it was answered in full."""

    id: str | None = None
    usage: dict[str, int] | None = None
    error: str | None = None  # "503 engine_unavailable"


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


@dataclass(frozen=True)
class Platform:
    """A `tenora up` that runs, and two tenants' keys."""

    url: str
    data_dir: Path
    pid: int
    keys: dict[str, str]

    def pid_of(self, part: Part) -> int | None:
        """The process that serves as `part` now; None between two."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if part == "engine":
                return next(iter(engine_processes(self.pid)), None)
            file = {"postgres": "postgres/data/postmaster.pid", "valkey": "valkey/valkey.pid"}[part]
            return int((self.data_dir / file).read_text().split()[0])
        return None


def measure_kills(
    scratch: Path,
    model: Path,
    order: Sequence[Part],
    read_books: Callable[[Path], Books],
    stop_s: float = 0.0,
) -> dict[str, Any]:
    """Kill the parts in this order, each once the one before is back; stop the engine for `stop_s`
    at the end (0: do not); take the platform down and read the books of its data directory."""
    load = Load()
    with up(scratch, model) as platform:
        seen = {part: platform.pid_of(part) for part in PARTS}
        events, stopped = asyncio.run(_kill_in_turn(platform, load, order, stop_s))
        seen_last = {part: platform.pid_of(part) for part in PARTS}
    left = processes_of(platform.data_dir, [*seen.values(), *seen_last.values()])
    books = read_books(platform.data_dir)
    return {
        "kills": events,
        "stopped": stopped,
        "requests": len(load.outcomes),
        "answered": len(load.answered),
        "errors": _counts(load.failed),
        "output_tokens_answered": sum((e.usage or {})["completion_tokens"] for e in load.answered),
        "books": books.summary(),
        "processes_left": left,
        "faults": verdict(load, books, events, stopped, left),
    }


def verdict(
    load: Load,
    books: Books,
    events: list[dict[str, Any]],
    stopped: dict[str, float] | None,
    left: list[str],
) -> list[str]:
    """What is wrong, in words; empty when nothing was lost, doubled, slow or left behind."""
    faults = [f"{e['part']} was back after {e['back_s']:.1f} s" for e in events if _slow(e)]
    for outcome in load.answered:
        assert outcome.usage is not None
        rows = books.events.get(outcome.id or "", [])
        wanted = [(outcome.usage["prompt_tokens"], outcome.usage["completion_tokens"])]
        if rows != wanted:
            faults.append(f"{outcome.id} was answered with {wanted} and stored as {rows}")
    answered = {outcome.id for outcome in load.answered}
    broken_off = {outcome.id for outcome in load.failed if outcome.id}
    others = [key for key in books.events if key not in answered and key not in broken_off]
    nameless = sum(outcome.id is None for outcome in load.failed)
    if len(others) > nameless:
        faults.append(f"{len(others)} events belong to none of our requests: {others[:5]}")
    faults += [f"{key} has {len(rows)} events" for key, rows in books.events.items() if rows[1:]]
    unexcused = sorted(set(_counts(load.failed)) - {f"503 {code}" for code in _EXCUSED})
    faults += [f"requests ended with {error}" for error in unexcused]
    faults += books.faults()
    if stopped is not None and stopped["shown_s"] > 5:
        faults.append(f"a stopped engine showed after {stopped['shown_s']:.1f} s")
    return faults + [f"still runs: {process}" for process in left]


def _slow(event: dict[str, Any]) -> bool:
    return bool(event["back_s"] > BOUND_S)


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    errors = [outcome.error or "none" for outcome in outcomes]
    return {error: errors.count(error) for error in sorted(set(errors))}


async def _kill_in_turn(
    platform: Platform, load: Load, order: Sequence[Part], stop_s: float
) -> tuple[list[dict[str, Any]], dict[str, float] | None]:
    async with _under_load(platform, load) as http:
        await asyncio.sleep(_LOADED_S)
        events = [await _kill(platform, http, part) for part in order]
        stopped = await _stop_engine(platform, http, stop_s) if stop_s else None
    return events, stopped


@asynccontextmanager
async def _under_load(platform: Platform, load: Load) -> AsyncIterator[aiohttp.ClientSession]:
    """Requests of two tenants, one after the other from each client, until the block ends; those
    in flight then are waited for."""
    timeout = aiohttp.ClientTimeout(total=180)
    over = asyncio.Event()
    async with aiohttp.ClientSession(platform.url, timeout=timeout) as http:
        clients = [
            asyncio.create_task(_client(platform, http, load, number, over))
            for number in range(_CLIENTS)
        ]
        try:
            yield http
        finally:
            over.set()
            await asyncio.gather(*clients)


async def _client(
    platform: Platform, http: aiohttp.ClientSession, load: Load, number: int, over: asyncio.Event
) -> None:
    keys = list(platform.keys.values())
    while not over.is_set():
        turn = len(load.outcomes)
        outcome = Outcome()
        load.outcomes.append(outcome)
        await ask(http, keys[turn % len(keys)], outcome, stream=number > 0, turn=turn)
        if outcome.error is not None:
            await asyncio.sleep(0.2)


async def ask(
    http: aiohttp.ClientSession, key: str, outcome: Outcome, *, stream: bool, turn: int = 0
) -> None:
    """One completion by the tenant's adapter `support`; what became of it goes into `outcome`."""
    body: dict[str, Any] = {
        "model": "support",
        "prompt": f"Question {turn}: how long is the warranty?",
        "max_tokens": _OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
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
        outcome.error = f"{type(error).__name__}"


def _note(outcome: Outcome, answer: dict[str, Any]) -> None:
    outcome.id = answer.get("id") or outcome.id
    if "error" in answer:
        outcome.error = f"503 {answer['error']['code']}"
    elif answer.get("usage"):
        outcome.usage = answer["usage"]


async def _kill(platform: Platform, http: aiohttp.ClientSession, part: Part) -> dict[str, Any]:
    """Kill it, and time until another one serves both tenants."""
    old = platform.pid_of(part)
    if old is None:
        raise BenchError(f"no process serves as {part}")
    killed_s = time.monotonic()
    os.kill(old, signal.SIGKILL)

    async def back() -> bool:
        return platform.pid_of(part) not in (None, old) and await _serves(platform, http)

    await _until(back)
    back_s = time.monotonic() - killed_s
    await asyncio.sleep(_LOADED_S)
    return {"part": part, "back_s": round(back_s, 2)}


async def _stop_engine(
    platform: Platform, http: aiohttp.ClientSession, stop_s: float
) -> dict[str, float]:
    """SIGSTOP, and SIGCONT after so long: when `/readyz` says so, and when it serves again."""
    pid = platform.pid_of("engine")
    if pid is None:
        raise BenchError("no engine to stop")
    stopped_s = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        await _until(lambda: _ready(http, wanted=False))
        shown_s = time.monotonic() - stopped_s
        await asyncio.sleep(max(0.0, stop_s - shown_s))
    finally:
        os.kill(pid, signal.SIGCONT)
    continued_s = time.monotonic()
    await _until(lambda: _serves(platform, http))
    return {"shown_s": round(shown_s, 2), "back_s": round(time.monotonic() - continued_s, 2)}


async def _serves(platform: Platform, http: aiohttp.ClientSession) -> bool:
    """Ready, and a question that only the database can answer is answered to both tenants."""
    if not await _ready(http):
        return False
    for key in platform.keys.values():
        headers = {"authorization": f"Bearer {key}"}
        for path in ("/v1/adapters", "/v1/limits"):
            async with http.get(path, headers=headers) as reply:
                if reply.status != 200:
                    return False
    return True


async def _ready(http: aiohttp.ClientSession, *, wanted: bool = True) -> bool:
    async with http.get("/readyz") as reply:
        return (reply.status == 200) is wanted


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_GIVE_UP_S):
        while not await condition():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.1)


@contextmanager
def up(scratch: Path, model: Path) -> Iterator[Platform]:
    """`tenora up` on a free port with its demo tenants, without limits on their requests."""
    data, port = scratch / "data", free_port()
    scratch.mkdir(parents=True, exist_ok=True)
    log = scratch / "up.log"
    command = [sys.executable, "-m", "tenora_platform.cli.main", "up", "--port", str(port)]
    command += ["--data-dir", str(data), "--model", str(model)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process, log, timeout_s=300)
        tenants = _demo_tenants(data, process, log)
        _lift_limits(url, (data / "admin_key").read_text().strip(), tenants)
        keys = {name: str(tenant["key"]) for name, tenant in tenants.items()}
        yield Platform(url, data, process.pid, keys)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _demo_tenants(data: Path, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if (data / "demo.json").exists():
            tenants: dict[str, Any] = json.loads((data / "demo.json").read_text())
            return tenants
        time.sleep(0.2)
    raise BenchError(f"no demo tenants:\n{log.read_text()[-3000:]}")


def _lift_limits(url: str, admin_key: str, tenants: dict[str, Any]) -> None:
    headers = {"authorization": f"Bearer {admin_key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        http.put("/admin/v1/plans/kills", json={}).raise_for_status()
        for tenant in tenants.values():
            path = f"/admin/v1/tenants/{tenant['id']}"
            http.patch(path, json={"plan": "kills"}).raise_for_status()


def engine_processes(pid: int) -> list[int]:
    """The engine processes among the children of `pid` (Linux)."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if b"tenora_engine.transport" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def processes_of(data_dir: Path, known: Sequence[int | None]) -> list[str]:
    """Processes that still run on the data directory or are among `known` (Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            at_home = str(data_dir) in f"{command} {(folder / 'cwd').readlink()}"
            if int(folder.name) != os.getpid() and (at_home or int(folder.name) in known):
                found.append(f"{folder.name} {command}")
    return found
