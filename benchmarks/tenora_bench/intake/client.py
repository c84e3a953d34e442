"""One tenant's uploads over HTTP, and what became of each as its client saw it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from tenora_bench.intake.files import File

How = Literal["form", "parts", "broken off", "abandoned"]


@dataclass
class Uploaded:
    """`answer` is a status and code, or how the connection ended; `version` where it was taken."""

    file: File
    how: How
    answer: str = ""
    version: str | None = None


class Uploader:
    """Of one tenant."""

    def __init__(self, http: aiohttp.ClientSession, key: str) -> None:
        self._http = http
        self._headers = {"authorization": f"Bearer {key}"}

    async def upload(self, file: File, name: str, how: How) -> Uploaded:
        """Never raises for what the server does."""
        done = Uploaded(file, how)
        try:
            if how == "parts":
                await self._by_parts(done, name)
            elif how == "abandoned":
                await self._begin(done, file.weights)
            else:
                await self._by_form(done, name)
        except (aiohttp.ClientError, TimeoutError, ConnectionError, _RefusedError) as error:
            done.answer = done.answer or type(error).__name__
        return done

    async def delete(self, name: str) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, _RefusedError):
            await self._call("DELETE", f"/v1/adapters/{name}")

    async def versions(self) -> dict[str, dict[str, Any]]:
        """Those of adapters that still have their name, by id."""
        found: dict[str, dict[str, Any]] = {}
        after = ""
        while True:
            page = await self._call("GET", f"/v1/adapters?limit=100{after}")
            for adapter in page["data"]:
                found |= {each["id"]: each for each in adapter["versions"]}
            if not page["has_more"]:
                return found
            after = f"&after={page['last_id']}"

    async def waiting(self) -> bool:
        """For a check."""
        versions = (await self.versions()).values()
        return any(each["state"] in ("quarantined", "validating") for each in versions)

    async def _by_form(self, done: Uploaded, name: str) -> None:
        made = await self._form(done, name, done.file.weights)
        done.version = made["id"]

    async def _form(self, done: Uploaded, name: str, weights: bytes | None, **more: str) -> Any:
        form = aiohttp.FormData(more)
        form.add_field("name", name)
        form.add_field("adapter_config", done.file.config, filename="adapter_config.json")
        if weights is not None:
            body: Any = _cut(weights) if done.how == "broken off" else weights
            form.add_field("weights", body, filename="adapter_model.safetensors")
        return await self._call("POST", "/v1/adapters", done, data=form)

    async def _begin(self, done: Uploaded, weights: bytes) -> tuple[str, str]:
        """An upload with its first part."""
        size = {"bytes": max(1, len(weights))}
        upload = (await self._call("POST", "/v1/uploads", done, json=size))["id"]
        return upload, await self._part(done, upload, weights[: len(weights) // 2 + 1])

    async def _part(self, done: Uploaded, upload: str, data: bytes) -> str:
        form = aiohttp.FormData()
        form.add_field("data", data, filename="part")
        part = await self._call("POST", f"/v1/uploads/{upload}/parts", done, data=form)
        return str(part["id"])

    async def _by_parts(self, done: Uploaded, name: str) -> None:
        weights = done.file.weights
        upload, first = await self._begin(done, weights)
        ids = [first]
        if rest := weights[len(weights) // 2 + 1 :]:
            ids.append(await self._part(done, upload, rest))
        path = f"/v1/uploads/{upload}/complete"
        await self._call("POST", path, done, json={"part_ids": ids})
        made = await self._form(done, name, None, upload_id=upload)
        done.version = made["id"]

    async def _call(
        self, method: str, path: str, done: Uploaded | None = None, **more: Any
    ) -> dict[str, Any]:
        async with self._http.request(method, path, headers=self._headers, **more) as reply:
            answer: dict[str, Any] = await reply.json()
        if reply.status >= 400:
            if done is not None:
                done.answer = f"{reply.status} {answer['error']['code']}"
            raise _RefusedError
        if done is not None:
            done.answer = str(reply.status)
        return answer


class _RefusedError(Exception):
    """The answer is noted."""


async def _cut(weights: bytes) -> AsyncIterator[bytes]:
    yield weights[: len(weights) // 2]
    await asyncio.sleep(0.05)
    raise ConnectionResetError("broken off in the middle, as wanted")
