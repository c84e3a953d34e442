"""Bodies at the edge: nothing of one is read before the key is known, and never more than its route
takes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message

from api_harness import ADMIN_KEY, Api
from served_api import served
from tenora_platform.bodies import MANAGEMENT_BYTES_MAX, PART_BYTES_MAX, body_bytes_max
from tenora_platform.registry import uploads

ROUTES = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/adapters",
    "/v1/uploads/u/parts",
    "/v1/api_keys",
    "/admin/v1/tenants",
]


@pytest.mark.parametrize("key", [None, "tn_nobody", "nonsense"])
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("declared", [b"500000000", None])
async def test_nothing_is_read_without_a_key(
    api: Api, path: str, key: str | None, declared: bytes | None
) -> None:
    """Not one message is asked for before the answer is out; after it, little is thrown away."""
    length = (
        (b"transfer-encoding", b"chunked") if declared is None else (b"content-length", declared)
    )
    headers = [(b"content-type", b"application/json"), length]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    said: list[Message] = []
    read = 0

    async def receive() -> Message:
        nonlocal read
        assert said, "the body was read before the key was asked for"
        read += 65_536
        return {"type": "http.request", "body": b"x" * 65_536, "more_body": True}

    async def send(message: Message) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "http_version": "1.1",
    }
    await api.app(scope, receive, send)
    assert said[0]["status"] == 401
    assert (b"connection", b"close") in said[0]["headers"]
    assert read <= 1024**2


async def test_a_large_keyless_body_gets_its_401_over_a_socket(api: Api) -> None:
    async def much() -> AsyncIterator[bytes]:
        for _ in range(4000):
            yield b"x" * 100_000

    async with served(api) as url, httpx.AsyncClient(timeout=20) as http:
        try:
            status = (await http.post(f"{url}/chat/completions", content=much())).status_code
        except httpx.TransportError:  # cut off in the middle of sending, which is as well
            status = 401
        assert status == 401
        assert (await http.get(url.replace("/v1", "/healthz"))).status_code == 200


async def test_a_body_has_the_size_of_its_route(api: Api) -> None:
    """Whatever the content type says of it."""
    tenant = await api.new_tenant()
    for path, most in (("/v1/completions", 8 * 1024**2), ("/v1/api_keys", MANAGEMENT_BYTES_MAX)):
        for kind in ("application/json", "multipart/form-data; boundary=b", "text/plain"):
            content = b" " * (most + 1)
            headers = {"content-type": kind}
            answer = await api.call(tenant.key, "POST", path, content=content, headers=headers)
            assert answer.status_code == 413, (path, kind)
    within = await api.call(
        ADMIN_KEY, "POST", "/admin/v1/tenants", content=b" " * MANAGEMENT_BYTES_MAX
    )
    assert within.status_code == 400


def test_uploads_have_their_own_sizes(api: Api) -> None:
    settings = api.state.settings
    assert body_bytes_max(settings, "/v1/adapters") == settings.max_upload
    assert body_bytes_max(settings, "/v1/uploads/u/parts") == PART_BYTES_MAX
    assert uploads.PART_BYTES_MAX < PART_BYTES_MAX  # with room for the form around it
