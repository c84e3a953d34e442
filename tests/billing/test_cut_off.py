"""What the platform itself cuts off is in the books and charged to nobody; what its client or its
tenant ends is charged to there. With a real engine that is in the middle of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from api_harness import Api, TestTenant
from served_api import until
from tenora_engine.transport.process import ProcessEngineClient
from tenora_platform.inference.generation import Run
from tenora_platform.settings import Settings
from tenora_platform.usage.sink import UsageSink
from tenora_platform.usage.tables import UsageEventRow
from tiny_engine_api import PATIENCE_S, api_over, tiny_config

End = Callable[[Api, TestTenant, ProcessEngineClient], Awaitable[object]]


@pytest.fixture
async def running(
    settings: Settings, tmp_path: Path
) -> AsyncIterator[tuple[Api, ProcessEngineClient]]:
    engine = ProcessEngineClient(tiny_config(tmp_path), socket_dir=tmp_path)
    async with api_over(settings, engine) as api:
        yield api, engine


async def stop_server(api: Api, tenant: TestTenant, engine: ProcessEngineClient) -> None:
    api.state.flights.end_all()


async def suspend(api: Api, tenant: TestTenant, engine: ProcessEngineClient) -> None:
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"status": "suspended"})


async def delete(api: Api, tenant: TestTenant, engine: ProcessEngineClient) -> None:
    await api.admin("DELETE", f"/admin/v1/tenants/{tenant.id}")


async def stop_engine(api: Api, tenant: TestTenant, engine: ProcessEngineClient) -> None:
    """As its part is replaced: it meters what runs, and another takes its place."""
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGTERM)


async def revoke(api: Api, tenant: TestTenant, engine: ProcessEngineClient) -> None:
    await api.call(tenant.key, "DELETE", f"/v1/api_keys/{tenant.key_id}")


@pytest.mark.parametrize(
    ("end", "code", "is_charged"),
    [
        (stop_server, "server_stopping", False),
        (suspend, "tenant_suspended", False),
        (delete, "tenant_suspended", False),
        (stop_engine, "", False),
        (revoke, "key_revoked", True),
    ],
)
@pytest.mark.parametrize("more", [{}, {"stop": ["never to be met"]}, {"n": 3}])
async def test_an_answer_that_is_ended(
    running: tuple[Api, ProcessEngineClient],
    end: End,
    code: str,
    is_charged: bool,
    more: dict[str, object],
) -> None:
    api, engine = running
    tenant = await api.new_tenant("cut off", plan="premium")
    body = {"model": "fake-base", "prompt": "x", "max_tokens": 1000, "ignore_eos": True, **more}
    asked = asyncio.create_task(api.call(tenant.key, "POST", "/v1/completions", json=body))
    await until(lambda: is_answering(api))
    await end(api, tenant, engine)
    answer = await asked
    assert answer.status_code >= 400, answer.text
    assert code in answer.text
    tokens = await booked(api, tenant, int(str(more.get("n", 1))))
    assert any(tokens) == is_charged, tokens


def is_answering(api: Api) -> bool:
    flying = api.state.flights._flying
    return any(isinstance(run, Run) and run.tokens_seen for each in flying for run in each.runs)


async def booked(api: Api, tenant: TestTenant, sequences: int) -> list[int]:
    """Prompt and output tokens of each event, once there are so many."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await UsageSink(api.state.engine, api.state.db).store_what_waits()
            async with api.state.db.tenant_session(tenant.id) as session:
                rows = list(await session.scalars(select(UsageEventRow)))
            if len(rows) >= sequences:
                return [row.prompt_tokens + row.output_tokens for row in rows]
            await asyncio.sleep(0.02)
