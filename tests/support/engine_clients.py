"""EngineClients of every form over the fake engine, and what tests do with them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import cast

import fake_step_engine
from fake_step_engine import request
from tenora_engine.client import EngineClient
from tenora_engine.config import EngineConfig
from tenora_engine.events import SequenceEvent, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_engine.text.processor import TextProcessor
from tenora_engine.transport.inprocess import InProcessEngineClient
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.process import ProcessEngineClient

FOREVER = 10**9


def no_text(folder: str) -> TextProcessor:
    return cast(TextProcessor, object())


def config(outbox_dir: Path | None = None, model: str = "fake") -> EngineConfig:
    return EngineConfig(
        model=model,
        served_name="base",
        outbox_dir=None if outbox_dir is None else str(outbox_dir),
    )


def process_client(
    folder: Path,
    model: str = "fake",
    factory: str = "fake_step_engine:build",
    hung_s: float = 60.0,
) -> ProcessEngineClient:
    return ProcessEngineClient(
        config(folder / "outbox", model),
        socket_dir=folder,
        engine_factory=factory,
        text_factory=no_text,
        start_timeout_s=60,
        hung_s=hung_s,
    )


def in_process_client(folder: Path, model: str = "fake") -> InProcessEngineClient:
    made = config(folder / "outbox", model)
    return InProcessEngineClient(made, fake_step_engine.build, no_text)


async def everything(client: EngineClient, asked: GenerationRequest) -> list[SequenceEvent]:
    return [event async for event in client.submit(asked)]


async def first_of(events: AsyncIterator[SequenceEvent]) -> SequenceEvent:
    return await anext(events)


async def close(events: AsyncIterator[SequenceEvent]) -> None:
    assert isinstance(events, AsyncGenerator)
    await events.aclose()


async def exhaust(events: AsyncIterator[SequenceEvent]) -> None:
    async for _ in events:
        continue


async def until_running(client: EngineClient, count: int) -> None:
    """Ask until so many sequences run; every question is answered after another step."""
    async with asyncio.timeout(20):
        while (await client.stats()).running != count:
            continue


_MARKERS = itertools.count()


async def drained(client: EngineClient) -> list[UsageRecord]:
    """All usage up to now, acknowledged: a request of our own marks its end."""
    marker = f"marker-{next(_MARKERS)}"
    await everything(client, request(marker, max_tokens=1))
    found: list[UsageRecord] = []
    while all(record.request_id != marker for record in found):
        records = await take_usage(client)
        await client.acknowledge_usage([record.event_id for record in records])
        found += records
    return [record for record in found if record.request_id != marker]


def usage_in(outbox: UsageOutbox) -> list[UsageRecord]:
    """The oldest that nobody has acknowledged."""
    return [each for each in outbox.oldest() if isinstance(each, UsageRecord)]


async def take_usage(client: EngineClient) -> list[UsageRecord]:
    return [each for each in await client.unacknowledged_usage() if isinstance(each, UsageRecord)]


def serves(client: EngineClient) -> bool:
    """Asked anew each time, which a type checker does not expect of a property."""
    return client.ready


def is_healthy(client: ProcessEngineClient) -> bool:
    return client.ready and client.last_error is None


def sockets_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.sock"))
