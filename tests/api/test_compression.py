"""Answers that are worth it come gzipped to who takes them; streams and what is secret never do."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message

from api_harness import Api
from tenora_platform.compression import BYTES_MIN, Compression, accepts

LONG = {"data": ["tenant"] * 400}


async def raw(
    api: Api, path: str, taken: str = "gzip", **more: Any
) -> tuple[httpx.Response, bytes]:
    headers = {"accept-encoding": taken, **more.pop("headers", {})}
    request = api.http.build_request(more.pop("method", "GET"), path, headers=headers, **more)
    answer = await api.http.send(request, stream=True)
    return answer, b"".join([each async for each in answer.aiter_raw()])


async def test_long_answers_are_gzipped_for_who_takes_it(api: Api) -> None:
    tenant = await api.new_tenant()
    for _ in range(4):
        await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "a key"})
    bearer = {"authorization": f"Bearer {tenant.key}"}
    answer, plain = await raw(api, "/v1/api_keys", "identity", headers=bearer)
    assert "content-encoding" not in answer.headers
    assert answer.headers["vary"] == "Accept-Encoding"
    assert len(plain) > BYTES_MIN
    answer, packed = await raw(api, "/v1/api_keys", headers=bearer)
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(packed) < len(plain) / 2
    assert answer.headers["x-request-id"]
    packed_data = json.loads(gzip.decompress(packed))["data"]
    assert [key["id"] for key in packed_data] == [key["id"] for key in json.loads(plain)["data"]]
    answer, _ = await raw(api, "/v1/api_keys", "gzip;q=0", headers=bearer)
    assert "content-encoding" not in answer.headers
    answer, _ = await raw(api, "/v1/api_keys?limit=1", headers=bearer)  # too short
    assert "content-encoding" not in answer.headers


async def test_streams_come_piece_by_piece_as_they_are(api: Api) -> None:
    tenant = await api.new_tenant()
    body = {
        "model": api.engine.model.id,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }
    answer, text = await raw(
        api,
        "/v1/chat/completions",
        method="POST",
        json=body,
        headers={"authorization": f"Bearer {tenant.key}"},
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in answer.headers
    assert text.endswith(b"data: [DONE]\n\n")


async def test_what_signs_in_has_the_length_that_it_has(api: Api) -> None:
    """Beside something that a stranger chose, the gzipped length would tell of the token."""
    tenant = await api.new_tenant("n" * 120)
    answer, _ = await raw(api, "/auth/session", method="POST", json={"key": tenant.key})
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers


async def _pieces(gone: asyncio.Event) -> AsyncIterator[bytes]:
    try:
        while True:
            yield b"data: x\n\n"
            await asyncio.sleep(0.01)
    finally:
        gone.set()


@pytest.mark.parametrize("kind", ["text/event-stream", "application/x-ndjson"])
async def test_a_client_that_goes_away_is_noticed(kind: str) -> None:
    """By the server's message, as without the layer: nothing here waits for an end."""
    gone, leaves = asyncio.Event(), asyncio.Event()

    async def endless(_: Request) -> Response:
        return StreamingResponse(_pieces(gone), media_type=kind)

    app = Compression(Starlette(routes=[Route("/", endless)]))
    sent: list[Message] = []

    async def receive() -> Message:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 4:
            leaves.set()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": [(b"accept-encoding", b"gzip")],
    }
    async with asyncio.timeout(10):
        await app(scope, receive, send)
    assert gone.is_set()
    bodies = [each["body"] for each in sent if each["type"] == "http.response.body"]
    if kind == "text/event-stream":
        assert set(bodies) <= {b"data: x\n\n", b""}


async def test_an_answer_that_fails_before_its_body_is_not_half_sent() -> None:
    """Its head waits for the first of the body, so that the edge can still say what happened."""

    class Failing(JSONResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError

    async def fail(_: Request) -> Response:
        return Failing(LONG)

    starts: list[Message] = []

    async def send(message: Message) -> None:
        starts.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    app = Compression(Starlette(routes=[Route("/", fail)]))
    with pytest.raises(RuntimeError):
        await app(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert [each["status"] for each in starts if "status" in each] in ([], [500])


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, GZIP ;q=0.1", True),
        ("gzip; q=0", False),
        ("gzip;q=0.000, *", False),
        ("*", True),
        ("*;q=0", False),
        ("x-gzipped", False),
    ],
)
def test_what_a_client_takes(header: str, expected: bool) -> None:
    assert accepts(header, "gzip") is expected
