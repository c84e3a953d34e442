"""One tenant's receivers, names and cookies beside another's: what hangs holds its own places only,
over all workers, and nothing that a receiver answers is sent to the next."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import text

from api_harness import Api, TestTenant
from tenora_platform.settings import Settings
from tenora_platform.webhooks import addresses, delivery, repository
from tenora_platform.webhooks.addresses import BadAddressError, target_of
from tenora_platform.webhooks.delivery import OF_ENDPOINT, OF_TENANT, WebhookWorker
from tenora_platform.webhooks.repository import Claim
from tenora_platform.webhooks.resolver import Resolver
from tenora_platform.webhooks.sender import Outcome, Sender
from webhook_harness import endpoint, happen, pass_time, receiving


@pytest.fixture(scope="module")
def without_the_worker() -> Iterator[None]:
    patch = pytest.MonkeyPatch()

    async def idle(self: WebhookWorker) -> None:
        await asyncio.Event().wait()

    patch.setattr(delivery.WebhookWorker, "run", idle)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def settings(settings: Settings, without_the_worker: None) -> Settings:
    return settings.model_copy(update={"webhook_private_addresses": True})


@pytest.fixture(autouse=True)
async def nothing_is_left(api: Api) -> AsyncIterator[None]:
    yield
    async with api.state.db.admin_session() as session:
        await session.execute(
            text("update webhook_deliveries set state = 'dead', claimed_until = null")
        )


class Receivers(Sender):
    """Those whose URL says so never answer."""

    def __init__(self) -> None:
        super().__init__(private=True)
        self.begun = Counter[tuple[str, str]]()  # by (owner, URL)
        self.delivered = asyncio.Event()

    async def send(self, url: str, headers: dict[str, str], body: bytes, *, owner: str) -> Outcome:
        self.begun[owner, url] += 1
        if "hangs" in url:
            await asyncio.Event().wait()
        self.delivered.set()
        return Outcome(204, None)

    def of(self, tenant: TestTenant) -> int:
        return sum(number for (owner, _), number in self.begun.items() if owner == tenant.id)


class Workers:
    """With these receivers; `step` lets all of them work once."""

    def __init__(self, api: Api, number: int) -> None:
        self.receivers = Receivers()
        state = api.state
        self.all = [
            WebhookWorker(
                state.db, state.secret, state.metrics, private=True, sender=self.receivers
            )
            for _ in range(number)
        ]

    async def step(self) -> None:
        await asyncio.gather(*(each.step() for each in self.all))
        await asyncio.sleep(0)  # what was claimed begins

    async def end(self) -> None:
        tasks = [task for each in self.all for task in each._sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def workers(api: Api) -> AsyncIterator[Workers]:
    made = Workers(api, 2)
    yield made
    await made.end()


async def hanging(api: Api, endpoints: int, events: int) -> TestTenant:
    """A tenant with receivers that never answer, and events for each of them."""
    tenant = await api.new_tenant("slow")
    for no in range(endpoints):
        await endpoint(api, tenant.key, f"http://127.0.0.1:9/hangs/{no}")
    for _ in range(events):
        await happen(api.state, tenant.id)
    return tenant


async def test_receivers_that_hang_hold_a_tenants_own_places(api: Api, workers: Workers) -> None:
    slow = await hanging(api, endpoints=20, events=10)
    other = await api.new_tenant("other")
    await endpoint(api, other.key, "http://127.0.0.1:9/works")
    await happen(api.state, other.id)
    await workers.step()
    await workers.receivers.delivered.wait()
    for _ in range(3):
        await workers.step()
    assert workers.receivers.of(slow) == OF_TENANT
    assert workers.receivers.of(other) == 1
    # The next of the other's has a place at once, too.
    workers.receivers.delivered.clear()
    await happen(api.state, other.id)
    await workers.step()
    await workers.receivers.delivered.wait()
    assert workers.receivers.of(slow) == OF_TENANT


async def test_one_receiver_that_hangs_leaves_the_tenants_others_places(
    api: Api, workers: Workers
) -> None:
    tenant = await hanging(api, endpoints=1, events=20)
    await endpoint(api, tenant.key, "http://127.0.0.1:9/works")
    await happen(api.state, tenant.id)
    for _ in range(3):
        await workers.step()
    await workers.receivers.delivered.wait()
    begun = workers.receivers.begun
    assert begun[tenant.id, "http://127.0.0.1:9/hangs/0"] == OF_ENDPOINT
    assert begun[tenant.id, "http://127.0.0.1:9/works"] == 1


async def test_some_places_are_for_who_has_none(
    api: Api, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receivers of several tenants that hang fill a worker only as far as each has one there."""
    monkeypatch.setattr(delivery, "AT_ONCE", 8)
    monkeypatch.setattr(delivery, "FOR_FIRST", 4)
    workers.all = workers.all[:1]
    several = [await hanging(api, endpoints=4, events=4) for _ in range(3)]
    for _ in range(5):
        await workers.step()
    assert sum(workers.receivers.of(each) for each in several) <= 4 + len(several)
    other = await api.new_tenant("other")
    await endpoint(api, other.key, "http://127.0.0.1:9/works")
    await happen(api.state, other.id)
    await workers.step()
    await workers.receivers.delivered.wait()


