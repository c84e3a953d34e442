"""The load generator against a server that says byte for byte what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tenora_bench.client import Completion, complete, load_session
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.interface import Request
from tenora_bench.peers.openai_server import closed_loop

WANTED = Completion("t", "key", "model", "one", [1, 2, 3], 2)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-tenora-residency: host\r\n"


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


TOKEN = event({"choices": [{"index": 0, "text": "a", "token_ids": [7]}], "usage": None})
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
LAST = event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"


@asynccontextmanager
async def saying(*pieces: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each request with `pieces`, a moment between them, and hangs up."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        asked.append(head + await reader.readexactly(length))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def answered(*pieces: bytes) -> tuple[RequestRecord, list[bytes]]:
    async with saying(*pieces) as (url, asked), load_session(url) as load:
        return await complete(load, WANTED), asked


def chunked(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


@pytest.mark.parametrize("cut", [1, 7, len(TOKEN), len(TOKEN) + 3])
async def test_events_are_timed_however_they_are_cut(cut: int) -> None:
    body = TOKEN + TOKEN + LAST
    pieces = [chunked(body[at : at + cut]) for at in range(0, len(body), cut)]
    if cut == 1:
        pieces = [b"".join(pieces)]
    record, asked = await answered(
        STREAM + b"transfer-encoding: chunked\r\n\r\n", *pieces, b"0\r\n\r\n"
    )
    assert record.error is None
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (3, 2, 1)
    assert record.residency == "host"
    assert len(record.chunk_times_s) == 2
    assert record.token_ids == [7, 7]
    assert record.first_token_s == record.chunk_times_s[0]
    assert record.sent_s < record.chunk_times_s[0] <= record.chunk_times_s[1]
    head, _, sent = asked[0].partition(b"\r\n\r\n")
    assert b"authorization: bearer key" in head.lower()
    assert json.loads(sent)["prompt"] == [1, 2, 3]


async def test_a_refusal_is_recorded_with_its_words() -> None:
    record, _ = await answered(b"HTTP/1.1 429 Slow\r\ncontent-length: 4\r\n\r\nbusy")
    assert record.error == "429: b'busy'"


async def test_an_error_event_is_recorded() -> None:
    failed = event({"error": {"message": "gone"}})
    record, _ = await answered(STREAM + b"\r\n" + TOKEN + failed)
    assert record.error is not None
    assert "gone" in record.error


async def test_a_stream_that_breaks_off_is_a_failure() -> None:
    record, _ = await answered(STREAM + b"transfer-encoding: chunked\r\n\r\n" + chunked(TOKEN))
    assert record.error is not None
    assert len(record.chunk_times_s) == 1


async def test_a_loop_answers_in_the_order_of_its_requests() -> None:
    """However they end: the first waits for the second."""
    ended: asyncio.Queue[None] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        (prompt,) = json.loads(await reader.readexactly(length))["prompt"]
        if prompt == 1:
            await ended.get()
        ids = {"choices": [{"index": 0, "text": "a", "token_ids": [prompt]}]}
        writer.write(STREAM + b"\r\n" + event(ids) + LAST)
        await writer.drain()
        writer.close()
        if prompt == 2:
            ended.put_nowait(None)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        records = await closed_loop(url, [Request([1], None, 1), Request([2], None, 1)], 2, spelt)
    assert [record.token_ids for record in records] == [[1], [2]]


def spelt(request: Request) -> Completion:
    return Completion("t", "key", "model", None, request.prompt, request.output_tokens)


async def test_nobody_there() -> None:
    async with load_session("http://127.0.0.1:1") as load:
        record = await complete(load, WANTED)
    assert record.error is not None
    assert record.error.startswith("ClientConnectorError")
