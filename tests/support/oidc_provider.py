"""npm's `oidc-provider`, a certified OpenID Connect provider, run by the Node of the virtual
environment; and a browser that signs in at it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from api_harness import Api

_HERE = Path(__file__).parent / "oidc"
_DATA = Path(os.environ.get("TENORA_TEST_DATA", Path(__file__).parents[2] / ".data" / "test"))
PUBLIC_URL = "https://tenora.example"
CLIENT = ("tenora", "secret-of-the-client")


@dataclass(frozen=True)
class RunningProvider:
    issuer: str

    def rotate(self) -> None:
        """Other keys from now on."""
        httpx.post(f"{self.issuer}/__rotate").raise_for_status()


@contextmanager
def certified_provider(public_url: str = PUBLIC_URL) -> Iterator[RunningProvider]:
    """One that knows us at `public_url`. Skips the test where npm, or its registry, cannot be
    had."""
    bin_folder = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    if shutil.which("npm", path=env["PATH"]) is None:
        pytest.skip("no npm: install the extra `portal`, which brings Node")
    folder = _installed(env)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = json.dumps({"port": port, "publicUrl": public_url})
    command = ["node", "server.mjs", config]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = [""]
            while said[-1] != "ready\n" and (line := process.stdout.readline()):
                said.append(line)
            assert said[-1] == "ready\n", said
            yield RunningProvider(f"http://127.0.0.1:{port}")
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # `node` may be a script that starts another


def _installed(env: dict[str, str]) -> Path:
    """The folder with the locked packages, installed once and kept between runs."""
    files = {name: (_HERE / name).read_bytes() for name in ("package.json", "package-lock.json")}
    wanted = hashlib.sha256(b"".join(files.values())).hexdigest()
    folder = _DATA / "oidc"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run beside each other
        for name in (*files, ".npmrc", "server.mjs"):
            shutil.copy(_HERE / name, folder / name)
        stamp = folder / ".installed"
        if not stamp.exists() or stamp.read_text() != wanted:
            try:
                subprocess.run(
                    ["npm", "ci", "--loglevel=error"],
                    cwd=folder,
                    env=env,
                    check=True,
                    capture_output=True,
                    timeout=120,
                )
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"npm cannot install oidc-provider from its registry: {error}")
            stamp.write_text(wanted)
    return folder


class Browser:
    """Follows redirects between Tenora and the provider, keeps cookies, and fills in the provider's
    forms. Never sends a key."""

    def __init__(self, api: Api) -> None:
        to_api = httpx.ASGITransport(app=api.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(mounts={PUBLIC_URL: to_api}, follow_redirects=True)
        self.seen: list[str] = []
        """Every address it was at."""

    async def open(self, path: str, **more: Any) -> httpx.Response:
        url = path if path.startswith("http") else f"{PUBLIC_URL}{path}"
        return self._note(await self.http.get(url, **more))

    async def sign_in(self, login: str, next_path: str = "/v1/me") -> httpx.Response:
        """What it sees when it is back."""
        return await self.fill_in(login, await self.open("/auth/login", params={"next": next_path}))

    async def fill_in(self, login: str, page: httpx.Response) -> httpx.Response:
        """Whatever the provider asks, until it sends the browser back."""
        for _ in range(5):
            form = re.search(r'<form[^>]*action="([^"]+)"', page.text)
            if form is None or page.url.host == "tenora.example":
                return page
            prompt = re.search(r'name="prompt" value="(\w+)"', page.text)
            said = {"prompt": prompt[1] if prompt else "login", "login": login, "password": "x"}
            url = page.url.join(unescape(form[1]))
            page = self._note(await self.http.post(url, data=said))
        raise AssertionError(f"the provider asks for ever: {page.text[:500]}")

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        """As the portal does, with the CSRF token where one is needed."""
        headers = dict(more.pop("headers", {}))
        if method not in ("GET", "HEAD"):
            session = (await self.http.get(f"{PUBLIC_URL}/auth/session")).json()
            headers.setdefault("x-csrf-token", session.get("csrf_token", ""))
        return await self.http.request(method, f"{PUBLIC_URL}{path}", headers=headers, **more)

    def _note(self, answer: httpx.Response) -> httpx.Response:
        self.seen += [str(each.url) for each in (*answer.history, answer)]
        return answer
