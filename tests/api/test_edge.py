"""The order at the edge, over every route there is: key, scope, size, limits, and only then the
body. Every refusal here is of a request whose body nobody has read."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from starlette.types import Message

from api_harness import ADMIN_KEY, Api, TestTenant
from described import document
from people import signed_in
from served_api import served
from tenora_bench.edge import PATHS, send_body
from tenora_platform.auth import SCOPES
from tenora_platform.bodies import LINGER_BYTES
from tenora_platform.edge import BODY_BYTES_MAX, EdgeRoute, before_body
from tenora_platform.idempotency.layer import WITHOUT

Routes = list[tuple[str, str]]
PUBLIC = {
    "/healthz",
    "/version",
    "/readyz",
    "/metrics",
    "/.well-known/tenora-keys.json",
    "/auth/methods",
    "/auth/login",
    "/auth/callback",
    "/auth/invitations/look",  # its link is what it is asked by
}
"""What answers without a key; all others must not."""
GIB = 1024**3


def routes() -> Routes:
    paths = document()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


ROUTES = routes()
SIGN_IN = ("POST", "/auth/session")
"""Reads a small body, in which the key is."""
CLOSED = [
    (method, path) for method, path in ROUTES if path not in PUBLIC and (method, path) != SIGN_IN
]
ADMIN = [(method, path) for method, path in CLOSED if path.startswith("/admin/")]
PEOPLES = ("/auth/", "/v1/people", "/v1/invitations")
"""What is of people and their sessions takes no key at all."""
KEYED = [(method, path) for method, path in CLOSED if not path.startswith(PEOPLES)]
TENANT = [(method, path) for method, path in KEYED if not path.startswith("/admin/")]
EITHER = {"/v1/me"}
"""What any valid key may ask, an admin key too."""


@dataclasses.dataclass
class Answer:
    """What came of a request, and how much of its body was read to say so."""

    status: int
    headers: dict[str, str]
    body: bytes
    read_bytes: int  # before the answer's head was out
    thrown_bytes: int  # after it

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


async def ask(
    api: Api,
    method: str,
    path: str,
    key: str | None = None,
    *,
    declared: int | None = GIB,
    kind: str | None = "application/json",
    more: Sequence[tuple[bytes, bytes]] = (),
) -> Answer:
    """A request with an endless body: of `declared` bytes, or (None) chunked."""
    length = b"transfer-encoding" if declared is None else b"content-length"
    headers = [(length, b"chunked" if declared is None else str(declared).encode()), *more]
    if kind is not None:
        headers.append((b"content-type", kind.encode()))
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    said: list[Message] = []
    read = [0, 0]

    async def receive() -> Message:
        read[bool(said)] += 65_536
        return {"type": "http.request", "body": b" " * 65_536, "more_body": True}

    async def send(message: Message) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "http_version": "1.1",
    }
    await api.app(scope, receive, send)
    heads = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in said[1:])
    return Answer(said[0]["status"], heads, body, *read)


def is_unread(answer: Answer) -> bool:
    closes = answer.headers.get("connection") == "close"
    return answer.read_bytes == 0 and answer.thrown_bytes <= LINGER_BYTES + 65_536 and closes


@pytest.fixture(scope="module")
async def paths(api: Api, tenant: TestTenant) -> Callable[[str], str]:
    """A path that a client could ask for: with an upload that is open, and names of nothing."""
    made = await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 1000})
    upload = made.json()["id"]
    return lambda path: path.replace("{upload_id}", upload).replace("{", "").replace("}", "")


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    await api.put_plan("edge", {"adapter_bytes": 3_000_000})
    return await api.new_tenant("edge", plan="edge", scopes=list(SCOPES))


@pytest.mark.parametrize("key", [None, "tn_nobody", "nonsense"])
@pytest.mark.parametrize("declared", [GIB, None])
async def test_nothing_is_read_without_a_key(
    api: Api, paths: Callable[[str], str], key: str | None, declared: int | None
) -> None:
    for method, path in CLOSED:
        for kind in ("application/json", "multipart/form-data; boundary=b", None):
            answer = await ask(api, method, paths(path), key, declared=declared, kind=kind)
            assert answer.status == 401, (method, path)
            assert is_unread(answer), (method, path, answer)


@pytest.mark.parametrize("path", [*sorted(PUBLIC), "/", "/usage", "/nothing", "/v1/x", "/admin/x"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "QUERY"])
async def test_nothing_is_read_where_nobody_asks_for_it(api: Api, method: str, path: str) -> None:
    answer = await ask(api, method, path)
    assert answer.status in (200, 404, 405, 413, 503)  # a page of the portal may be built
    assert is_unread(answer), answer


async def test_nothing_is_read_for_a_key_of_the_wrong_kind(
    api: Api, tenant: TestTenant, paths: Callable[[str], str]
) -> None:
    for key, closed in ((tenant.key, ADMIN), (ADMIN_KEY, TENANT)):
        for method, path in closed:
            answer = await ask(api, method, paths(path), key)
            assert answer.status == 403 or path in EITHER, (method, path)
            assert is_unread(answer), (method, path)


async def test_nothing_is_read_without_the_scope(
    api: Api, tenant: TestTenant, paths: Callable[[str], str]
) -> None:
    """One scope opens a route, or any key does; with every other one it is 403, unread."""
    path, keys = f"/admin/v1/tenants/{tenant.id}/api_keys", {}
    for scope in SCOPES:
        made = await api.admin("POST", path, json={"scopes": [scope]})
        keys[scope] = made.json()["key"]
    opened: dict[str, int] = Counter()
    for method, each in TENANT:
        answers = {scope: await ask(api, method, paths(each), key) for scope, key in keys.items()}
        assert all(is_unread(answer) for answer in answers.values()), (method, each)
        passed = [scope for scope, answer in answers.items() if answer.status != 403]
        assert len(passed) in (1, len(SCOPES)), (method, each, passed)
        refused = [answer.code for scope, answer in answers.items() if scope not in passed]
        assert set(refused) <= {"insufficient_scope"}
        if refused:
            opened[passed[0]] += 1
    assert set(opened) == set(SCOPES)
    assert opened["adapters"] > 10


async def test_nothing_is_read_without_the_role(api: Api, paths: Callable[[str], str]) -> None:
    refused = 0
    for role in ("operator", "billing", "read_only", "metrics"):
        made = await api.admin("POST", "/admin/v1/admin_keys", json={"name": role, "role": role})
        for method, path in ADMIN:
            answer = await ask(api, method, paths(path), made.json()["key"])
            assert (answer.status, answer.code) in (
                (403, "insufficient_role"),
                (413, "request_too_large"),
            ), (role, method, path)
            assert is_unread(answer), (role, method, path)
            refused += answer.status == 403
    assert refused > len(ADMIN)


def key_for(path: str, tenant: TestTenant) -> str:
    return ADMIN_KEY if path.startswith("/admin/") else tenant.key


async def test_a_body_beyond_its_routes_size_is_refused_unread(
    api: Api, tenant: TestTenant, paths: Callable[[str], str]
) -> None:
    person = await signed_in(api, (tenant.id, "owner"))
    more = [(name.encode(), value.encode()) for name, value in person.headers.items()]
    for method, path in CLOSED:
        if (method, path) in KEYED:
            answer = await ask(api, method, paths(path), key_for(path, tenant))
        else:
            answer = await ask(api, method, paths(path), more=more)
        assert answer.status == 413, (method, path)
        assert is_unread(answer), (method, path)


SIZES = {
    "/v1/chat/completions": 8 * 1024**2,
    "/v1/completions": 8 * 1024**2,
    "/v1/responses": 8 * 1024**2,
    "/v1/messages": 8 * 1024**2,
    "/v1/messages/count_tokens": 8 * 1024**2,
    "/v1/embeddings": 8 * 1024**2,
    "/v1/tokenize": 8 * 1024**2,
    "/v1/detokenize": 8 * 1024**2,
    "/v1/adapters": 3_400_000,  # what the plan stores, and the form
    "/v1/adapters/preflight": 1_400_000,
    "/v1/evaluations": 8 * 1024**2,
    "/v1/uploads/{upload_id}/parts": 67_000,  # of an upload of 1,000 bytes
}


async def test_a_body_of_unknown_length_is_read_up_to_its_routes_size(
    api: Api, tenant: TestTenant, paths: Callable[[str], str]
) -> None:
    reading = [(method, path) for method, path in KEYED if method != "GET"]
    for method, path in reading:
        key = key_for(path, tenant)
        most = SIZES.get(path, BODY_BYTES_MAX) if method == "POST" else BODY_BYTES_MAX
        for kind in ("application/json", None):
            answer = await ask(api, method, paths(path), key, declared=None, kind=kind)
            assert answer.status in (400, 413) or not answer.read_bytes, (method, path, answer)
            assert answer.read_bytes <= most + 65_536, (method, path)


async def test_nothing_is_read_beyond_the_limits(api: Api) -> None:
    """No request a minute is allowed: refused before its body, whatever that would hold."""
    await api.put_plan("never", {"requests_per_min": 0})
    never = await api.new_tenant("never", plan="never")
    for path in ("/v1/chat/completions", "/v1/completions"):
        for declared in (1_000_000, None):
            answer = await ask(api, "POST", path, never.key, declared=declared)
            assert answer.status == 429
            assert is_unread(answer)


async def test_a_refusal_reads_nothing_beside_an_idempotency_key(
    api: Api, tenant: TestTenant
) -> None:
    made = await api.admin(
        "POST", f"/admin/v1/tenants/{tenant.id}/api_keys", json={"scopes": ["usage"]}
    )
    key, more = made.json()["key"], [(b"idempotency-key", b"unread")]
    for path in ("/v1/adapters", "/v1/uploads"):
        answer = await ask(api, "POST", path, key, declared=None, more=more)
        assert answer.status == 403
        assert is_unread(answer)
    answer = await ask(api, "POST", "/v1/uploads", tenant.key, more=more)
    assert answer.status == 413
    assert is_unread(answer)


async def test_a_malformed_request_counts(api: Api) -> None:
    """The limit is met before anybody looks at what the body says."""
    await api.put_plan("twice", {"requests_per_min": 2})
    twice = await api.new_tenant("twice", plan="twice")
    statuses = [
        (await api.call(twice.key, "POST", "/v1/chat/completions", content=b"{")).status_code
        for _ in range(3)
    ]
    assert statuses == [400, 400, 429]


async def test_storage_that_is_full_refuses_unread(api: Api) -> None:
    await api.put_plan("full", {"adapters": 2, "adapter_bytes": 1000})
    full = await api.new_tenant("full", plan="full")
    await api.call(full.key, "POST", "/v1/uploads", json={"bytes": 900})
    answer = await ask(api, "POST", "/v1/adapters", full.key, declared=1_000_000)
    assert (answer.status, answer.code) == (413, "adapter_storage_exceeded")
    assert is_unread(answer)


def test_every_route_is_of_the_edge(api: Api) -> None:
    """A route of another class could not read its body, and would ask for the key too late."""
    described = {(method, path) for method, path in ROUTES}
    for found in iter_route_contexts(api.app.routes):
        for method in found.methods or ():
            if (method, found.path) in described:
                assert isinstance(found.original_route, EdgeRoute), found.path
                checks = {check.__name__ for check in before_body(found.original_route.dependant)}
                path = found.path or ""
                generates = method == "POST" and path.startswith(WITHOUT)
                generates = generates and not path.endswith("/cancel")
                assert ("admitted_tenant" in checks) == generates


async def test_a_large_keyless_body_gets_its_401_over_a_socket(api: Api) -> None:
    async def much() -> AsyncIterator[bytes]:
        for _ in range(4000):
            yield b"x" * 100_000

    async with served(api) as url, httpx.AsyncClient(timeout=20) as web:
        try:
            status = (await web.post(f"{url}/chat/completions", content=much())).status_code
        except httpx.TransportError:  # cut off in the middle of sending, which is as well
            status = 401
        assert status == 401
        assert (await web.get(url.replace("/v1", "/healthz"))).status_code == 200


async def test_a_client_that_sends_first_reads_why_it_was_refused(api: Api) -> None:
    """Ten megabytes are more than the kernel holds: closed on at once, the client would meet a
    reset while it sends, and never see the answer."""

    def send(port: int) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("POST", "/v1/chat/completions", b" " * 10_000_000)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())["error"]["code"]
        finally:
            connection.close()

    async with served(api) as url:
        port = httpx.URL(url).port
        assert port is not None
        assert await asyncio.to_thread(send, port) == (401, "missing_api_key")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_server_takes_little_of_a_keyless_body(api: Api, chunked: bool) -> None:
    """As much as the kernel holds and LINGER_BYTES, of 256 MiB; `tenora bench edge` looks at its
    memory meanwhile."""

    def send(port: int) -> int:
        cases = [(path, kind) for path in PATHS.values() for kind in ("application/json", None)]
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(send_body, port, "POST", *case, chunked, 2**28) for case in cases]
            return max(each.result() for each in asked)

    async with served(api) as url:
        port = httpx.URL(url).port
        assert port is not None
        assert await asyncio.to_thread(send, port) < 2**25


async def test_the_rest_of_a_small_body_does_not_end_the_connection(
    api: Api, tenant: TestTenant
) -> None:
    """What fits the connection's buffer is thrown away there; the client goes on with it."""
    async with served(api) as url, httpx.AsyncClient(timeout=20) as http:
        more: dict[str, Any] = {"headers": {"authorization": f"Bearer {tenant.key}"}}
        for _ in range(3):
            answer = await http.request("GET", f"{url}/models", content=b"x" * 60_000, **more)
            assert answer.status_code == 200
            assert "connection" not in answer.headers
