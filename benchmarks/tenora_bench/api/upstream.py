"""The least server of OpenAI's chat API that a proxy can stand before: stamped words at the pace
that the request's seed says, or at once. `python -m tenora_bench.api.upstream PORT MODEL`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, cast

import httptools
import uvloop

from tenora_bench.api.pretend_engine import vocabulary
from tenora_bench.api.stamps import Stamps, stamp_tokens
from tenora_engine.text.processor import TextProcessor


class _Connection(asyncio.Protocol):
    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._body:  # is it there?
            self._transport.write(_whole({"status": "ok"}))
            return
        task = asyncio.create_task(self._answer(json.loads(self._body)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, asked: dict[str, Any]) -> None:
        tokens, pace_us = asked.get("max_tokens", 16), asked.get("seed") or 0
        common = {"id": "chatcmpl-1", "created": int(time.time()), "model": asked["model"]}
        usage = {
            "prompt_tokens": 70,
            "completion_tokens": tokens,
            "total_tokens": 70 + tokens,
        }
        if not asked.get("stream"):
            await _next(pace_us)
            message = {"role": "assistant", "content": self._word() * tokens}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            whole = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            self._transport.write(_whole(whole))
            return
        chunk = {**common, "object": "chat.completion.chunk"}
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + _event(chunk, {"role": "assistant"}, None)
        )
        for _ in range(tokens):
            await _next(pace_us)
            self._transport.write(_event(chunk, {"content": self._word()}, None))
        last = _event(chunk, {}, "length") + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self._transport.write(last)

    def _word(self) -> str:
        return self._stamps.word_at(time.monotonic_ns())


async def _next(pace_us: int) -> None:
    """Until the next of the moments that all of one pace share."""
    if pace_us:
        await asyncio.sleep(pace_us / 1e6 - time.monotonic_ns() / 1e9 % (pace_us / 1e6))


def _whole(answer: dict[str, Any]) -> bytes:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _event(chunk: dict[str, Any], delta: dict[str, str], reason: str | None) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
    return _framed(b"data: " + json.dumps({**chunk, "choices": choices}).encode() + b"\n\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(port: int, model: str) -> None:
    stamps = Stamps(list(stamp_tokens(vocabulary(TextProcessor(model))).values()))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(stamps), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
