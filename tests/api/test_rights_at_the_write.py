"""A right is asked for when it is used, not only when a request begins: bodies that are held back,
and transactions that are under way while their asker's right is taken away."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import Connection, delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.types import Message

from api_harness import Api, TestTenant
from described import document
from people import signed_in
from tenora_platform import asking, edge
from tenora_platform.asking import Asker, take
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import ForbiddenError
from tenora_platform.people.repository import lock_members
from tenora_platform.people.tables import InvitationRow, MembershipRow
from tenora_platform.tenants.tables import ApiKeyRow

MAKES = {"content-type": "application/json"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@dataclass
class Held:
    """A request whose body is on its way: it has been let in, and waits for the rest."""

    answered: asyncio.Task[tuple[int, dict[str, Any]]]
    body: asyncio.Event

    async def rest(self) -> tuple[int, dict[str, Any]]:
        self.body.set()
        return await self.answered


async def held(
    api: Api,
    method: str,
    path: str,
    headers: dict[str, str],
    content: object = None,
    *,
    raw: bytes | None = None,
) -> Held | None:
    """None: it was answered before anybody asked for its body."""
    raw = json.dumps(content or {}).encode() if raw is None else raw
    waits, goes_on = asyncio.Event(), asyncio.Event()
    said: list[Message] = []

    async def receive() -> Message:
        waits.set()
        await goes_on.wait()
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)

    heads = {**MAKES, "content-length": str(len(raw)), **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in heads.items()],
        "http_version": "1.1",
    }

    async def whole() -> tuple[int, dict[str, Any]]:
        await api.app(scope, receive, send)
        body = b"".join(each.get("body", b"") for each in said[1:])
        return said[0]["status"], json.loads(body)

    task = asyncio.ensure_future(whole())
    asked = asyncio.ensure_future(waits.wait())
    await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    return Held(task, goes_on) if waits.is_set() else None


@pytest.fixture(params=["asked again", "asked in the transaction"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two must do alone."""
    again = request.param == "asked again"
    monkeypatch.setattr(edge, "ASKED_AGAIN_AFTER_S", -1.0 if again else float("inf"))
    return str(request.param)


Ends = Callable[[], Awaitable[httpx.Response]]


async def admins(api: Api) -> tuple[dict[str, str], Ends]:
    made = await api.admin("POST", "/admin/v1/admin_keys", json={"name": "a", "role": "owner"})
    key = made.json()
    return bearer(key["key"]), lambda: api.admin("DELETE", f"/admin/v1/admin_keys/{key['id']}")


async def operators(api: Api) -> tuple[dict[str, str], Ends]:
    person = await signed_in(api, (None, "owner"))
    path = f"/admin/v1/people/{person.id}"
    return person.headers, lambda: api.admin("PATCH", path, json={"role": "read_only"})


async def members(api: Api, tenant: TestTenant) -> tuple[dict[str, str], Ends]:
    await signed_in(api, (tenant.id, "owner"))
    person = await signed_in(api, (tenant.id, "owner"))
    path = f"/admin/v1/tenants/{tenant.id}/people/{person.id}"
    return person.headers, lambda: api.admin("DELETE", path)


async def keys(api: Api, tenant: TestTenant) -> tuple[dict[str, str], Ends]:
    path = f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
    return bearer(tenant.key), lambda: api.admin("DELETE", path)


HOOK = {"url": "https://hooks.example.com/tenora"}


@pytest.mark.parametrize(
    ("who", "path", "content"),
    [
        ("admin key", "/admin/v1/admin_keys", {"name": "n", "role": "owner"}),
        ("admin key", "/admin/v1/tenants/{tenant}/api_keys", {}),
        ("admin key", "/admin/v1/invitations", {"role": "owner"}),
        ("operator", "/admin/v1/admin_keys", {"name": "n", "role": "owner"}),
        ("operator", "/admin/v1/tenants/{tenant}/invitations", {"role": "owner"}),
        ("operator", "/admin/v1/webhook_endpoints", HOOK),
        ("member", "/v1/api_keys", {}),
        ("member", "/v1/api_keys/{key}/rotate", {}),
        ("member", "/v1/invitations", {"role": "owner"}),
        ("member", "/v1/webhook_endpoints", HOOK),
        ("member", "/v1/uploads", {"bytes": 1000}),
        ("key", "/v1/api_keys", {}),
        ("key", "/v1/api_keys/{key}/rotate", {}),
        ("key", "/v1/webhook_endpoints", HOOK),
    ],
)
async def test_a_right_that_ended_before_the_body_came(
    api: Api, by: str, who: str, path: str, content: dict[str, Any]
) -> None:
    tenant = await api.new_tenant()
    headers, end = await {
        "admin key": lambda: admins(api),
        "operator": lambda: operators(api),
        "member": lambda: members(api, tenant),
        "key": lambda: keys(api, tenant),
    }[who]()
    path = path.format(tenant=tenant.id, key=tenant.key_id)
    request = await held(api, "POST", path, headers, content)
    assert request is not None
    assert (await end()).status_code == 200
    status, answer = await request.rest()
    assert status in (401, 403), (by, answer)


