"""People who are signed in, without a provider: what it would have said is written down, and the
rest is as always."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from api_harness import Api, brief
from tenora_platform.ids import new_id
from tenora_platform.people import repository, service
from tenora_platform.people.oidc import Identity
from tenora_platform.people.sessions import COOKIE, Origin


@dataclass(frozen=True)
class Person:
    """Somebody with a session."""

    api: Api
    id: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        csrf = self.api.state.auth.sessions.csrf_token(self.token)
        return {"cookie": f"{COOKIE}={self.token}", "x-csrf-token": csrf}

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {**self.headers, **more.pop("headers", {})}
        return await self.api.http.request(method, brief(path), headers=headers, **more)


async def signed_in(
    api: Api, *belongs: tuple[str | None, str], email: str | None = None, verified: bool = True
) -> Person:
    """A new person with these roles, `(tenant's id or None for the operator's people, role)`."""
    subject = new_id("subject")
    said = email or f"{subject}@example.com"
    identity = Identity("https://issuer.example", subject, said, verified, "Some One")
    async with api.state.db.admin_session() as session:
        row = await repository.put_person(session, identity)
        for tenant_id, role in belongs:
            await service.join(session, api.state.audit, row, tenant_id, role, invitation=None)
        origin = Origin("192.0.2.7", "a test")
        begun = await api.state.auth.sessions.begin(session, origin, person_id=row.id)
    return Person(api, row.id, begun.token)


async def session_of_key(api: Api, key: str) -> Person:
    """Whoever exchanged this key; the client keeps no cookie of it."""
    answer = await api.http.post("/auth/session", json={"key": key})
    assert answer.status_code == 200, answer.text
    api.http.cookies.clear()
    return Person(api, "", answer.cookies[COOKIE])
