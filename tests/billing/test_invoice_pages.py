"""The requests behind an invoice's line, page by page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api_harness import Api
from tenora_platform.ids import new_id
from tenora_platform.invoices.period import before, midnight, month_of, name_of
from tenora_platform.usage import slices
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

LAST = before(month_of(datetime.now(UTC)))


@pytest.mark.parametrize("read", [1, 50_000])
async def test_a_lines_requests_come_page_by_page(
    api: Api, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    """By time, none twice and none missed, however much one answer reads."""
    monkeypatch.setattr(slices, "READ_MAX", read)
    tenant = await api.new_tenant("pages")
    records = []
    for hours in (0, 0, 1, 5, 5, 30):
        request_id = new_id("chatcmpl")
        end_s = (midnight(LAST) + timedelta(hours=hours, minutes=1)).timestamp()
        context = {"tenant_id": tenant.id, "model": "fake-base", "plan": "standard"}
        context |= {"request_id": request_id, "adapter_version_id": "", "api_key_id": "key"}
        times = {"arrival_s": end_s - 1, "finished_s": end_s, "first_token_s": None}
        record = usage_record(
            f"{request_id}:0", tenant.id, context=context, output_tokens=1000, **times
        )
        records.append(record)
    await UsageSink(api.engine, api.state.db).store(records)
    body = {"tenant": tenant.id, "period": name_of(LAST)}
    made = (await api.admin("POST", "/admin/v1/invoices/run", json=body)).json()["invoices"][0]
    path = f"/v1/invoices/{made['id']}"
    invoice = (await api.call(tenant.key, "GET", path)).json()
    (line,) = [each for each in invoice["lines"] if each["meter"] == "output"]
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"group_by": "request", "limit": 2}
    answers = 0
    while answers == 0 or "page" in query:
        path = f"/v1/invoices/{made['id']}/lines/{line['no']}"
        page = (await api.call(tenant.key, "GET", path, params=query)).json()
        assert page["has_more"] == (page["next_page"] is not None)
        found += page["data"]
        answers += 1
        query = {"group_by": "request", "limit": 2}
        if page["has_more"]:
            query["page"] = page["next_page"]
    assert answers == (4 if read == 1 else 3)
    ended = [str(each["time"]) for each in found]
    assert ended == sorted(ended)
    assert len({each["event_id"] for each in found}) == len(records)
    assert sum(each["quantity"] for each in found) == line["quantity"]