async def test_inference_by_a_key_that_ended_before_the_prompt_came(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "ASKED_AGAIN_AFTER_S", -1.0)
    tenant = await api.new_tenant()
    headers, end = await keys(api, tenant)
    said = {"model": api.engine.model.id, "messages": [{"role": "user", "content": "Hi"}]}
    request = await held(api, "POST", "/v1/chat/completions", headers, said)
    assert request is not None
    await end()
    status, answer = await request.rest()
    assert (status, answer["error"]["code"]) == (401, "key_revoked")


async def test_a_form_by_a_session_that_ended_before_it_came(api: Api) -> None:
    tenant = await api.new_tenant()
    person = await signed_in(api, (tenant.id, "owner"))
    opened = (await person.call("POST", "/v1/uploads", json={"bytes": 4})).json()["id"]
    form = (
        '--b\r\ncontent-disposition: form-data; name="data"; filename="d"\r\n\r\nabcd\r\n--b--\r\n'
    )
    headers = person.headers | {"content-type": "multipart/form-data; boundary=b"}
    request = await held(api, "POST", f"/v1/uploads/{opened}/parts", headers, raw=form.encode())
    assert request is not None
    await person.call("POST", "/auth/logout")
    status, answer = await request.rest()
    assert (status, answer["error"]["code"]) == (401, "session_over")


async def test_an_invitation_is_not_accepted_by_a_session_that_ended_meanwhile(
    api: Api, by: str
) -> None:
    tenant = await api.new_tenant()
    path = f"/admin/v1/tenants/{tenant.id}/invitations"
    link = (await api.admin("POST", path, json={"role": "viewer"})).json()["link"]
    person = await signed_in(api)
    token = {"token": link.partition("#")[2]}
    request = await held(api, "POST", "/auth/invitations/accept", person.headers, token)
    assert request is not None
    await person.call("POST", "/auth/logout")
    status, answer = await request.rest()
    assert (status, answer["error"]["code"]) == (401, "session_over"), by


WITHOUT_A_RIGHT = {
    ("POST", "/auth/session"),  # begins one
    ("POST", "/auth/invitations/look"),
    ("POST", "/auth/invitations/accept"),  # asks for its session itself
    ("POST", "/auth/logout"),  # ends its own
    ("DELETE", "/auth/sessions/{session_id}"),
}
"""What changes things for somebody who has no key and no role."""


def changing() -> list[tuple[str, str]]:
    paths = document()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return [each for each in routes if each[0] != "GET" and each not in WITHOUT_A_RIGHT]


