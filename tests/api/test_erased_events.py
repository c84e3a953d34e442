"""A tenant that has been erased is told nothing more, of whatever kind; the operator what the books
need, without a word about a person. Events of before the erasure go with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import text

from api_harness import Api, TestTenant
from tenora_platform.erasure.worker import Eraser
from tenora_platform.events import repository as events
from tenora_platform.ids import new_id
from tenora_platform.settings import Settings
from tenora_platform.webhooks import delivery
from tenora_platform.webhooks.delivery import WebhookWorker
from tenora_platform.webhooks.schemas import EVENT_TYPES
from webhook_harness import Receiver, endpoint, pass_time, pump, receiving

OF_BOOKS = {"invoice.final", "invoice.void", "invoice.credited"}
KINDS = (*EVENT_TYPES, "canary.failed", "something.new")
PERSONAL = "Jane Doe moved away"
DATA = {"id": "inv_1", "number": "T/1", "total": "4.00", "reason": PERSONAL, "name": PERSONAL}
LEFT = {"id": "inv_1", "number": "T/1", "total": "4.00"}


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"webhook_private_addresses": True})


@pytest.fixture(scope="module", autouse=True)
def without_the_workers() -> Iterator[None]:
    """The tests are the workers."""
    patch = pytest.MonkeyPatch()

    async def idle(self: object) -> None:
        await asyncio.sleep(3600)

    patch.setattr(delivery.WebhookWorker, "run", idle)
    patch.setattr(Eraser, "run", idle)
    yield
    patch.undo()


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("to be erased")


@pytest.fixture
async def own() -> AsyncIterator[Receiver]:
    """The tenant's."""
    async with receiving() as made:
        yield made


@pytest.fixture
async def operators(api: Api) -> AsyncIterator[tuple[Receiver, str]]:
    """With the endpoint's id."""
    async with receiving() as made:
        id_ = (await endpoint(api, None, made.url))["id"]
        yield made, id_
        await api.admin("DELETE", f"/admin/v1/webhook_endpoints/{id_}")


async def happen(api: Api, tenant: TestTenant, *kinds: str) -> None:
    for kind in kinds:
        async with api.state.db.tenant_session(tenant.id) as session:
            await events.add(
                session, tenant_id=tenant.id, type=kind, once=new_id("once"), data=DATA
            )


async def erase(api: Api, tenant: TestTenant) -> None:
    path = f"/admin/v1/tenants/{tenant.id}?grace_days=0"
    assert (await api.admin("DELETE", path)).is_success
    assert await Eraser(api.state).run_once() == [tenant.id]


async def count(api: Api, query: str, tenant: TestTenant) -> int:
    async with api.state.db.admin_session() as session:
        return int(await session.scalar(text(query), {"t": tenant.id}) or 0)


DELIVERIES = (
    "SELECT count(*) FROM webhook_deliveries WHERE tenant_id = :t "
    "OR event_id IN (SELECT id FROM events WHERE tenant_id = :t)"
)


def told(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in receiver.got]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_happens_after_it_is_told_the_operator_alone(
    api: Api, tenant: TestTenant, own: Receiver, operators: tuple[Receiver, str], kind: str
) -> None:
    await endpoint(api, tenant.key, own.url)
    await erase(api, tenant)
    await happen(api, tenant, kind)
    await pump(api)
    assert own.got == []
    said = told(operators[0])
    assert [each["type"] for each in said] == ([kind] if kind in OF_BOOKS else [])
    assert [each["data"] for each in said] == [LEFT] * len(said)
    async with api.state.db.admin_session() as session:
        found = await session.scalars(
            text("SELECT data::text FROM events WHERE tenant_id = :t"), {"t": tenant.id}
        )
        assert not any(PERSONAL in each for each in found)


async def test_what_waits_to_be_sent_again_hinders_no_erasure_and_goes_with_it(
    api: Api, tenant: TestTenant, own: Receiver, operators: tuple[Receiver, str]
) -> None:
    """The operator's deliveries, too, refer to the tenant's events."""
    mine = (await endpoint(api, tenant.key, own.url))["id"]
    theirs, operators_id = operators
    own.answer = theirs.answer = lambda _: web.Response(status=503)
    await happen(api, tenant, *KINDS)
    await pump(api)
    assert len(own.got) == len(theirs.got) == len(KINDS)
    await erase(api, tenant)
    assert await count(api, DELIVERIES, tenant) == 0
    assert await count(api, "SELECT count(*) FROM events WHERE tenant_id = :t", tenant) == 0
    for each in (mine, operators_id):
        await pass_time(api, each)
    await pump(api)
    assert len(own.got) == len(theirs.got) == len(KINDS)


@pytest.mark.parametrize("when", ["queued", "claimed"])
async def test_what_was_on_its_way_when_the_time_came(
    api: Api, tenant: TestTenant, own: Receiver, operators: tuple[Receiver, str], when: str
) -> None:
    """Before its rows go, an event may wait for deliveries, or a delivery for its next attempt."""
    mine = (await endpoint(api, tenant.key, own.url))["id"]
    theirs, operators_id = operators
    own.answer = theirs.answer = lambda _: web.Response(status=503)
    await happen(api, tenant, *KINDS)
    if when == "claimed":
        await pump(api)
        for receiver in (own, theirs):
            receiver.got.clear()
        for each in (mine, operators_id):
            await pass_time(api, each)
    path = f"/admin/v1/tenants/{tenant.id}?grace_days=0"
    assert (await api.admin("DELETE", path)).is_success  # and the eraser has not come yet
    own.answer = theirs.answer = lambda _: web.Response(status=204)
    await pump(api)
    assert own.got == []
    assert {each["type"] for each in told(theirs)} == OF_BOOKS
    assert [each["data"] for each in told(theirs)] == [LEFT] * len(OF_BOOKS)
    waiting = "SELECT count(*) FROM webhook_deliveries WHERE tenant_id = :t AND state = 'waiting'"
    assert await count(api, waiting, tenant) == 0
    worker = WebhookWorker.of(api.state)
    assert not await worker.step(), "nothing is tried again"
    await Eraser(api.state).run_once()
