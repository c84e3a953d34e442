"""Ours: the whole platform over HTTP, one tenant, the adapters uploaded as a customer would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tenora_bench.client import Completion, managing
from tenora_bench.metrics import RequestRecord
from tenora_bench.peers.interface import KINDS, Request
from tenora_bench.peers.openai_server import closed_loop
from tenora_bench.peers.processes import peak_memory
from tenora_bench.server import ServerUnderTest


class Tenora:
    kinds = KINDS

    def __init__(self, server: ServerUnderTest, key: str, base: str) -> None:
        self._server, self._key, self._base = server, key, base

    def _spell(self, request: Request) -> Completion:
        return Completion(
            tenant="bench",
            key=self._key,
            model=request.adapter or self._base,
            adapter=request.adapter,
            prompt=request.prompt,
            output_tokens=request.output_tokens,
            more=request.more,
        )

    async def run(self, requests: Sequence[Request], streams: int) -> list[RequestRecord]:
        return await closed_loop(self._server.url, requests, streams, self._spell)

    def pause(self) -> None:
        """Nothing: it sleeps when it has no requests."""

    def resume(self) -> None:
        pass

    def peak_memory(self) -> dict[str, int]:
        return {} if self._server.pid is None else peak_memory(self._server.pid)


@asynccontextmanager
async def tenora(server: ServerUnderTest, adapters: Sequence[Path]) -> AsyncIterator[Tenora]:
    """The running `server` with `adapters` uploaded."""
    async with managing(server.url, server.admin_key) as management:
        await management.open_plan("bench")
        key = await management.create_tenant("bench", "bench")
        base = await management.base_model(key)
        for folder in adapters:
            await management.upload(key, folder.name, folder)
    yield Tenora(server, key, base)
