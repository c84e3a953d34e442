"""Every failure has OpenAI's four keys, whoever makes it: routes, validation, the router, a limit
on the body, the engine, or a defect."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from api_harness import Api
from platform_fixtures import MakeApi
from tenora_engine.errors import (
    AdapterLoadError,
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    GrammarsUnavailableError,
    InvalidRequestError,
    ModelLoadError,
    QueueFullError,
)
from tenora_platform.errors import QuotaExceededError, from_engine
from tenora_platform.limits.service import Limits


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error, its shape checked."""
    body = answer.json()
    assert body.keys() == {"error"}, answer.text
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "application/json"
    return error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1", 404),
        ("GET", "/admin/v1/nothing", 404),
        ("POST", "/portal/page", 404),
        ("DELETE", "/v1/limits", 405),
        ("PUT", "/admin/v1/tenants", 405),
        ("GET", "/admin/v1/tenants?limit=0", 400),
        ("GET", "/admin/v1/tenants?limit=x", 400),
        ("GET", "/admin/v1/tenants/none", 404),
        ("PUT", "/admin/v1/plans/Bad%20Name", 400),
    ],
)
async def test_shape(api: Api, method: str, path: str, status: int) -> None:
    answer = await api.admin(method, path, json={} if method in ("PUT", "POST") else None)
    assert answer.status_code == status, answer.text
    error_of(answer)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"null", None),
        (b'{"name": "a", "plan": 1}', "plan"),
        (b'{"name": {"a": 1}}', "name"),
        ('{"name": "\ud800"}'.encode("utf-8", "surrogatepass"), "name"),
    ],
)
async def test_bad_bodies_are_400_and_never_422(api: Api, body: bytes, param: str | None) -> None:
    headers = {"content-type": "application/json"}
    answer = await api.admin("POST", "/admin/v1/tenants", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["param"] == param


async def test_text_that_postgres_cannot_keep_is_the_clients_mistake(api: Api) -> None:
    answer = await api.admin("POST", "/admin/v1/tenants", json={"name": "a\0b"})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "name"
    assert (await api.admin("GET", "/admin/v1/tenants/a%00b")).status_code in (400, 404)


async def test_large_bodies_are_413(make_api: MakeApi) -> None:
    async with make_api() as api:
        declared = await api.admin("POST", "/admin/v1/tenants", json={"name": "x" * 2_000_000})
        assert declared.status_code == 413
        assert error_of(declared)["code"] == "request_too_large"

        async def parts() -> AsyncIterator[bytes]:
            yield b'{"name": "'
            for _ in range(100):
                yield b"x" * 20_000
            yield b'"}'

        headers = {"content-type": "application/json"}
        flowing = await api.admin("POST", "/admin/v1/tenants", content=parts(), headers=headers)
        assert flowing.status_code == 413
        error_of(flowing)


async def test_a_defect_is_a_500_that_names_the_request(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("tenora_platform.tenants.repository.page_of_plans", broken)
    answer = await api.admin("GET", "/admin/v1/plans", headers={"x-request-id": "my-request-7"})
    assert answer.status_code == 500
    error = error_of(answer)
    assert "secret detail" not in answer.text
    assert "my-request-7" in error["message"]
    assert answer.headers["x-request-id"] == "my-request-7"


async def test_request_ids_are_made_or_kept_if_sane(api: Api) -> None:
    made = {(await api.http.get("/healthz")).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    kept = await api.http.get("/healthz", headers={"x-request-id": "abc-1"})
    assert kept.headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 200, "<script>"):
        answer = await api.http.get("/healthz", headers={"x-request-id": bad})
        assert answer.headers["x-request-id"] != bad


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("no", "top_p"), 400, "invalid_value"),
        (ContextLengthError("long"), 400, "context_length_exceeded"),
        (QueueFullError("full", 250), 429, "engine_overloaded"),
        (EngineUnavailableError("gone"), 503, "engine_unavailable"),
        (GrammarsUnavailableError("no process"), 503, "grammars_unavailable"),
        (AdapterLoadError("broken"), 500, "engine_error"),
        (ModelLoadError("broken"), 500, "engine_error"),
    ],
)
def test_the_engines_refusals(error: EngineError, status: int, code: str | None) -> None:
    made = from_engine(error)
    assert (made.status, made.code) == (status, code)
    if isinstance(error, QueueFullError):
        assert made.headers["retry-after-ms"] == "250"
    if isinstance(error, InvalidRequestError):
        assert made.param
    if type(error) is InvalidRequestError:
        assert made.headers["x-should-retry"] == "false"
    if status == 503:
        assert made.headers["retry-after"] == "1"


