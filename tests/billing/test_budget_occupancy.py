"""What adapters occupy is counted against budgets once, whoever comes first: the one who stored it
and tells of it, or the one who sums up the books."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text

from api_harness import Api, TestTenant
from tenora_engine.events import OccupancyRecord
from tenora_engine.ulid import new_id
from tenora_platform.budgets.true_up import TrueUp
from tenora_platform.operations.metrics import Metrics
from tenora_platform.usage.residency import ResidencyBooks

_numbers = itertools.count()


@pytest.fixture
async def prepaid(api: Api) -> TestTenant:
    """With a grant of two months ago, of which nothing has been spent."""
    tenant = await api.new_tenant("prepaid")
    path = f"/admin/v1/tenants/{tenant.id}/credits"
    assert (await api.admin("POST", path, json={"amount": "1000"})).status_code == 201
    async with api.state.db.admin_session() as session:
        change = "update credit_grants set created_at = now() - interval '60 days' "
        await session.execute(text(change + "where tenant_id = :t"), {"t": tenant.id})
    return tenant


async def spent(api: Api, tenant: TestTenant) -> Decimal:
    """As requests are checked."""
    answer = await api.call(tenant.key, "GET", "/v1/limits")
    return Decimal(answer.json()["credit"]["spent"])


@pytest.mark.parametrize("ago", [timedelta(minutes=5), timedelta(days=2), timedelta(days=20)])
@pytest.mark.parametrize("order", ["tell sum", "sum tell", "tell sum tell sum", "sum sum tell"])
async def test_occupancy_is_counted_once(
    api: Api, prepaid: TestTenant, order: str, ago: timedelta
) -> None:
    model = f"occupied-{next(_numbers)}"
    prices = {"uncached_prefill": "1", "cached_prefill": "1", "output": "1"}
    body = {"model": model, "per_million": prices | {"device_residency": "2"}}
    begins = {"effective_from": "2020-01-01T00:00:00Z"}
    assert (await api.admin("POST", "/admin/v1/prices", json=body | begins)).status_code == 201
    assert await spent(api, prepaid) == 0
    ends = datetime.now(UTC) - ago
    held = OccupancyRecord(
        event_id=new_id("occ"),
        tenant=prepaid.id,
        adapter_digest="sha256:ab",
        tier="device",
        kb_s=3_000_000,
        begins_s=ends.timestamp() - 60,
        ends_s=ends.timestamp(),
    )
    charges = await ResidencyBooks(api.state.db).store([held], model)
    truth = TrueUp(api.state.db, api.state.budgets.store, Metrics(), api.state.seal)
    for word in order.split():
        if word == "tell":
            await api.state.budgets.book(charges)
        else:
            await truth.compare(prepaid.id)
    assert await spent(api, prepaid) == 6
    assert await truth.compare(prepaid.id) == []
