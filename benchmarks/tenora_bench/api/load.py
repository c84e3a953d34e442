"""Load on a server of OpenAI's API, cheap enough to share the machine with it: HTTP/1.1 by hand on
connections that are kept. Knows bodies as bytes, and how old a stamped word is when it arrives."""

from __future__ import annotations

import asyncio
import json
import re
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

from tenora_bench.api.stamps import Stamps
from tenora_bench.client import BenchError

_TEXT = re.compile(rb'"(?:content|text)": ?"((?: [A-Za-z0-9]+)+)"')
_ANSWER_MAX_S = 60.0
_HOST = "127.0.0.1"


@dataclass
class Seen:
    """What all connections saw together."""

    requests: int = 0
    words: int = 0
    errors: list[str] = field(default_factory=list)
    ages_ms: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True)
class Target:
    """A server under load, by whose keys, taken in turn, and under which name it is asked."""

    port: int
    keys: tuple[str, ...]
    model: str


def request_bytes(target: Target, number: int, body: dict[str, Any]) -> bytes:
    """The number-th request: a POST of /v1/chat/completions."""
    content = json.dumps({"model": target.model, **body}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {_HOST}:{target.port}\r\n"
        f"authorization: Bearer {target.keys[number % len(target.keys)]}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, seen: Seen, stamps: Stamps) -> None:
        self._seen = seen
        self._stamps = stamps
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answered: asyncio.Future[None] | None = None
        self._text = b""

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes) -> None:
        """Send it and wait for the end of its answer, which `seen` takes in."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._answered = asyncio.get_running_loop().create_future()
        self._text = b""
        self._transport.write(request)
        async with asyncio.timeout(_ANSWER_MAX_S):
            await self._answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection was closed in an answer")

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        assert self._parser is not None
        self._parser.feed_data(data)
        whole, separator, rest = self._text.rpartition(b"\n\n")
        if separator:
            self._text = rest
            self._note(whole, now_ns)

    def on_body(self, body: bytes) -> None:
        self._text += body

    def on_message_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        self._note(self._text, time.monotonic_ns())
        said = self._text[:300]
        self._text = b""
        if not self._parser.should_keep_alive():
            self.close()
        self._end("" if status == 200 else f"{status} {said!r}")

    def _note(self, data: bytes, now_ns: int) -> None:
        for text in _TEXT.findall(data):
            ages = self._stamps.ages_ms(text.decode(), now_ns)
            self._seen.words += len(ages)
            self._seen.ages_ms.extend(ages)
        if b'data: {"error"' in data:  # in the middle of a stream
            self._seen.errors.append(data[:300].decode(errors="replace"))

    def _end(self, error: str) -> None:
        answered, self._answered = self._answered, None
        if answered is None or answered.done():
            return
        if error:
            self._seen.errors.append(error)
        self._seen.requests += 1
        answered.set_result(None)


async def load(
    target: Target,
    bodies: Callable[[int], dict[str, Any]],
    *,
    connections: int,
    requests: int,
    stamps: Stamps,
) -> tuple[Seen, float]:
    """Send `requests`, the number-th with `bodies(number)`, one after the other on each connection.
    Returns what was seen and the seconds it took. Raises BenchError if any failed."""
    seen = Seen()
    turns = iter(range(requests))
    # Made before the clock runs: they are the load's own cost.
    texts = [request_bytes(target, number, bodies(number)) for number in range(requests)]
    loop = asyncio.get_running_loop()

    async def client() -> None:
        connection: _Connection | None = None
        for turn in turns:
            if connection is None or not connection.open:
                _, connection = await loop.create_connection(
                    lambda: _Connection(seen, stamps), _HOST, target.port
                )
            await connection.ask(texts[turn])
        if connection is not None:
            connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    took_s = time.perf_counter() - started
    if seen.errors:
        raise BenchError(f"{len(seen.errors)} requests failed: {seen.errors[0]}")
    return seen, took_s
