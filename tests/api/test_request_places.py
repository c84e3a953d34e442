"""Requests of management wait for a place of their tenant's, and for nobody else's; inference, the
operator and the probes wait for none."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from starlette.types import Message

from api_harness import Api, TestTenant
from described import document
from tenora_platform.auth import SCOPES
from tenora_platform.db import tenants_connections
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import RateLimitedError
from tenora_platform.request_places import (
    PLACES,
    WAITING_MAX,
    Place,
    RequestPlaces,
    places_of,
)

CHAT = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
LISTED = "/v1/adapters"


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("many", plan="premium", scopes=list(SCOPES))


@pytest.fixture
async def held(api: Api, tenant: TestTenant) -> AsyncIterator[list[Place]]:
    """All places of the tenant are taken."""
    places = [api.state.places.place(tenant.id) for _ in range(PLACES)]
    for place in places:
        await place.enter()
    yield places
    for place in places:
        place.leave()
    assert len(api.state.places) == 0


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_tenants_requests_are_served_in_their_order() -> None:
    places, served = RequestPlaces(), list[str]()

    async def ask(tenant_id: str, number: int) -> Place:
        place = places.place(tenant_id)
        await place.enter()
        served.append(f"{tenant_id}{number}")
        return place

    many = [asyncio.create_task(ask("a", number)) for number in range(PLACES + 3)]
    await settled()
    other = await ask("b", 0)
    assert served == [*(f"a{number}" for number in range(PLACES)), "b0"]
    for number in range(3):
        (await many[number]).leave()
        await settled()
        assert served[-1] == f"a{PLACES + number}"
    for task in many[3:]:
        (await task).leave()
    other.leave()
    assert len(places) == 0, "nothing of them is kept"


async def test_one_that_goes_while_it_waits_takes_no_place() -> None:
    places = RequestPlaces()
    first = [places.place("a") for _ in range(PLACES)]
    for place in first:
        await place.enter()
    waiting = asyncio.create_task(places.place("a").enter())
    await settled()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert places.there("a") == PLACES
    for place in first:
        place.leave()
        place.leave()  # once is enough
    assert len(places) == 0


async def test_who_has_nothing_in_work_is_next_however_many_wait() -> None:
    """Four tenants with all they may send took all connections for tenants, and a fifth waited
    behind every one of them."""
    places, served = RequestPlaces(at_once=3 * PLACES), list[str]()

    async def ask(tenant_id: str) -> Place:
        place = places.place(tenant_id)
        await place.enter()
        served.append(tenant_id)
        return place

    floods = [asyncio.create_task(ask(each)) for each in "abc" for _ in range(3 * PLACES)]
    await settled()
    assert len(served) == 3 * PLACES, "of all together no more are in work"
    assert max(Counter(served).values()) <= PLACES
    small = [asyncio.create_task(ask("small")) for _ in range(2)]
    await settled()
    assert not any(each.done() for each in small)
    done = [each for each in floods if each.done()]
    (await done[0]).leave()
    await settled()
    assert served[3 * PLACES :] == ["small"], "one end of a request was enough"
    for each in [*floods, *small]:
        each.cancel()
    await asyncio.wait([*floods, *small])
    for each in [*floods, *small]:
        if not each.cancelled():
            each.result().leave()
    assert len(places) == 0
    assert places._free == 3 * PLACES, "none is lost"


async def test_a_place_that_is_given_to_who_has_gone_is_given_to_the_next() -> None:
    places = RequestPlaces(at_once=1)
    first = places.place("a")
    await first.enter()
    gone, after = (asyncio.create_task(places.place(each).enter()) for each in "bc")
    await settled()
    first.leave()  # to b, which has not run since
    gone.cancel()
    await after
    assert gone.cancelled()
    assert len(places) == 1


@pytest.mark.parametrize("connections", [4, 24, 60])
def test_management_leaves_connections_to_others(connections: int) -> None:
    of_tenants = tenants_connections(connections)
    assert 1 <= places_of(of_tenants) < of_tenants


async def test_a_line_has_an_end() -> None:
    places = RequestPlaces()
    tasks = [asyncio.create_task(places.place("a").enter()) for _ in range(PLACES + WAITING_MAX)]
    await settled()
    with pytest.raises(RateLimitedError) as caught:
        await places.place("a").enter()
    assert caught.value.code == "too_many_requests_at_once"
    await places.place("b").enter()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_one_waits_for_its_own_tenants_alone(
    api: Api, tenant: TestTenant, held: list[Place]
) -> None:
    other = await api.new_tenant("other")
    waiting = [asyncio.create_task(api.call(tenant.key, "GET", LISTED)) for _ in range(3)]
    assert (await api.call(other.key, "GET", LISTED)).status_code == 200
    assert (await api.admin("GET", "/admin/v1/tenants")).status_code == 200
    assert (await api.http.get("/healthz")).status_code == 200
    chat = await api.call(tenant.key, "POST", "/v1/chat/completions", json=CHAT)
    assert chat.status_code == 200, chat.text
    assert not any(each.done() for each in waiting)
    held[0].leave()
    answers = await asyncio.gather(*waiting)
    assert [each.status_code for each in answers] == [200] * 3


async def test_a_body_that_comes_takes_no_place(api: Api, tenant: TestTenant) -> None:
    """Nor is one held for the next by who sends slowly."""
    asked, rest = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        asked.set()
        await rest.wait()
        return {"type": "http.request", "body": b'{"bytes": 1000}', "more_body": False}

    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/uploads",
        "raw_path": b"/v1/uploads",
        "query_string": b"",
        "headers": [
            (b"authorization", f"Bearer {tenant.key}".encode()),
            (b"content-length", b"15"),
        ],
        "http_version": "1.1",
    }
    call = asyncio.create_task(api.app(scope, receive, send))
    await asked.wait()
    assert api.state.places.there(tenant.id) == 0
    rest.set()
    await call
    assert said[0]["status"] == 200, json.loads(said[1]["body"])
    assert len(api.state.places) == 0


async def test_an_export_goes_on_in_a_place(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And holds none while its client reads."""
    monkeypatch.setattr("tenora_platform.audit.routes._EXPORTED_AT_ONCE", 1)
    for _ in range(3):
        made = await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "x"})
        assert made.status_code == 201, made.text
    entered = Counter[bool]()
    enter = Place.enter

    async def counted(place: Place, *, begun: bool = False) -> None:
        entered[begun] += 1
        await enter(place, begun=begun)

    monkeypatch.setattr(Place, "enter", counted)
    answer = await api.call(tenant.key, "GET", "/v1/audit_logs/export")
    assert answer.status_code == 200
    lines = answer.text.splitlines()
    assert len(lines) >= 3
    assert entered == {False: 1, True: len(lines) + 1}
    assert len(api.state.places) == 0


