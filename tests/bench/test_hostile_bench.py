"""`tenora bench hostile`: what it sends, what it makes of the times, and that its tenant stops."""

from __future__ import annotations

import asyncio
import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from tenora_bench.cli import app
from tenora_bench.hostile.inputs import BODY_BYTES, SHOTS, Target, target_of
from tenora_bench.hostile.measure import failures, rows
from tenora_bench.hostile.tenant import KINDS, Orders, hostile_tenant
from tenora_bench.hostile.victim import CHECKED, MEASURED, Felt

DOCUMENT: dict[str, Any] = {
    "paths": {
        "/v1/adapters/{name}/versions/{version}": {"get": {}, "patch": {}},
        "/v1/events/stream": {"get": {}},
        "/v1/usage": {"get": {}},
        "/v1/completions": {"post": {}},
        "/admin/v1/tenants": {"get": {}},
    }
}


def test_a_tenant_knows_its_routes_and_what_they_take() -> None:
    target = target_of(DOCUMENT, "base", "mine")
    assert target.reads == ("/v1/adapters/mine/versions/1", "/v1/usage")
    assert target.writes == (
        ("PATCH", "/v1/adapters/mine/versions/1"),
        ("POST", "/v1/completions"),
    )


@pytest.mark.parametrize("kind", SHOTS)
def test_each_kind_goes_on_and_is_not_refused_for_its_size(kind: str) -> None:
    target = Target("base", "mine", ("/v1/usage",), (("POST", "/v1/completions"),))
    for shot in islice(SHOTS[kind](target), 12):
        assert shot.path.startswith(("/v1/", "/auth/"))
        assert len(shot.body or b"") <= BODY_BYTES


def test_evaluations_are_whole() -> None:
    target = Target("base", "mine", (), ())
    for shot in islice(SHOTS["evaluations"](target), 6):
        json.loads(shot.body or b"")


def felt(healthz_ms: float, *failed: str) -> Felt:
    times = {kind: [10.0] * 100 for kind in MEASURED}
    return Felt({**times, "healthz": [healthz_ms] * 100}, list(failed))


def test_what_is_within_the_bound_holds_and_what_failed_does_not() -> None:
    quiet = [felt(10.0)] * 3
    beside = [felt(64.0), felt(900.0), felt(66.0, "chat: 503", "chat: 503")]
    found = {row["kind"]: row for row in rows(quiet, beside)}
    assert found["healthz"]["hostile_p99_ms"] == 66.0, "of the rounds, the median"
    assert found["healthz"]["bound_ms"] == 65.0
    assert not found["healthz"]["holds"]
    assert (found["chat"]["holds"], found["chat"]["failed"]) == (False, 2)
    assert found["webhook"]["holds"]
    assert failures(beside) == ["chat: 503"]


def test_nothing_measured_does_not_hold() -> None:
    nothing = Felt()
    found = {row["kind"]: row for row in rows([felt(10.0)], [nothing])}
    assert math.isnan(found[CHECKED]["hostile_p99_ms"])
    assert not found[CHECKED]["holds"]


async def test_the_tenant_begins_and_stops_when_it_is_told(base_model_dir: Path) -> None:
    """At a server that refuses all but what the tenant looks at first."""
    asked, many = list[str](), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if len(asked) > 200:
            many.set()
        if request.path == "/openapi.json":
            return web.json_response(DOCUMENT)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "base"}]})
        if request.path in ("/v1/adapters", "/v1/evaluations", "/v1/webhook_endpoints"):
            return web.json_response({"data": [], "has_more": False, "id": "x"})
        return web.json_response({"error": {"code": "no"}}, status=429)

    server = web.Application()
    server.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(server) as at:
        kinds = ("reads", "wrong-keys", "slow-bodies", "burst")
        orders = Orders(str(at.make_url("")).rstrip("/"), "key", base_model_dir, kinds, 12)
        with hostile_tenant(orders) as hostile:
            await hostile.begin()
            await many.wait()
            done = await hostile.stop()
            assert set(done.statuses) >= {"reads", "burst"}
            await hostile.begin()
            await hostile.stop()


def test_kinds_are_checked() -> None:
    told = CliRunner().invoke(app, ["hostile", "--only", "nonsense"])
    assert told.exit_code == 2
    assert set(SHOTS) < set(KINDS)
