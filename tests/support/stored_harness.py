"""What tests of stored responses have in common: tenants that store, and rows."""

from __future__ import annotations

from typing import Any

import httpx

from api_harness import Api, TestTenant
from platform_fixtures import Connection

PLAN = "storing"


async def allow(api: Api) -> None:
    """The plan that allows it."""
    await api.put_plan(PLAN, {}, stored_responses=True)


async def storing(api: Api, days: int | None = 7, **key: Any) -> TestTenant:
    made = await api.new_tenant("storing", plan=PLAN, **key)
    if days is not None:
        await choose(api, made, stored_response_days=days)
    return made


async def choose(api: Api, tenant: TestTenant, **chosen: Any) -> dict[str, Any]:
    answer = await api.call(tenant.key, "PATCH", "/v1/settings", json=chosen)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def call(api: Api, key: str, **body: Any) -> httpx.Response:
    return await api.call(
        key, "POST", "/v1/responses", json={"model": "fake-base", "input": "Hi", **body}
    )


async def status_of(api: Api, key: str, response_id: str, method: str = "GET") -> int:
    return (await api.call(key, method, f"/v1/responses/{response_id}")).status_code


def rows_of(owner: Connection, tenant: TestTenant) -> int:
    query = "select count(*) from stored_responses where tenant_id = %s"
    found = owner.execute(query, [tenant.id]).fetchone()
    assert found is not None
    return int(str(found[0]))


def age(owner: Connection, response_id: str, days: int) -> None:
    owner.execute(
        "update stored_responses set created_at = created_at - %s * interval '1 day',"
        " expires_at = expires_at - %s * interval '1 day' where id = %s",
        [days, days, response_id],
    )
