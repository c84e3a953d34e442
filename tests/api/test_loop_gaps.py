"""Nothing that is asked for holds the event loop of an API process, whose other connections wait
meanwhile: each GET route, beside the largest share of its thread's time between two turns. It is
CPU time, so that a busy machine makes no difference, and five times what the rule allows."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import Connection

from api_harness import ADMIN_KEY, Api, TestTenant
from described import document
from filled_books import fill
from odd_requests import operations
from tenora_engine.garbage import seldom_collect
from tenora_engine.telemetry import BOUNDS_S

ALLOWED_S = 0.1
START = (datetime.now(UTC) - timedelta(days=30)).strftime("%Y-%m-%dT00:00:00Z")
END = datetime.now(UTC).strftime("%Y-%m-%dT%H:30:00Z")  # part of an hour, out of events
_MONTH = f"start={START}&end={END}"
_ROUTES = [each.path for each in operations(document()) if each.method == "GET"]
LARGEST = [
    f"/v1/usage?{_MONTH}&bucket=1h&limit=744&group_by=api_key,adapter&include=costs",
    f"/v1/usage?{_MONTH}&bucket=1h&limit=744&group_by=api_key,adapter&top=100",
    f"/v1/usage?{_MONTH}&bucket=1mo&group_by=api_key,adapter_version",
    f"/v1/costs?{_MONTH}&bucket=1h&limit=744&group_by=api_key,adapter",
    f"/admin/v1/usage?{_MONTH}&bucket=1d&limit=744&group_by=tenant,api_key,adapter",
    f"/admin/v1/costs?{_MONTH}&bucket=1d&limit=744&group_by=tenant,api_key,adapter",
    f"/admin/v1/usage/cloudevents?{_MONTH}",
    "/admin/v1/timeseries?metric=ttft_attainment,ttft,errors,answers&group_by=tenant,class&limit=60",
    f"/admin/v1/timeseries?{_MONTH}&metric=ttft,tpot,queue&group_by=tenant,class&limit=500",
    f"/admin/v1/timeseries?{_MONTH}&metric=evictions,pool,steps",
    f"/v1/timeseries?{_MONTH}&metric=finished,ended,ttft&group_by=adapter,version&limit=500",
    "/admin/v1/waits",
    "/admin/v1/fairness",
    "/openapi.json",
    "/admin/v1/tenants?sort=-spend&limit=100",
    "/admin/v1/costs/tenants?sort=-requests&limit=100",
    "/v1/adapters?sort=-cost&limit=100",
]


@dataclass
class Watch:
    """The most of its own time that the loop's thread has used between two turns of this task."""

    worst_s: float = 0.0

    async def run(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            self.worst_s = max(self.worst_s, time.thread_time() - before)


@asynccontextmanager
async def watched() -> AsyncIterator[Watch]:
    watch = Watch()
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    try:
        yield watch
    finally:
        await asyncio.sleep(0.002)
        task.cancel()


@pytest.fixture
async def filled(api: Api, owner: Connection) -> TestTenant:
    tenant = await api.new_tenant("large")
    fill(owner, tenant.id, len(BOUNDS_S) + 1)
    return tenant


@pytest.fixture
def collects_as_served(filled: TestTenant) -> Iterator[None]:
    """What the process of the tests has made itself is in no API process."""
    thresholds = gc.get_threshold()
    seldom_collect()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def asked(tenant: TestTenant) -> list[str]:
    """Each GET route, and those that may be large once more."""
    known: dict[str, Any] = {
        "tenant_id": tenant.id,
        "key_id": tenant.key_id,
        "name": "adapter-1",
        "version": 1,
        "model": "adapter-1",
    }
    paths = []
    for path in _ROUTES:
        for name, value in known.items():
            path = path.replace(f"{{{name}}}", str(value))
        paths.append(path)
    return paths + LARGEST


async def test_no_answer_holds_the_loop(
    api: Api, filled: TestTenant, collects_as_served: None
) -> None:
    gaps: dict[str, float] = {}
    for path in asked(filled):
        key = ADMIN_KEY if path.startswith("/admin") else filled.key
        async with watched() as watch:
            answer = await api.call(key, "GET", path)
        assert answer.status_code < 500, f"{path}: {answer.text[:500]}"
        assert path not in LARGEST or answer.status_code == 200, answer.text[:500]
        gaps[path] = watch.worst_s
    worst = sorted(gaps.items(), key=lambda each: -each[1])[:12]
    shown = "\n".join(f"{gap_s * 1000:7.1f} ms  {path}" for path, gap_s in worst)
    print(shown)
    assert worst[0][1] < ALLOWED_S, f"\n{shown}"
