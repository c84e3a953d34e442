"""Price lists as the operator makes them over HTTP, usage under them, and what it then costs."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from api_harness import Api, TestTenant
from tenora_engine.events import UsageRecord
from usage_records import usage_record

BASE = {"uncached_prefill": "1", "cached_prefill": "1", "output": "1"}
_numbers = itertools.count()


async def post_prices(api: Api, **body: Any) -> Any:
    """The answer; `BASE` holds for what the body does not price."""
    return await api.admin("POST", "/admin/v1/prices", json={"per_million": BASE} | body)


async def add_prices(api: Api, **body: Any) -> dict[str, Any]:
    made = await post_prices(api, **body)
    assert made.status_code == 201, made.text
    return dict(made.json())


def record_of(
    tenant: TestTenant,
    at: datetime,
    model: str,
    *,
    plan: str = "standard",
    adapter_id: str = "",
    **changes: Any,
) -> UsageRecord:
    """A sequence of ten tokens of output that ended then; no other meter moved."""
    end_s = at.timestamp()
    values: dict[str, Any] = {"prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 10}
    return usage_record(
        f"listed{next(_numbers)}:0",
        tenant.id,
        context={"tenant_id": tenant.id, "model": model, "plan": plan, "adapter_id": adapter_id},
        arrival_s=end_s - 1,
        first_token_s=end_s - 0.5,
        finished_s=end_s,
        **(values | changes),
    )


async def cost_of(api: Api, tenant: TestTenant, day: datetime) -> tuple[Decimal, int]:
    """(what the day cost the tenant, how many of its events wait)."""
    query = f"start={day:%Y-%m-%d}&end={day + timedelta(days=1):%Y-%m-%d}"
    page = (await api.call(tenant.key, "GET", f"/v1/costs?{query}")).json()
    results = [each for bucket in page["data"] for each in bucket["results"]]
    return (
        sum((Decimal(each["amount"]) for each in results), Decimal(0)),
        sum(each["unrated_events"] for each in results),
    )