def test_a_used_up_quota_is_not_retried() -> None:
    quota = QuotaExceededError("The budget is used up.")
    assert quota.status == 429
    assert quota.headers["x-should-retry"] == "false"
    assert quota.body()["error"]["type"] == "insufficient_quota"


async def test_readiness_says_why(make_api: MakeApi, tmp_path: Path) -> None:
    async with make_api() as api:
        assert (await api.http.get("/readyz")).json() == {
            "status": "ready",
            "reason": None,
            "warnings": [],
        }
        assert (await api.http.get("/healthz")).json() == {"status": "ok"}
        await api.engine.stop()
        gone = await api.http.get("/readyz")
        assert gone.status_code == 503
        assert "engine" in gone.json()["reason"]
        refused = await api.admin("GET", "/admin/v1/engine")
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "engine_not_ready"
    async with make_api(redis_url="redis://127.0.0.1:1", limits_fallback_s=0) as api:
        answer = await api.http.get("/readyz")
        assert answer.status_code == 503
        assert "Redis" in answer.json()["reason"]
    async with make_api(database_url="postgresql://nobody@127.0.0.1:1/none") as api:
        answer = await api.http.get("/readyz")
        assert answer.status_code == 503
        assert "database" in answer.json()["reason"]
        assert (await api.http.get("/healthz")).status_code == 200


async def test_what_the_engine_warns_of_shows_in_readyz(make_api: MakeApi) -> None:
    async with make_api() as api:
        api.engine.model = replace(api.engine.model, warnings=("plain torch is used",))
        answer = await api.http.get("/readyz")
        assert (answer.status_code, answer.json()["warnings"]) == (200, ["plain torch is used"])


async def test_work_that_fails_beside_requests_shows_in_readyz(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins again by itself; until then the operator sees why."""
    monkeypatch.setattr("tenora_platform.background._RETRY_S", 0.2)
    calls = itertools.count()

    async def fails_once(self: Limits) -> None:
        if next(calls) == 0:
            raise RuntimeError("a surprise")
        await asyncio.Event().wait()

    monkeypatch.setattr(Limits, "keep_leases", fails_once)
    async with make_api() as api:
        answer = await api.http.get("/readyz")
        assert answer.status_code == 503
        reason = answer.json()["reason"]
        assert "RuntimeError, see the log" in reason
        assert "a surprise" not in reason, "which may hold a path or an address"
        async with asyncio.timeout(10):
            while (await api.http.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_metrics_and_engine(api: Api) -> None:
    await api.http.get("/healthz")
    shown = (await api.http.get("/metrics")).text
    assert 'tenora_http_requests_total{method="GET",route="/healthz",status="200"}' in shown
    assert "tenora_engine_ready 1.0" in shown
    assert 'tenora_pool_pages{kind="free"} 2.0' in shown
    engine = (await api.admin("GET", "/admin/v1/engine")).json()
    pool = engine["replicas"][0]["pool"]
    kinds = ("free_pages", "live_kv_pages", "cached_kv_pages", "adapter_pages")
    assert sum(pool[kind] for kind in kinds) == pool["total_pages"] == len(pool["page_map"])


async def test_the_portal_or_why_there_is_none(make_api: MakeApi, tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    async with make_api(portal_dir=folder) as api:
        missing = await api.http.get("/")
        assert missing.status_code == 503
        assert "make portal" in missing.text
        (folder / "assets").mkdir(parents=True)
        (folder / "index.html").write_text("<h1>portal</h1>")
        (folder / "assets" / "a.js").write_text("1")
        (tmp_path / "outside.txt").write_text("secret")
        for path in ("/", "/adapters", "/operator/tenants"):
            assert "portal" in (await api.http.get(path)).text, path
        script = await api.http.get("/assets/a.js")
        assert script.text == "1"
        assert "immutable" in script.headers["cache-control"]
        assert (await api.http.get("/assets/b.js")).status_code == 404
        for path in ("/../outside.txt", "/%2e%2e/outside.txt", "/..%2foutside.txt"):
            assert "secret" not in (await api.http.get(path)).text
        assert (await api.http.get("/v1/adapterz")).status_code == 404
