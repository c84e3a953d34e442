"""Places that people run software in: paths with spaces, users without a name, few open files, and
something else than Tenora at the address that a command calls."""

from __future__ import annotations

import os
import pwd
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest

from shell import run
from tenora_platform.cli import checks
from tenora_platform.cli.client import connected
from tenora_platform.cli.errors import CliError
from tenora_platform.db import libpq_url, psycopg_url
from tenora_platform.embedded import process
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.embedded.process import EmbeddedServerError
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

SECRET = ServerSecret(b"a secret of at least thirty-two characters")


@pytest.mark.parametrize("name", ["with a space", "с буквами é+%20", "a#b?c=d&e"])
def test_embedded_servers_run_in_any_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    postgres = EmbeddedPostgres(folder / "postgres", SECRET)
    valkey = EmbeddedValkey(folder / "valkey", SECRET)
    try:
        postgres.start()
        valkey.start()
        with psycopg.connect(libpq_url(psycopg_url(postgres.url))) as link:
            assert link.execute("SELECT 1").fetchone() == (1,)
        assert EmbeddedPostgres(folder / "postgres", SECRET).running_url() == postgres.url
    finally:
        valkey.stop()
        postgres.stop()


def test_a_user_without_a_name_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As containers of an arbitrary user id are started."""

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(EmbeddedServerError, match=r"12345 has none in /etc/passwd.*tenora:x:12345"):
        process.server_user()


def test_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    said = checks.few_files()
    assert said is not None
    assert "the limit of 256 open files leaves 16 connections" in said
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65_536, 65_536))
    assert checks.few_files() is None


@pytest.mark.parametrize(
    ("host", "public_url", "told"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", "http://tenora.example", True),
        ("0.0.0.0", "https://tenora.example/below", False),
    ],
)
def test_plain_http_is_told(host: str, public_url: str | None, told: bool) -> None:
    settings = Settings(host=host, public_url=public_url)
    assert (checks.plain_http(settings) is not None) is told


Answer = Callable[[BaseHTTPRequestHandler], None]


def _page(handler: BaseHTTPRequestHandler) -> None:
    body = b"<html>Welcome to nginx!</html>"
    handler.send_response(200)
    handler.send_header("content-type", "text/html")
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _moved(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("location", "https://login.example/")
    handler.send_header("content-length", "0")
    handler.end_headers()


def _other_json(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", "2")
    handler.end_headers()
    handler.wfile.write(b"[]")


def _text_with_an_id(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("x-request-id", "proxy-1")
    handler.send_header("content-length", "2")
    handler.end_headers()
    handler.wfile.write(b"ok")


@contextmanager
def _answering(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_page, "does not answer as Tenora does"),
        (_other_json, "does not answer as Tenora does"),
        (_text_with_an_id, "does not answer as Tenora does"),
        (_moved, "redirects to https://login.example/"),
    ],
)
def test_a_command_says_that_another_service_answers(answer: Answer, said: str) -> None:
    with (
        _answering(answer) as url,
        connected(url, "tna_some", what="an admin key") as api,
        pytest.raises(CliError, match=said),
    ):
        api.all_of("/admin/v1/tenants")


def test_it_is_one_line_in_a_shell() -> None:
    with _answering(_page) as url:
        code, said = run("tenant", "list", "--url", url, "--key", "tna_some")
    assert code == 1
    assert "does not answer as Tenora does" in said
    assert "Traceback" not in said
