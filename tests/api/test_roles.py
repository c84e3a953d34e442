"""Every route of the operator's, as the OpenAPI document has them, for every role, by a key, by a
session and as a person: let in or 403 as the table here says. A route that is not in the table
fails, as does one that declares no roles."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial

import httpx
import pytest
from fastapi import APIRouter

from api_harness import Api
from described import document
from people import session_of_key, signed_in
from tenora_platform.app import application
from tenora_platform.description import roles_of_routes
from tenora_platform.operators.roles import ROLES, Role

ALL = "owner operator billing read_only"
READ = "owner operator read_only"
TABLE = {
    "get /admin/v1/engine": READ,
    "get /admin/v1/events": ALL,
    "get /admin/v1/timeseries": ALL,
    "get /admin/v1/engine/pages": READ,
    "get /admin/v1/engine/pages/history": READ,
    "get /admin/v1/engine/adapters": READ,
    "post /admin/v1/adapters/{version_id}/pin": "owner operator",
    "delete /admin/v1/adapters/{version_id}/pin": "owner operator",
    "post /admin/v1/adapters/{version_id}/evict": "owner operator",
    "get /admin/v1/probing": READ,
    "get /admin/v1/processes": READ,
    "get /admin/v1/waits": READ,
    "get /admin/v1/fairness": READ,
    "get /admin/v1/requests/{request_id}/waits": READ,
    "get /admin/v1/admin_keys": READ,
    "post /admin/v1/admin_keys": "owner",
    "post /admin/v1/admin_keys/{admin_key_id}/rotate": "owner",
    "delete /admin/v1/admin_keys/{admin_key_id}": "owner",
    "get /admin/v1/people": READ,
    "patch /admin/v1/people/{person_id}": "owner",
    "delete /admin/v1/people/{person_id}": "owner",
    "delete /admin/v1/people/{person_id}/sessions": "owner",
    "get /admin/v1/invitations": READ,
    "post /admin/v1/invitations": "owner",
    "delete /admin/v1/invitations/{invitation_id}": "owner",
    "get /admin/v1/tenants/{tenant_id}/people": READ,
    "patch /admin/v1/tenants/{tenant_id}/people/{person_id}": "owner operator",
    "delete /admin/v1/tenants/{tenant_id}/people/{person_id}": "owner operator",
    "delete /admin/v1/tenants/{tenant_id}/people/{person_id}/sessions": "owner operator",
    "get /admin/v1/tenants/{tenant_id}/invitations": READ,
    "post /admin/v1/tenants/{tenant_id}/invitations": "owner operator",
    "delete /admin/v1/tenants/{tenant_id}/invitations/{invitation_id}": "owner operator",
    "get /admin/v1/plans": ALL,
    "put /admin/v1/plans/{name}": "owner operator",
    "get /admin/v1/tenants": ALL,
    "post /admin/v1/tenants": "owner operator",
    "get /admin/v1/tenants/{tenant_id}": ALL,
    "patch /admin/v1/tenants/{tenant_id}": "owner operator",
    "get /admin/v1/tenants/{tenant_id}/api_keys": READ,
    "post /admin/v1/tenants/{tenant_id}/api_keys": "owner operator",
    "get /admin/v1/tenants/{tenant_id}/api_keys/{key_id}": READ,
    "patch /admin/v1/tenants/{tenant_id}/api_keys/{key_id}": "owner operator",
    "post /admin/v1/tenants/{tenant_id}/api_keys/{key_id}/rotate": "owner operator",
    "delete /admin/v1/tenants/{tenant_id}/api_keys/{key_id}": "owner operator",
    "get /admin/v1/tenants/{tenant_id}/credits": ALL,
    "post /admin/v1/tenants/{tenant_id}/credits": "owner billing",
    "get /admin/v1/tenants/{tenant_id}/ledger": ALL,
    "get /admin/v1/tenants/{tenant_id}/balances": ALL,
    "get /admin/v1/tenants/{tenant_id}/budget": ALL,
    "get /admin/v1/tenants/{tenant_id}/settings": ALL,
    "post /admin/v1/ledger/transactions/{transaction_id}/reverse": "owner billing",
    "get /admin/v1/tenants/{tenant_id}/events": ALL,
    "get /admin/v1/audit_logs": READ,
    "get /admin/v1/audit_logs/verifications": READ,
    "post /admin/v1/audit_logs/verifications": READ,
    "get /admin/v1/audit_logs/verifications/{verification_id}": READ,
    "post /admin/v1/audit_logs/verifications/{verification_id}/cancel": READ,
    "get /admin/v1/audit_logs/export": READ,
    "get /admin/v1/usage": ALL,
    "get /admin/v1/costs": ALL,
    "get /admin/v1/costs/tenants": ALL,
    "delete /admin/v1/tenants/{tenant_id}": "owner operator",
    "post /admin/v1/tenants/{tenant_id}/restore": "owner operator",
    "get /admin/v1/credits": ALL,
    "get /admin/v1/ledger/accounts": ALL,
    "get /admin/v1/reconciliation": ALL,
    "get /admin/v1/forecast": ALL,
    "get /admin/v1/rejected_calls": ALL,
    "get /admin/v1/requests": ALL,
    "get /admin/v1/requests/{request_id}": ALL,
    "get /admin/v1/signing_keys": ALL,
    "post /admin/v1/signing_keys/rotate": "owner",
    "delete /admin/v1/signing_keys/{kid}": "owner",
    "get /admin/v1/reconciliation/runs": ALL,
    "post /admin/v1/reconciliation/runs": ALL,
    "get /admin/v1/reconciliation/runs/{run_id}": ALL,
    "get /admin/v1/prices": ALL,
    "post /admin/v1/prices": "owner billing",
    "post /admin/v1/prices/preview": ALL,
    "patch /admin/v1/prices/{version_id}": "owner billing",
    "delete /admin/v1/prices/{version_id}": "owner billing",
    "post /admin/v1/invoices/run": "owner billing",
    "post /admin/v1/invoices/runs": "owner billing",
    "get /admin/v1/invoices/runs": ALL,
    "get /admin/v1/invoices/runs/{run_id}": ALL,
    "post /admin/v1/invoices/runs/{run_id}/cancel": "owner billing",
    "get /admin/v1/invoices": ALL,
    "get /admin/v1/invoices/{invoice_id}": ALL,
    "get /admin/v1/invoices/{invoice_id}.csv": ALL,
    "get /admin/v1/invoices/{invoice_id}.pdf": ALL,
    "get /admin/v1/invoices/{invoice_id}/lines/{no}": ALL,
    "post /admin/v1/invoices/{invoice_id}/void": "owner billing",
    "post /admin/v1/invoices/{invoice_id}/credit_notes": "owner billing",
    "post /admin/v1/invoices/{invoice_id}/payments": "owner billing",
    "get /admin/v1/usage/cloudevents": ALL,
    "get /admin/v1/billing_settings": ALL,
    "patch /admin/v1/billing_settings": "owner billing",
    "get /admin/v1/tenants/{tenant_id}/billing_profile": ALL,
    "put /admin/v1/tenants/{tenant_id}/billing_profile": "owner billing",
    "get /admin/v1/webhook_endpoints": READ,
    "post /admin/v1/webhook_endpoints": "owner operator",
    "get /admin/v1/webhook_endpoints/{endpoint_id}": READ,
    "patch /admin/v1/webhook_endpoints/{endpoint_id}": "owner operator",
    "post /admin/v1/webhook_endpoints/{endpoint_id}/rotate": "owner operator",
    "delete /admin/v1/webhook_endpoints/{endpoint_id}": "owner operator",
    "get /admin/v1/webhook_endpoints/{endpoint_id}/deliveries": READ,
    "post /admin/v1/webhook_endpoints/{endpoint_id}/deliveries/{delivery_id}/resend": (
        "owner operator"
    ),
    "post /admin/v1/webhook_endpoints/{endpoint_id}/resend_dead": "owner operator",
    "get /metrics": "owner operator read_only metrics",
}
METHODS = ("get", "post", "put", "patch", "delete")
_DOCUMENT = document()
ROUTES = sorted(
    f"{method} {path}"
    for path, operations in _DOCUMENT["paths"].items()
    for method in operations
    if method in METHODS and (path.startswith("/admin/") or path == "/metrics")
)


@pytest.fixture(scope="module")
async def keys(api: Api) -> dict[Role, str]:
    """A key of every role."""
    made = {}
    for role in ROLES:
        answer = await api.admin("POST", "/admin/v1/admin_keys", json={"role": role})
        assert answer.status_code == 201, answer.text
        made[role] = str(answer.json()["key"])
    return made


Call = Callable[[str, str], Awaitable[httpx.Response]]


@pytest.fixture(scope="module", params=["key", "session of a key", "person"])
async def callers(
    api: Api, keys: dict[Role, str], request: pytest.FixtureRequest
) -> dict[Role, Call]:
    """Somebody of every role: by a key, by the session it was exchanged for, or signed in."""
    if request.param == "key":
        return {role: partial(api.call, key) for role, key in keys.items()}
    if request.param == "person":
        return {role: (await signed_in(api, (None, role))).call for role in ROLES}
    return {role: (await session_of_key(api, key)).call for role, key in keys.items()}


@pytest.mark.parametrize("route", ROUTES)
async def test_each_role_may_what_the_table_says(callers: dict[Role, Call], route: str) -> None:
    assert route in TABLE, "say in this table who may use it"
    method, path = route.split()
    filled = re.sub(r"{\w+}", "nothing", path)
    for role, call in callers.items():
        answer = await call(method, filled)
        if path == "/metrics" and answer.request.headers.get("cookie"):
            assert answer.status_code == 200  # open to all; a cookie comes along by itself
            continue
        if role in TABLE[route].split():
            assert answer.status_code not in (401, 403), (role, answer.text)
            assert answer.status_code < 500, answer.text
        else:
            assert answer.status_code == 403, (role, answer.text)
            assert answer.json()["error"]["code"] == "insufficient_role"
            assert role in answer.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES)
def test_the_document_says_the_same(route: str) -> None:
    method, path = route.split()
    assert _DOCUMENT["paths"][path][method]["x-tenora-roles"] == TABLE[route].split()


@pytest.mark.parametrize("role", ROLES)
async def test_no_role_opens_what_is_a_tenants(api: Api, keys: dict[Role, str], role: Role) -> None:
    answer = await api.call(keys[role], "GET", "/v1/models")
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "admin_key_not_allowed"


def test_a_route_without_a_role_is_found() -> None:
    app = application(lambda app: nullcontext())
    assert roles_of_routes(app)
    router = APIRouter()

    @router.get("/admin/v1/new")
    async def new() -> None: ...

    app.include_router(router)
    with pytest.raises(LookupError, match="/admin/v1/new does not declare its roles"):
        roles_of_routes(app)