async def test_every_route_that_changes_something_writes_as_its_asker(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but inference, which does not choose what is written."""
    tenant = await api.new_tenant(plan="premium")
    owner = await signed_in(api, (tenant.id, "owner"), (None, "owner"))
    upload = (await owner.call("POST", "/v1/uploads", json={"bytes": 10})).json()["id"]
    inference = {path for path, route in served_routes(api).items() if route.serves_inference}

    @contextmanager
    def found(asker: Asker | None) -> Iterator[None]:
        if asker is not None:
            raise ForbiddenError("writes as its asker", code="asked")
        yield

    monkeypatch.setattr(edge, "asking", found)
    for method, path in changing():
        if path in inference:
            continue
        filled = re.sub(r"{\w+}", upload if "/uploads/" in path else "nothing", path)
        answer = await owner.call(method, filled)
        assert answer.json()["error"]["code"] == "asked", (method, path, answer.text)


def served_routes(api: Api) -> dict[str, EdgeRoute]:
    found = (context.original_route for context in iter_route_contexts(api.app.routes))
    return {route.path: route for route in found if isinstance(route, EdgeRoute)}


WRITES: dict[str, Callable[[AsyncSession, str], Awaitable[object]]] = {
    "a new row": lambda session, tenant_id: _added(session, tenant_id),
    "a statement": lambda session, tenant_id: session.execute(
        update(ApiKeyRow).where(ApiKeyRow.tenant_id == tenant_id).values(name="changed")
    ),
    "a locked row": lambda session, tenant_id: session.execute(
        select(ApiKeyRow).where(ApiKeyRow.tenant_id == tenant_id).with_for_update()
    ),
    "a right taken away": lambda session, tenant_id: take(session, tenant_id),
}


async def _added(session: AsyncSession, tenant_id: str) -> None:
    session.add(ApiKeyRow(id="k", tenant_id=tenant_id, name="n", prefix="p", hash="h", scopes=[]))
    await session.flush()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("operators", [True, False])
async def test_no_transaction_writes_for_who_has_lost_the_right(
    api: Api, write: str, operators: bool
) -> None:
    def refuse(_: Connection) -> None:
        raise ForbiddenError("gone", code="gone")

    tenant = await api.new_tenant()
    db = api.state.db
    asker = Asker(place=tenant.id, require=refuse)
    opened = db.admin_session if operators else partial(db.tenant_session, tenant.id)
    with asking.asking(asker):
        async with opened() as session:  # who reads is not asked
            assert await session.scalar(select(func.count()).select_from(ApiKeyRow))
        with pytest.raises(ForbiddenError):
            async with opened() as session:
                await WRITES[write](session, tenant.id)
        others = await asyncio.create_task(_is_watched(opened))
    assert not others, "what a request sets going is not its own"


async def _is_watched(opened: Callable[[], AbstractAsyncContextManager[AsyncSession]]) -> bool:
    async with opened() as session:
        return "asker" in session.info


@pytest.mark.parametrize("place", ["tenant", "operator"])
async def test_who_writes_waits_for_who_takes_the_right_away(api: Api, place: str) -> None:
    """The removal is under way, and not committed yet: nothing of it is to be seen."""
    tenant = await api.new_tenant()
    where = tenant.id if place == "tenant" else None
    person = await signed_in(api, (where, "owner"))
    path = "/v1/api_keys" if where else "/admin/v1/admin_keys"
    async with api.state.db.admin_session() as session:
        await lock_members(session, where)
        await session.execute(delete(MembershipRow).where(MembershipRow.person_id == person.id))
        making = asyncio.create_task(
            person.call("POST", path, json={"name": "n", **({} if where else {"role": "owner"})})
        )
        while not making.done() and not await _somebody_waits(api):  # noqa: ASYNC110 - PostgreSQL's
            await asyncio.sleep(0.01)
    refused = await making
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_a_member")


async def test_who_takes_a_right_away_is_never_in_a_circle_with_who_has_it(api: Api) -> None:
    """Both note what they did in one audit log, whose lock is theirs alone."""
    tenant = await api.new_tenant()
    db, told = api.state.db, partial(api.state.audit.append, actor="a test", tenant_id=tenant.id)

    async def by_its_asker() -> None:
        with asking.asking(Asker(place=tenant.id, require=lambda _: None)):
            async with db.tenant_session(tenant.id) as session:
                await told(session, action="one.first", target="one")

    async with db.admin_session() as session:
        await take(session, tenant.id)
        other = asyncio.create_task(by_its_asker())
        while not other.done() and not await _somebody_waits(api):  # noqa: ASYNC110 - PostgreSQL's
            await asyncio.sleep(0.01)
        await told(session, action="one.second", target="one")
    await other


async def _somebody_waits(api: Api) -> bool:
    waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    async with api.state.db.admin_session() as session:
        return bool(await session.scalar(text(waiting)))


async def test_a_removal_finds_all_that_was_made_until_then(api: Api) -> None:
    tenant = await api.new_tenant()
    await signed_in(api, (tenant.id, "owner"))
    person = await signed_in(api, (tenant.id, "owner"))
    path = f"/admin/v1/tenants/{tenant.id}/people/{person.id}"
    made = [
        person.call("POST", where, json=content)
        for _ in range(6)
        for where, content in (("/v1/api_keys", {}), ("/v1/invitations", {"role": "owner"}))
    ]
    half = len(made) // 2
    answers = await asyncio.gather(*made[:half], api.admin("DELETE", path), *made[half:])
    assert answers[half].status_code == 200
    async with api.state.db.admin_session() as session:
        keys_left = await session.scalar(
            select(func.count())
            .select_from(ApiKeyRow)
            .where(ApiKeyRow.created_by == f"person:{person.id}", ApiKeyRow.revoked_at.is_(None))
        )
        links_left = await session.scalar(
            select(func.count())
            .select_from(InvitationRow)
            .where(InvitationRow.created_by == f"person:{person.id}")
        )
    assert (keys_left, links_left) == (0, 0)


async def test_a_demotion_leaves_no_link_for_when_its_maker_is_an_owner_again(api: Api) -> None:
    tenant = await api.new_tenant()
    await signed_in(api, (tenant.id, "owner"))
    person = await signed_in(api, (tenant.id, "owner"))
    path = f"/admin/v1/tenants/{tenant.id}/people/{person.id}"
    made = [person.call("POST", "/v1/invitations", json={"role": "owner"}) for _ in range(10)]
    await asyncio.gather(*made[:5], api.admin("PATCH", path, json={"role": "viewer"}), *made[5:])
    again = await api.admin("PATCH", path, json={"role": "owner"})
    assert again.status_code == 200
    async with api.state.db.admin_session() as session:
        mine = InvitationRow.created_by == f"person:{person.id}"
        assert not await session.scalar(select(func.count()).select_from(InvitationRow).where(mine))
