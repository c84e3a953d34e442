"""The rig of the live experiments: the engine as a process of its own, as in service, and requests
sent to it open loop, at given times whatever comes of those before. It knows no experiment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tenora_bench.adapters import LINEARS, publish_adapters
from tenora_bench.machine import threads
from tenora_bench.metrics import RequestRecord
from tenora_engine.client import EngineClient
from tenora_engine.config import EngineConfig
from tenora_engine.errors import EngineError
from tenora_engine.events import EngineStats, TokenEvent
from tenora_engine.memory.budget import plan_memory
from tenora_engine.model.loader import read_model_info
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_engine.transport.process import ProcessEngineClient

STORE = "store"
GAVE_UP = "given up"
MEMORY_BYTES = 3 * 1024**3
ARENA_BYTES = 512 * 1024**2
"""Small, so that its memory has soon been touched: what is written for the first time is slow."""


@dataclass(frozen=True)
class LiveRequest:
    """One request to send: token ids in, exactly `output_tokens` out (eos is ignored). The tenant
    brings its class, targets and weight (`tenant_of`)."""

    at_s: float  # after the start of the run
    tenant: Tenant
    prompt: list[int]
    output_tokens: int
    adapter: AdapterRef | None = None
    n: int = 1


class LiveEngine:
    """A started engine. `client` is there for what the experiments do beside requests."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self._numbers = count()

    async def play(
        self, requests: Sequence[LiveRequest], background: Sequence[LiveRequest] = ()
    ) -> list[RequestRecord]:
        """Send each at its time and wait for all of them; a record for each, in the same order. A
        failure is recorded, not raised. `background` is sent as well, without a record; what is
        left of it when all others have ended is given up."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()

        async def send(request: LiveRequest) -> RequestRecord:
            await asyncio.sleep(max(0.0, begin_s + request.at_s - loop.time()))
            return await self.complete(request)

        others = [asyncio.create_task(send(request)) for request in background]
        try:
            return await asyncio.gather(*(send(request) for request in requests))
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self.idle()

    async def idle(self) -> None:
        """Wait until nothing runs or waits."""
        while True:
            stats = await self.client.stats()
            if not stats.running and not stats.waiting:
                return
            await asyncio.sleep(0.01)

    async def stats(self) -> EngineStats:
        return await self.client.stats()

    async def complete(self, wanted: LiveRequest, give_up_s: float | None = None) -> RequestRecord:
        """Send it now. After `give_up_s` it is aborted, and recorded as GAVE_UP."""
        tenant, adapter = wanted.tenant, wanted.adapter
        record = RequestRecord(
            tenant.key,
            None if adapter is None else adapter.digest,
            sent_s=time.monotonic(),
            sla_class=tenant.tier,
        )
        request = GenerationRequest(
            request_id=f"bench-{next(self._numbers)}",
            tenant=tenant,
            prompt_token_ids=wanted.prompt,
            sampling=SamplingParams(
                temperature=0.0, max_tokens=wanted.output_tokens, ignore_eos=True, n=wanted.n
            ),
            adapter=adapter,
        )
        try:
            async with asyncio.timeout(give_up_s):
                await self._follow(request, record)
        except TimeoutError:
            record.error = GAVE_UP
        except EngineError as error:
            record.error = f"{type(error).__name__}: {error}"
        return record

    async def _follow(self, request: GenerationRequest, record: RequestRecord) -> None:
        async for event in self.client.submit(request):
            now_s = time.monotonic()
            if isinstance(event, TokenEvent):
                record.first_token_s = record.first_token_s or now_s
                record.chunk_times_s.append(now_s)
            else:
                usage = event.usage
                record.finished_s = now_s
                record.error = event.error
                record.prompt_tokens = usage.prompt_tokens
                record.cached_tokens = usage.cached_tokens
                record.output_tokens = usage.output_tokens
                record.residency = usage.residency


def tenant_of(key: str, **promises: Any) -> Tenant:
    """A tenant with a namespace of its own; `promises` are further fields of `Tenant`."""
    return Tenant(key=key, namespace=key, **promises)


def make_adapters(
    scratch: Path, model: Path, ranks: Sequence[int], modules: tuple[str, ...] = LINEARS
) -> list[AdapterRef]:
    """One adapter for each rank, where the engine of `live_engine(model, scratch)` finds them.
    Seeded by their place in `ranks`; their PEFT folders are `scratch / "adapters" / "bench-N"`."""
    folder, store = scratch / "adapters", scratch / STORE
    return publish_adapters(folder, store, model, len(ranks), ranks, modules)


@asynccontextmanager
async def live_engine(model: Path, scratch: Path, **settings: Any) -> AsyncIterator[LiveEngine]:
    """The engine in a process of its own, ready; `settings` are fields of `EngineConfig`. Its log
    is `scratch / "engine.log"`."""
    (scratch / STORE).mkdir(parents=True, exist_ok=True)
    config = EngineConfig(
        model=str(model),
        served_name=model.name,
        **{
            "object_store": str(scratch / STORE),
            "memory_bytes": MEMORY_BYTES,
            "arena_bytes": ARENA_BYTES,
            "max_context_tokens": 2048,
            "threads": threads(),
            **settings,
        },
    )
    with (scratch / "engine.log").open("ab") as log:
        client = ProcessEngineClient(config, log=log)
        await client.start()
        try:
            yield LiveEngine(client)
        finally:
            await client.stop()


def page_bytes(model: Path) -> int:
    """Of one page of the arena."""
    config = EngineConfig(model=str(model), served_name=model.name)
    return plan_memory(config, read_model_info(config)).page_bytes