async def test_a_repeated_request_needs_one_as_well(
    api: Api, tenant: TestTenant, held: list[Place]
) -> None:
    """To look for its first answer is work too; and it never waits for one that it holds."""
    headers = {"idempotency-key": "one"}
    calls = [
        asyncio.create_task(
            api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 10}, headers=headers)
        )
        for _ in range(2 * PLACES)
    ]
    await settled()
    assert not any(each.done() for each in calls)
    for place in held:
        place.leave()
    statuses = Counter(each.status_code for each in await asyncio.gather(*calls))
    assert set(statuses) <= {200, 409}, statuses
    assert statuses[200] >= 1


def managed(api: Api) -> list[tuple[str, str]]:
    """All that a tenant's key may ask and that is no inference."""
    found = []
    described = document()["paths"]
    for each in iter_route_contexts(api.app.routes):
        path, route = each.path or "", each.original_route
        if not path.startswith("/v1/") or path not in described:
            continue
        assert isinstance(route, EdgeRoute)
        if not route.serves_inference:
            found += [(method, path) for method in sorted(each.methods or ())]
    return found


async def test_every_route_of_management_needs_one(
    api: Api, tenant: TestTenant, held: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_platform.request_places.WAITING_MAX", 0)
    codes: Counter[str] = Counter()
    for method, path in managed(api):
        asked = path.replace("{", "").replace("}", "")
        body: dict[str, Any] = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
        answer = await api.call(tenant.key, method, asked, **body)
        code = answer.json()["error"]["code"]
        codes[code] += 1
        if answer.status_code != 429:
            assert code in ("person_required", "not_found", "method_not_allowed"), (method, path)
    assert codes["too_many_requests_at_once"] > 60, codes
