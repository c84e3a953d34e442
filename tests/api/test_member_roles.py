"""Every tenant's route, as the OpenAPI document has them, for a person of every role: let in or 403
as the table here says, and the same for keys by their sessions. A route that no line covers
fails."""

from __future__ import annotations

import re

import pytest

from api_harness import Api, TestTenant
from described import document
from people import Person, session_of_key, signed_in
from tenora_platform.people.rights import MEMBER_ROLES, MemberRole

ALL = "owner developer billing viewer"
OWNER = ("owner", "owner")
# What the path begins with; who may see it, who may change it. The longest that fits counts.
TABLE = {
    "/v1/me": (ALL, ALL),
    "/v1/limits": (ALL, ALL),
    "/v1/settings": (ALL, "owner"),
    "/v1/api_keys": OWNER,
    "/v1/people": OWNER,
    "/v1/invitations": OWNER,
    "/v1/audit_logs": OWNER,
    "/v1/webhook_endpoints": OWNER,
    "/v1/models": ("owner developer viewer", "owner developer"),
    "/v1/chat/": ("", "owner developer"),
    "/v1/completions": ("", "owner developer"),
    "/v1/responses": ("", "owner developer"),
    "/v1/responses/": ("owner developer viewer", "owner developer"),
    "/v1/messages": ("", "owner developer"),
    "/v1/embeddings": ("", "owner developer"),
    "/v1/tokenize": ("", "owner developer"),
    "/v1/detokenize": ("", "owner developer"),
    "/v1/adapters": ("owner developer viewer", "owner developer"),
    "/v1/uploads": ("owner developer viewer", "owner developer"),
    "/v1/evaluations": ("owner developer viewer", "owner developer"),
    "/v1/usage": (ALL, ""),
    "/v1/costs": (ALL, ""),
    "/v1/forecast": (ALL, ""),
    "/v1/prices": (ALL, ""),
    "/v1/ledger": (ALL, ""),
    "/v1/balances": (ALL, ""),
    "/v1/credits": (ALL, ""),
    "/v1/budget": (ALL, "owner billing"),
    "/v1/events": (ALL, ""),
    "/v1/timeseries": (ALL, ""),
    "/v1/rejected_calls": (ALL, ""),
    "/v1/requests": (ALL, ""),
    "/v1/requests/{request_id}/contents": OWNER,
    "/v1/invoices": (ALL, ""),
    "/v1/billing_profile": (ALL, "owner billing"),
}
ROUTES = sorted(
    f"{method} {path}"
    for path, operations in document()["paths"].items()
    for method in operations
    if path.startswith("/v1/")
)
REFUSALS = ("insufficient_role", "insufficient_scope", "person_required")


def allowed(route: str) -> list[str]:
    method, path = route.split()
    fits = [begins for begins in TABLE if path.startswith(begins)]
    assert fits, f"say in this table who may use {route}"
    return TABLE[max(fits, key=len)][method != "get"].split()


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("members", plan="premium")


@pytest.fixture(scope="module")
async def members(api: Api, tenant: TestTenant) -> dict[MemberRole, Person]:
    """A person of every role, and another owner, so that none is the last."""
    await signed_in(api, (tenant.id, "owner"))
    return {role: await signed_in(api, (tenant.id, role)) for role in MEMBER_ROLES}


@pytest.fixture(scope="module")
async def by_key(api: Api) -> tuple[str, Person]:
    """A key with every scope, and its session."""
    key = (await api.new_tenant("keys", plan="premium")).key
    return key, await session_of_key(api, key)


@pytest.mark.parametrize("route", ROUTES)
async def test_each_role_may_what_the_table_says(
    members: dict[MemberRole, Person], route: str
) -> None:
    method, path = route.split()
    filled = re.sub(r"{\w+}", "nothing", path)
    for role, person in members.items():
        answer = await person.call(method, filled)
        if role in allowed(route):
            assert answer.status_code not in (401, 403), (role, answer.text)
            assert answer.status_code < 500, answer.text
        else:
            assert answer.status_code == 403, (role, answer.text)
            assert answer.json()["error"]["code"] == "insufficient_role"
            assert role in answer.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_keys_session_may_what_the_key_may(
    api: Api, by_key: tuple[str, Person], route: str
) -> None:
    method, path = route.split()
    filled = re.sub(r"{\w+}", "nothing", path)
    key, person = by_key
    by_bearer, by_cookie = await api.call(key, method, filled), await person.call(method, filled)
    assert by_cookie.status_code == by_bearer.status_code < 500
    refused = by_bearer.status_code == 403
    assert refused == path.startswith(("/v1/people", "/v1/invitations"))


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.startswith("get")])
async def test_no_role_changes_anything_without_the_csrf_token(
    members: dict[MemberRole, Person], route: str
) -> None:
    method, path = route.split()
    answer = await members["owner"].call(
        method, re.sub(r"{\w+}", "nothing", path), headers={"x-csrf-token": "0" * 64}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "invalid_csrf_token")


@pytest.mark.parametrize("route", ROUTES)
async def test_members_of_another_tenant_are_nobody_here(
    api: Api, tenant: TestTenant, route: str
) -> None:
    stranger = await signed_in(api, ((await api.new_tenant()).id, "owner"))
    method, path = route.split()
    filled = re.sub(r"{\w+}", "nothing", path)
    answer = await stranger.call(method, filled, headers={"x-tenora-tenant": tenant.id})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_a_member")
