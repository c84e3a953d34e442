"""A platform in an odd place: a data directory with spaces and letters of other alphabets, umask
000, a time zone far from UTC, IPv6 alone, 256 open files, and reverse proxies that show it below a
path."""

from __future__ import annotations

import os
import re
import resource
import secrets
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from portal_under_test import REPOSITORY
from tenora_bench.server import free_port, wait_ready

PREFIX = "/tools/tenora"
_HOPS = {
    "accept-encoding",
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "content-encoding",
}


@dataclass(frozen=True)
class Place:
    """The platform's own address, and those of two proxies: one passes the path on, one takes it
    away."""

    url: str
    keeps: str
    drops: str
    admin_key: str
    data: Path


@contextmanager
def _proxy(port: int, to: str, *, drops: bool) -> Iterator[None]:
    async def pass_on(request: Request) -> Response:
        path = request.url.path
        if not path.startswith(f"{PREFIX}/"):
            return Response("another service", status_code=404)
        target = to + (path.removeprefix(PREFIX) if drops else path)
        headers = {name: value for name, value in request.headers.items() if name not in _HOPS}
        headers["accept-encoding"] = "identity"
        async with httpx.AsyncClient() as http:
            answer = await http.request(
                request.method,
                target,
                params=request.query_params,
                headers=headers,
                content=await request.body(),
            )
        made = Response(answer.content, answer.status_code)
        for name, value in answer.headers.multi_items():
            if name not in _HOPS:
                made.headers.append(name, value)
        return made

    app = Starlette(routes=[Route("/{path:path}", pass_on, methods=["GET", "POST", "DELETE"])])
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _oddly() -> None:
    """In the child, before the program."""
    os.umask(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


@pytest.fixture(scope="module")
def place(base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if not (REPOSITORY / "admin_ui" / "dist" / "index.html").is_file():
        pytest.skip("the portal is not built; run `make portal`")
    root = tmp_path_factory.mktemp("a place")
    data, log = root / "данные of Ünï %20+cödé", root / "log"
    port, keeps, drops = free_port(), free_port(), free_port()
    admin_key = f"odd-{secrets.token_hex(16)}"
    environment = {
        "TENORA_PROBE_ADAPTERS": "false",
        **os.environ,
        "TENORA_ADMIN_KEY": admin_key,
        "TENORA_PUBLIC_URL": f"http://127.0.0.1:{keeps}{PREFIX}",
        "TENORA_SECRET": "",
        "TZ": "Pacific/Kiritimati",
    }
    command = [sys.executable, "-m", "tenora_platform.cli.main", "serve", "--host", "::1"]
    command += ["--port", str(port), "--data-dir", str(data), "--model", str(base_model_dir)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, preexec_fn=_oddly
        )
    url = f"http://[::1]:{port}"
    try:
        wait_ready(url, process, log, timeout_s=300)
        with _proxy(keeps, url, drops=False), _proxy(drops, url, drops=True):
            at = [f"http://127.0.0.1:{each}{PREFIX}" for each in (keeps, drops)]
            yield Place(url, at[0], at[1], admin_key, data)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def test_the_data_directory_is_closed(place: Place) -> None:
    assert stat.S_IMODE(place.data.stat().st_mode) == 0o700
    secret = place.data / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    log = (place.data.parent / "log").read_text()
    assert "the limit of 256 open files leaves 16 connections" in log
    # One clock: the 14 hours of the time zone are in nobody's lines.
    hours = set(re.findall(r"^20\d\d-\d\d-\d\d[T ](\d\d)", log, flags=re.MULTILINE))
    postgres = (place.data / "postgres" / "postgres.log").read_text()
    hours |= set(re.findall(r"^20\d\d-\d\d-\d\d (\d\d)", postgres, flags=re.MULTILINE))
    assert len(hours) <= 2


@pytest.mark.parametrize("proxy", ["keeps", "drops"])
def test_the_portal_works_below_a_path(chromium: Browser, place: Place, proxy: str) -> None:
    context = chromium.new_context(base_url=getattr(place, proxy))
    page = context.new_page()
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on(
        "response",
        lambda answer: failed.append(answer.url) if answer.status == 404 else None,
    )
    start = getattr(place, proxy)
    try:
        page.goto(f"{start}/")
        page.get_by_label("Key", exact=True).fill(place.admin_key)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(re.compile(rf"{PREFIX}/operator"))
        page.goto(f"{start}/operator/tenants")
        expect(page.get_by_role("heading", name="Tenants", level=1)).to_be_visible()
        page.reload()
        expect(page.get_by_role("heading", name="Tenants", level=1)).to_be_visible()
        page.goto(f"{start}/docs")
        expect(page.get_by_text("Multi-tenant LoRA serving")).to_be_visible()
        assert failed == []
    finally:
        context.close()


def test_links_and_the_description_have_the_path(place: Place) -> None:
    described = httpx.get(f"{place.drops}/openapi.json").json()
    assert described["servers"] == [{"url": PREFIX}]
    headers = {"authorization": f"Bearer {place.admin_key}"}
    tenant = httpx.post(
        f"{place.keeps}/admin/v1/tenants", json={"name": "Acme"}, headers=headers
    ).json()
    invited = httpx.post(
        f"{place.drops}/admin/v1/tenants/{tenant['id']}/invitations",
        json={"email": "boss@example.com", "role": "owner"},
        headers=headers,
    )
    assert invited.json()["link"].startswith(f"{place.keeps}/invitation#")
    assert httpx.get(place.keeps.removesuffix(PREFIX) + "/").status_code == 404
