"""Every route that asks who is there, with keys and sessions that were good once: expired, revoked,
of a person who was removed. None is let in anywhere."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial

import httpx
import pytest
from sqlalchemy import text

from api_harness import Api
from described import document
from people import session_of_key, signed_in

ROUTES = sorted(
    f"{method} {path}"
    for path, operations in document()["paths"].items()
    for method in operations
    if path.startswith(("/v1/", "/admin/"))
)
Call = Callable[[str, str], Awaitable[httpx.Response]]
_PAST = "now() - interval '1 second'"


@pytest.fixture(scope="module")
async def ended(api: Api) -> dict[str, Call]:
    """By what has ended. Each was let in before."""
    expired, revoked, ended, over, removed = [
        await api.new_tenant(name, plan="premium")
        for name in ("expired", "revoked", "ended", "over", "removed")
    ]
    by_session = {each.id: await session_of_key(api, each.key) for each in (revoked, ended, over)}
    person = await signed_in(api, (removed.id, "owner"))
    calls: dict[str, Call] = {
        "expired key": partial(api.call, expired.key),
        "revoked key": partial(api.call, revoked.key),
        "session of a revoked key": by_session[revoked.id].call,
        "ended session": by_session[ended.id].call,
        "expired session": by_session[over.id].call,
        "removed person": person.call,
    }
    for name, call in calls.items():
        assert (await call("GET", "/v1/me")).is_success, name
    await api.admin("DELETE", f"/admin/v1/tenants/{revoked.id}/api_keys/{revoked.key_id}")
    await by_session[ended.id].call("POST", "/auth/logout")
    async with api.state.db.admin_session() as session:
        for statement, of in (
            (f"update api_keys set expires_at = {_PAST} where tenant_id = :of", expired.id),
            (f"update sessions set expires_at = {_PAST} where api_key_id = :of", over.key_id),
            ("delete from memberships where tenant_id = :of", removed.id),
        ):
            await session.execute(text(statement), {"of": of})
    await api.state.auth.invalidate()
    return calls


@pytest.mark.parametrize("route", ROUTES)
async def test_nobody_is_let_in_by_what_has_ended(ended: dict[str, Call], route: str) -> None:
    method, path = route.split()
    filled = re.sub(r"{\w+}", "nothing", path)
    for name, call in ended.items():
        answer = await call(method, filled)
        refused = {403 if name == "removed person" else 401}
        if path.startswith("/admin/"):
            refused.add(403)  # whom it would not let in anyway
        assert answer.status_code in refused, (name, answer.text)
