"""What strangers can cost a server: bodies without a key against its memory, connections that never
ask against the time of those that do. Real sockets, a real server; knows HTTP as bytes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tenora_bench.api.load import Target, request_bytes
from tenora_bench.api.platform import platform
from tenora_bench.api.pretend_engine import vocabulary
from tenora_bench.api.stamps import Stamps, stamp_tokens
from tenora_bench.machine import machine
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport.address import EngineAddress

AddressOf = Callable[[str, str], EngineAddress]

PATHS = {
    "inference": "/v1/chat/completions",
    "upload": "/v1/adapters",
    "part": "/v1/uploads/x/parts",
    "keys": "/v1/api_keys",
    "admin": "/admin/v1/tenants",
    "unknown": "/v1/nothing",
    "page": "/usage",
    "probe": "/healthz",
    "metrics": "/metrics",
}
KINDS = (
    "application/json",
    "multipart/form-data; boundary=b",
    "application/x-www-form-urlencoded",
    "application/octet-stream",
    None,
)
AT_ONCE = 8
CLIENTS = 4
REQUESTS = 1500
_HOST = "127.0.0.1"
_PIECE = b"x" * 2**20


def measure_edge(
    scratch: Path, model: Path, address_of: AddressOf, *, rounds: int, body_bytes: int, idle: int
) -> dict[str, Any]:
    """One API process at a pretend engine. Raises BenchError."""
    stamps = Stamps(list(stamp_tokens(vocabulary(TextProcessor(model))).values()))
    folder, secret = scratch / "edge", secrets.token_hex(32)
    folder.mkdir(parents=True)
    address = address_of(f"ipc://{folder.resolve() / 'engine.sock'}", secret)
    with platform(folder, model, secret, address, stamps, 1) as system:
        target, pid = system.target, system.pids[0]
        asyncio.run(_latency(target, REQUESTS))  # warm
        turns = [asyncio.run(_round(target, number, idle)) for number in range(rounds)]
        memory = keyless_bodies(target.port, pid, body_bytes)
    medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return {
        "machine": machine(),
        "keyless_bodies": memory,
        "rounds": turns,
        "medians": medians,
        "p99_ratio": medians["beside_p99_ms"] / medians["alone_p99_ms"],
    }


def keyless_bodies(port: int, pid: int, body_bytes: int) -> dict[str, Any]:
    """A body of so many bytes to every kind of route, of every content type, declared and chunked,
    AT_ONCE together; by how much the process's resident memory rose at most, in bytes."""
    cases = [
        (method, path, kind, chunked)
        for name, path in PATHS.items()
        for method in (("POST", "GET") if name in ("page", "probe", "metrics") else ("POST",))
        for kind in KINDS
        for chunked in (False, True)
    ]
    before = resident_bytes(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(send_body, port, *case, body_bytes) for case in cases]
        sent = [each.result() for each in asked]
    return {
        "requests": len(cases),
        "body_bytes": body_bytes,
        "most_sent_bytes": max(sent),
        "resident_bytes": before,
        "raised_bytes": resident_bytes(pid, "VmHWM") - before,
    }


def resident_bytes(pid: int, what: str) -> int:
    """`VmRSS` (now) or `VmHWM` (the most since its start, or since it was cleared)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


def send_body(
    port: int, method: str, path: str, kind: str | None, chunked: bool, body_bytes: int
) -> int:
    """How much of it was sent before the server closed the connection."""
    head = f"{method} {path} HTTP/1.1\r\nhost: {_HOST}\r\n"
    head += f"content-type: {kind}\r\n" if kind else ""
    head += "transfer-encoding: chunked\r\n" if chunked else f"content-length: {body_bytes}\r\n"
    piece = f"{len(_PIECE):x}\r\n".encode() + _PIECE + b"\r\n" if chunked else _PIECE
    sent = 0
    connection = socket.create_connection((_HOST, port), timeout=30)
    with connection, contextlib.suppress(OSError):  # closed in the middle, as it should be
        connection.sendall(head.encode() + b"\r\n")
        while sent < body_bytes:
            connection.sendall(piece)
            sent += len(_PIECE)
    return sent


async def _round(target: Target, number: int, idle: int) -> dict[str, float]:
    """The same load alone and beside the idle connections, every other time in reverse."""
    found: dict[str, float] = {}
    for name in ("alone", "beside")[:: 1 if number % 2 == 0 else -1]:
        async with _half_open(target.port, idle if name == "beside" else 0):
            times_ms = await _latency(target, REQUESTS)
        found |= {f"{name}_{key}": value for key, value in _percentiles(times_ms).items()}
    return found


def _percentiles(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {"p50_ms": ordered[len(ordered) // 2], "p99_ms": ordered[int(len(ordered) * 0.99)]}


async def _latency(target: Target, count: int) -> list[float]:
    """Of `count` answers of one token, by CLIENTS connections one after the other."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": False}
    request, left, times_ms = request_bytes(target, 0, body), iter(range(count)), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(_HOST, target.port)
        for _ in left:
            began = time.perf_counter()
            writer.write(request)
            await _read_answer(reader)
            times_ms.append((time.perf_counter() - began) * 1000)
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return times_ms


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head[:200]
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(lengths[0].split(b":")[1]))


@asynccontextmanager
async def _half_open(port: int, count: int) -> AsyncIterator[None]:
    """So many connections that have sent nothing, or half of a head; one that the server cuts is
    opened anew. All are open when the block begins."""
    opened = asyncio.Semaphore(0)

    async def stay(number: int) -> None:
        first = True
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(_HOST, port)
                if number % 2:
                    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
                if first:
                    opened.release()
                    first = False
                await reader.read()
                writer.close()

    staying = [asyncio.create_task(stay(number)) for number in range(count)]
    try:
        for _ in range(count):
            await opened.acquire()
        yield
    finally:
        for task in staying:
            task.cancel()
        await asyncio.gather(*staying, return_exceptions=True)


def lines(result: dict[str, Any]) -> Iterator[str]:
    """For a person."""
    memory = result["keyless_bodies"]
    yield (
        f"{memory['requests']} keyless bodies of {memory['body_bytes'] / 2**30:.2f} GiB: resident"
        f" memory rose by {memory['raised_bytes'] / 2**20:.1f} MiB at most; of one,"
        f" {memory['most_sent_bytes'] / 2**20:.0f} MiB could be sent"
    )
    medians = result["medians"]
    for name in ("alone", "beside"):
        yield f"{name}: p50 {medians[f'{name}_p50_ms']:.2f} ms, p99 {medians[f'{name}_p99_ms']:.2f}"
    yield f"p99 beside idle connections over alone: {result['p99_ratio']:.3f}"
