"""The load generator's side of the wire: management calls and one streamed completion, timed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec

from tenora_bench.metrics import RequestRecord


class BenchError(Exception):
    """The server under test refused something the measurement needs; says what."""


@dataclass(frozen=True)
class Completion:
    """One request to send: token ids in, exactly `output_tokens` out (eos is ignored)."""

    tenant: str
    key: str
    model: str
    adapter: str | None
    prompt: list[int]
    output_tokens: int
    more: Mapping[str, Any] = field(default_factory=dict)  # what only this server knows


def load_session(url: str) -> aiohttp.ClientSession:
    """What completions are sent by: a connection of its own for each, as many as are wanted.

    Its parser is compiled. One in Python took 0.2 ms of a core a token, which the server under test
    then lacked: an eighth of its tokens/s where both share two cores (docs/log/2026-11-22.md).
    """
    # llama.cpp's server at times closes a connection just as it is used again: each is used once.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=600, sock_read=600)
    return aiohttp.ClientSession(url, connector=connector, timeout=timeout)


async def complete(load: aiohttp.ClientSession, wanted: Completion) -> RequestRecord:
    """Stream one completion and record its times; a failure is recorded, not raised."""
    record = RequestRecord(wanted.tenant, wanted.adapter, sent_s=time.monotonic())
    body = {
        "model": wanted.model,
        "prompt": wanted.prompt,
        "max_tokens": wanted.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **wanted.more,
    }
    headers = {"authorization": f"Bearer {wanted.key}"}
    try:
        async with load.post("/v1/completions", json=body, headers=headers) as reply:
            if reply.status != 200:
                record.error = f"{reply.status}: {(await reply.read())[:300]!r}"
                return record
            record.residency = reply.headers.get("x-tenora-residency")
            async for line in reply.content:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    note_chunk(record, msgspec.json.decode(line[6:]))
    except (aiohttp.ClientError, TimeoutError) as error:
        record.error = f"{type(error).__name__}: {error}"
    return record


def note_chunk(record: RequestRecord, chunk: dict[str, Any]) -> None:
    now = time.monotonic()
    if "error" in chunk:
        record.error = str(chunk["error"])
        return
    if choices := chunk.get("choices"):
        record.first_token_s = record.first_token_s or now
        record.finished_s = now
        record.chunk_times_s.append(now)
        record.token_ids += choices[0].get("token_ids") or ()
    if usage := chunk.get("usage"):
        record.prompt_tokens = usage["prompt_tokens"]
        record.output_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        record.cached_tokens = details.get("cached_tokens") or 0


@dataclass(frozen=True)
class Management:
    """The admin's and a tenant's management calls that set a measurement up."""

    http: httpx.AsyncClient
    admin_key: str

    async def call(self, method: str, path: str, key: str, **kwargs: Any) -> Any:
        reply = await self.http.request(
            method, path, headers={"authorization": f"Bearer {key}"}, **kwargs
        )
        if reply.is_error:
            raise BenchError(f"{method} {path} answered {reply.status_code}: {reply.text[:300]}")
        return reply.json()

    async def open_plan(self, name: str, **promises: float) -> None:
        """A plan that limits nothing, so that no limit gets in the way of a measurement, and may
        promise `ttft_ms` and `tpot_ms`."""
        await self.call("PUT", f"/admin/v1/plans/{name}", self.admin_key, json=promises)

    async def create_tenant(self, name: str, plan: str) -> str:
        """A new tenant's key."""
        body = {"name": name, "plan": plan}
        tenant = await self.call("POST", "/admin/v1/tenants", self.admin_key, json=body)
        path = f"/admin/v1/tenants/{tenant['id']}/api_keys"
        key = await self.call("POST", path, self.admin_key, json={"name": "bench"})
        return str(key["key"])

    async def upload(self, key: str, name: str, folder: Path) -> None:
        """Upload a PEFT folder and wait until it is active. Raises BenchError on rejection."""
        files = {
            "adapter_config": (folder / "adapter_config.json").read_bytes(),
            "weights": (folder / "adapter_model.safetensors").read_bytes(),
        }
        await self.call("POST", "/v1/adapters", key, data={"name": name}, files=files)
        for _ in range(600):
            adapter = await self.call("GET", f"/v1/adapters/{name}", key)
            state = adapter.get("state") or adapter["versions"][0]["state"]
            if state == "active":
                return
            if state == "rejected":
                raise BenchError(f"adapter {name} was rejected: {json.dumps(adapter)[:500]}")
            await asyncio.sleep(0.2)
        raise BenchError(f"adapter {name} did not become active within two minutes")

    async def base_model(self, key: str) -> str:
        """The base model's id: the one model that is not the tenant's own."""
        models = (await self.call("GET", "/v1/models", key))["data"]
        return str(models[0]["id"])


@asynccontextmanager
async def managing(url: str, admin_key: str) -> AsyncIterator[Management]:
    once = httpx.Limits(max_keepalive_connections=0)  # minutes may lie between two calls
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=once) as http:
        yield Management(http, admin_key)
