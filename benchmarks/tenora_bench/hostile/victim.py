"""Another tenant: small requests of each kind, each at its own pace, and how long each takes. Every
request has a connection of its own, so that each API process is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tenora_bench.client import BenchError
from tenora_bench.intake.files import File, good

EVERY_S = {"healthz": 0.05, "chat": 0.25, "usage": 0.2, "adapters": 0.2, "upload": 1.0}
WEBHOOK = "webhook"
WEBHOOK_EVERY_S = 0.5
CHECKED = "upload until active"
MEASURED = (*EVERY_S, CHECKED, WEBHOOK)
_TIMEOUT_S = 60.0
_POLL_S = 0.05
_FILES = 8  # of other weights, in turn


@dataclass
class Felt:
    """Milliseconds of what was answered as it should be; of each kind what failed."""

    times_ms: dict[str, list[float]] = field(default_factory=lambda: {k: [] for k in MEASURED})
    failures: list[str] = field(default_factory=list)


class Victim:
    """`measuring` makes one; `feel` is what it is for."""

    def __init__(self, http: aiohttp.ClientSession, key: str, files: list[File]) -> None:
        self._http = http
        self._headers = {"authorization": f"Bearer {key}"}
        self._files = files
        self._base = ""
        self._uploads = 0
        self._felt = Felt()
        self._told: dict[str, float] = {}  # ms by the name of a key

    async def look_around(self, receiver: str) -> None:
        """Learn the base model's name, and ask to be told of keys. Raises BenchError."""
        self._base = (await self._call("GET", "/v1/models"))["data"][0]["id"]
        body = {"url": receiver, "types": ["key.created"]}
        await self._call("POST", "/v1/webhook_endpoints", json=body)

    async def feel(self, seconds: float) -> Felt:
        """Send small requests for so many seconds and return their times; each kind's last answer
        is waited for."""
        felt = self._felt = Felt()
        until_s = time.monotonic() + seconds
        paced = [self._pace(kind, every_s, until_s) for kind, every_s in EVERY_S.items()]
        await asyncio.gather(*paced, self._events(until_s))
        return felt

    async def _pace(self, kind: str, every_s: float, until_s: float) -> None:
        do = self._doing(kind)
        while (began_s := time.monotonic()) < until_s:
            try:
                took_ms = await do()
            except (aiohttp.ClientError, TimeoutError, BenchError) as error:
                self._felt.failures.append(f"{kind}: {type(error).__name__}: {error}"[:300])
            else:
                self._felt.times_ms[kind].append(took_ms)
            await asyncio.sleep(max(0.0, every_s - (time.monotonic() - began_s)))

    def _doing(self, kind: str) -> Callable[[], Awaitable[float]]:
        if kind == "upload":
            return self._upload
        if kind == "chat":
            return self._chat
        path = {"healthz": "/healthz", "usage": "/v1/usage", "adapters": "/v1/adapters"}[kind]
        return lambda: self._timed("GET", path)

    async def _timed(self, method: str, path: str, **more: Any) -> float:
        began_s = time.perf_counter()
        await self._call(method, path, **more)
        return (time.perf_counter() - began_s) * 1000

    async def _call(self, method: str, path: str, **more: Any) -> Any:
        async with self._http.request(method, path, headers=self._headers, **more) as reply:
            answer = await reply.read()
        if reply.status >= 400:
            raise BenchError(f"{method} {path} answered {reply.status}: {answer[:200]!r}")
        return json.loads(answer)

    async def _chat(self) -> float:
        message = {"role": "user", "content": "How long is the warranty of the kettle?"}
        body = {"model": self._base, "messages": [message], "max_tokens": 4, "temperature": 0}
        return await self._timed("POST", "/v1/chat/completions", json=body)

    async def _upload(self) -> float:
        """Of its answer. Until it is active is noted beside it."""
        file = self._files[self._uploads % len(self._files)]
        self._uploads += 1
        form = aiohttp.FormData({"name": "small"})
        form.add_field("adapter_config", file.config, filename="adapter_config.json")
        form.add_field("weights", file.weights, filename="adapter_model.safetensors")
        began_s = time.perf_counter()
        version = await self._call("POST", "/v1/adapters", data=form)
        took_ms = (time.perf_counter() - began_s) * 1000
        path = f"/v1/adapters/small/versions/{version['version']}"
        async with asyncio.timeout(_TIMEOUT_S):
            while (found := await self._call("GET", path))["state"] != "active":
                if found["state"] == "rejected":
                    raise BenchError(f"an upload was rejected: {found}")
                await asyncio.sleep(_POLL_S)
        self._felt.times_ms[CHECKED].append((time.perf_counter() - began_s) * 1000)
        await self._call("DELETE", path)
        return took_ms

    async def _events(self, until_s: float) -> None:
        """Keys, of which its receiver is to be told."""
        self._told, made = {}, list[str]()
        while (began_s := time.monotonic()) < until_s:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, BenchError):
                key = await self._call("POST", "/v1/api_keys", json={"name": "told"})
                made.append(key["id"])
                await self._call("DELETE", f"/v1/api_keys/{key['id']}")
            await asyncio.sleep(max(0.0, WEBHOOK_EVERY_S - (time.monotonic() - began_s)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                while not all(key in self._told for key in made):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        self._felt.times_ms[WEBHOOK] = [self._told[key] for key in made if key in self._told]
        late = [key for key in made if key not in self._told]
        self._felt.failures += [f"{WEBHOOK}: not told of {key} in {_TIMEOUT_S} s" for key in late]

    async def told(self, request: web.Request) -> web.Response:
        """Its webhook receiver: from when the event was written down until it is here."""
        event = await request.json()
        now_s = time.time()
        at_s = datetime.fromisoformat(event["timestamp"]).timestamp()
        if event["type"] == "key.created":
            self._told.setdefault(event["data"]["id"], (now_s - at_s) * 1000)
        return web.Response()


@asynccontextmanager
async def victim(url: str, key: str, model: Path) -> AsyncIterator[Victim]:
    """With its receiver."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as http:
        one = Victim(http, key, [good(model, 1000 + number) for number in range(_FILES)])
        receiver = web.Application()
        receiver.router.add_post("/", one.told)
        runner = web.AppRunner(receiver)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            await one.look_around(f"http://127.0.0.1:{runner.addresses[0][1]}/")
            yield one
        finally:
            await runner.cleanup()
