"""A server that webhooks are sent to, and a worker of theirs that works when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from sqlalchemy import text

from api_harness import ADMIN_KEY, Api
from tenora_platform.events import repository as events
from tenora_platform.ids import new_id
from tenora_platform.state import AppState
from tenora_platform.webhooks.delivery import WebhookWorker


@dataclass
class Receiver:
    """An endpoint's server: what came, and what it answers."""

    url: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answer: Callable[[web.Request], web.StreamResponse] = lambda _: web.Response(status=204)
    delay_s: float = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append((headers, await request.read()))
        await asyncio.sleep(self.delay_s)
        return self.answer(request)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"http://127.0.0.1:{port}/hooks"
    yield receiver
    await runner.cleanup()


async def endpoint(api: Api, key: str | None, url: str, **body: Any) -> dict[str, Any]:
    """Of the tenant's with this key, or of the operator's."""
    path = "/v1/webhook_endpoints" if key else "/admin/v1/webhook_endpoints"
    answer = await api.call(key or ADMIN_KEY, "POST", path, json={"url": url, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def happen(state: AppState, tenant_id: str, type_: str = "invoice.final") -> str:
    """An event's id."""
    once = new_id("once")
    async with state.db.tenant_session(tenant_id) as session:
        await events.add(session, tenant_id=tenant_id, type=type_, once=once, data={"n": once})
        found = await session.scalar(text("select id from events where once = :o"), {"o": once})
    return str(found)


async def pump(api: Api, workers: int = 1) -> None:
    """Until nothing is due."""
    made = [WebhookWorker.of(api.state) for _ in range(workers)]
    while any(
        [*await asyncio.gather(*(each.step() for each in made)), *(e._sending for e in made)]
    ):
        for each in made:
            await each.settled()


async def deliveries(api: Api, key: str, endpoint_id: str, **query: str) -> list[dict[str, Any]]:
    path = f"/v1/webhook_endpoints/{endpoint_id}/deliveries"
    answer = await api.call(key, "GET", path, params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def pass_time(api: Api, endpoint_id: str) -> None:
    """What waits is due now, and what was claimed counts as lost."""
    async with api.state.db.admin_session() as session:
        await session.execute(
            text(
                "update webhook_deliveries set next_at = now(), claimed_until = null"
                " where endpoint_id = :id"
            ),
            {"id": endpoint_id},
        )