async def fan_out(api: Api) -> None:
    """Deliveries are made; nobody claims them yet."""
    async with api.state.db.admin_session() as session:
        while await repository.fan_out(session, 200):
            pass


async def claimed(api: Api, limit: int, *, of_tenant: int = 8) -> list[str]:
    """The tenants of what was claimed."""
    wanted = Claim(of_endpoint=4, of_tenant=of_tenant, limit=limit, lease_s=60)
    async with api.state.db.admin_session() as session:
        ids = await repository.claim(session, wanted)
        return [str(due.row.tenant_id) for due in await repository.to_send(session, ids)]


async def test_tenants_take_turns(api: Api) -> None:
    many = await hanging(api, endpoints=3, events=5)
    few = [await hanging(api, endpoints=1, events=2) for _ in range(2)]
    await fan_out(api)
    assert sorted(await claimed(api, 3)) == sorted(each.id for each in (many, *few))
    second = Counter(await claimed(api, 100))
    assert second == {many.id: 7, few[0].id: 1, few[1].id: 1}
    assert await claimed(api, 100) == []


async def test_claims_of_many_workers_at_once_keep_within_the_bounds(api: Api) -> None:
    tenant = await hanging(api, endpoints=2, events=20)
    await fan_out(api)
    of_all = await asyncio.gather(*(claimed(api, 100, of_tenant=6) for _ in range(6)))
    assert Counter(each for some in of_all for each in some) == {tenant.id: 6}


async def test_a_place_is_free_again_when_its_delivery_is_sent_anew_or_lost(
    api: Api, workers: Workers
) -> None:
    tenant = await api.new_tenant("again")
    made = await endpoint(api, tenant.key, "http://127.0.0.1:9/hangs")
    for _ in range(OF_ENDPOINT + 1):
        await happen(api.state, tenant.id)
    await workers.step()
    assert workers.receivers.of(tenant) == OF_ENDPOINT
    await workers.end()
    await pass_time(api, made["id"])  # the worker was lost, and its claims with it
    again = Workers(api, 1)
    await again.step()
    assert again.receivers.of(tenant) == OF_ENDPOINT
    await again.end()


async def test_nothing_of_an_answer_is_sent_to_the_next_receiver() -> None:
    """One address, as that of a proxy that many tenants' receivers are behind."""
    seen: list[tuple[dict[str, str], Any]] = []

    def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        seen.append((dict(request.headers), request.transport.get_extra_info("peername")))
        response = web.Response(status=200)
        response.set_cookie("session", "x" * 3000)
        return response

    sender = Sender(private=True)
    async with receiving() as receiver:
        receiver.answer = answer
        for owner in ("one", "another"):
            outcome = await sender.send(receiver.url, {}, b"{}", owner=owner)
            assert outcome.delivered
    (first, its_connection), (second, another) = seen
    assert "Cookie" not in second
    assert first == second
    assert its_connection != another


class Names:
    """Looked up in threads: those that hang do so until they are `freed`."""

    def __init__(self) -> None:
        self.freed = threading.Event()
        self.begun = Counter[str]()

    def __call__(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        self.begun[host] += 1
        if host.startswith("hangs"):
            self.freed.wait()
        return [(0, 0, 6, "", ("1.1.1.1", port))]


async def test_names_that_hang_hold_a_tenants_own_lookups() -> None:
    names = Names()
    resolver = Resolver(names, of_one=2, in_all=8)
    hung = [
        asyncio.create_task(resolver.addresses("slow", f"hangs{no}.example", 443))
        for no in range(20)
    ]
    try:
        for owner in ("a", "b", "c"):
            assert await resolver.addresses(owner, "fine.example", 443) == ["1.1.1.1"]
        assert sum(names.begun.values()) == 2 + 3
        # Given up or not, a lookup has its place until it has ended.
        for each in hung:
            each.cancel()
        await asyncio.gather(*hung, return_exceptions=True)
        later = asyncio.create_task(resolver.addresses("slow", "fine.example", 443))
        assert await resolver.addresses("a", "fine.example", 443) == ["1.1.1.1"]
        assert not later.done()
    finally:
        names.freed.set()
    assert await later == ["1.1.1.1"]
    async with asyncio.timeout(10):
        while resolver._own:  # noqa: ASYNC110 - threads end by themselves
            await asyncio.sleep(0.01)


async def test_who_waits_for_a_name_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    monkeypatch.setattr(addresses, "_RESOLVE_S", 0.0)
    with pytest.raises(BadAddressError, match=r"hangs\.example could not be resolved: no answer"):
        await target_of("https://hangs.example/", Resolver(names), "ten", private=False)
    names.freed.set()
