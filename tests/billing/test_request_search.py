"""Search of requests beside a plain Python filter over the same requests: each filter, each
combination, page by page, nothing twice and nothing missed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from api_harness import Api, TestTenant
from tenora_engine.events import UsageRecord
from tenora_platform.ids import new_id
from tenora_platform.receipts.search import Filters, search
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.usage.ids import request_of, request_text
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

KEYS = ("key_a", "key_b")
ADAPTERS = ("support@1", "support@2", "json@1", None)
CLASSES = ("default", "flex")
REASONS = ("stop", "length", "abort", "error")
START = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=60)
UNITS = Decimal("0.000001")  # what an output token costs below


@dataclass(frozen=True)
class Made:
    """One sequence of a request, as it was metered."""

    request_id: str
    sequence: int
    key: str
    adapter: str | None
    class_: str
    reason: str
    ended: datetime
    tokens: int


def made_at_random(count: int) -> list[Made]:
    """Most with one sequence, some with more; several end at the same moment."""
    dice = random.Random(17)
    made = []
    for _ in range(count):
        request_id = new_id("chatcmpl")
        key, adapter = dice.choice(KEYS), dice.choice(ADAPTERS)
        ended = START + timedelta(minutes=10 * dice.randrange(60 * 6))
        for sequence in range(dice.choice((1, 1, 1, 2, 3))):
            reason = dice.choices(REASONS, (6, 3, 2, 1))[0]
            later = ended + timedelta(minutes=40 * dice.randrange(2) * sequence)
            class_ = dice.choice(CLASSES)
            tokens = dice.randrange(1, 60)
            made.append(Made(request_id, sequence, key, adapter, class_, reason, later, tokens))
    return made


ALL = made_at_random(120)


def record(tenant: TestTenant, each: Made, versions: dict[str, str]) -> UsageRecord:
    end_s = each.ended.timestamp()
    context = {
        "tenant_id": tenant.id,
        "api_key_id": each.key,
        "model": "searched",
        "plan": "standard",
        "adapter_version_id": versions.get(each.adapter or "", ""),
    }
    return usage_record(
        f"{each.request_id}:{each.sequence}",
        tenant.id,
        context=context,
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=each.tokens,
        arrival_s=end_s - 1,
        first_token_s=end_s - 0.5,
        finished_s=end_s,
        tier=each.class_,
        finish_reason=each.reason,
        adapter_digest="sha256:x" if each.adapter else None,
    )


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    made = await api.new_tenant()
    prices = {"uncached_prefill": "1", "cached_prefill": "1", "output": "1"}
    old = (START - timedelta(days=1)).isoformat()
    body = {"model": "searched", "effective_from": old, "per_million": prices}
    assert (await api.admin("POST", "/admin/v1/prices", json=body)).status_code == 201
    versions: dict[str, str] = {}
    async with api.state.db.admin_session() as session:
        for name in ("support", "json"):
            adapter = AdapterRow(id=new_id("adapter"), tenant_id=made.id, name=name)
            session.add(adapter)
            await session.flush()
            for number in (1, 2):
                version = versions[f"{name}@{number}"] = new_id("version")
                session.add(
                    AdapterVersionRow(
                        id=version,
                        tenant_id=made.id,
                        adapter_id=adapter.id,
                        number=number,
                        state="revoked",
                        bytes=1,
                        weights_sha256="",
                    )
                )
    sink = UsageSink(api.engine, api.state.db)
    await sink.store([record(made, each, versions) for each in ALL])
    other = await api.new_tenant()
    for each in ALL[:20]:
        mine = Made(**{**each.__dict__, "request_id": new_id("chatcmpl")})
        await sink.store([record(other, mine, versions)])
    return made


def fits(each: Made, filters: Filters) -> bool:
    wanted = {"completed": ("stop", "length"), "aborted": ("abort",), "failed": ("error",)}
    adapter = each.adapter or ""
    return (
        (filters.status is None or each.reason in wanted[filters.status])
        and filters.api_key in (None, each.key)
        and filters.class_ in (None, each.class_)
        and (filters.adapter is None or filters.adapter in (adapter, adapter.partition("@")[0]))
    )


def status(of: Iterable[Made]) -> str:
    reasons = {each.reason for each in of}
    return "failed" if "error" in reasons else "aborted" if "abort" in reasons else "completed"


def expected(filters: Filters) -> list[str]:
    """The ids, newest first: a request counts by the first of its sequences that fit."""
    requests: dict[str, list[Made]] = {}
    for each in ALL:
        requests.setdefault(each.request_id, []).append(each)
    found: list[tuple[datetime, str]] = []
    for request_id, sequences in requests.items():
        fitting = [each for each in sequences if fits(each, filters)]
        cost = sum(each.tokens for each in sequences) * UNITS
        if (
            not fitting
            or filters.status not in (None, status(sequences))
            or (filters.min_cost is not None and cost < filters.min_cost)
            or (filters.max_cost is not None and cost > filters.max_cost)
        ):
            continue
        ended = min(fitting, key=lambda each: each.sequence).ended
        in_time = (filters.start or ended) <= ended and (filters.end is None or ended < filters.end)
        if in_time:
            found.append((ended, request_id))
    return [request_id for _, request_id in sorted(found, reverse=True)]


LATE = next(each for each in ALL if each.ended.minute >= 10 and not each.sequence)
NONE = dict.fromkeys(("end", "api_key", "adapter", "class_", "status", "min_cost", "max_cost"))
MOMENTS = st.none() | st.integers(-5, 65 * 60).map(lambda at: START + timedelta(minutes=at))
COSTS = st.none() | st.none() | st.integers(0, 100).map(lambda tokens: tokens * UNITS)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=MOMENTS,
    end=MOMENTS,
    api_key=st.sampled_from((None, None, None, *KEYS, "key_c")),
    adapter=st.sampled_from(
        (None, None, "support", "support@1", "json", "json@2", "none", "support@x")
    ),
    class_=st.sampled_from((None, None, *CLASSES)),
    status=st.sampled_from((None, None, None, "completed", "aborted", "failed")),
    min_cost=COSTS,
    max_cost=COSTS,
    limit=st.sampled_from((5, 17, 200)),
)
@example(**NONE | {"start": LATE.ended - timedelta(minutes=5), "api_key": LATE.key, "limit": 5})
@example(**NONE | {"start": None, "min_cost": 50 * UNITS, "limit": 5})
async def test_it_finds_what_a_plain_filter_finds(
    api: Api, tenant: TestTenant, limit: int, **wanted: Any
) -> None:
    filters = Filters(tenant.id, **wanted)
    found: list[str] = []
    async with api.state.db.tenant_session(tenant.id) as session:
        while True:
            after = request_of(found[-1])[1] if found else None
            page = await search(session, filters, after, limit)
            assert page is not None
            found += [request_text("chatcmpl", request) for request in page]
            if len(page) < limit:
                break
    assert found == expected(filters)


async def test_over_http(api: Api, tenant: TestTenant) -> None:
    query = "status=completed&class=flex&limit=7&min_cost=0.00001"
    found: list[dict[str, Any]] = []
    page = (await api.call(tenant.key, "GET", f"/v1/requests?{query}")).json()
    found += page["data"]
    while page["has_more"]:
        path = f"/v1/requests?{query}&after={page['last_id']}"
        page = (await api.call(tenant.key, "GET", path)).json()
        found += page["data"]
    filters = Filters(tenant.id, status="completed", class_="flex", min_cost=Decimal("0.00001"))
    assert [item["id"] for item in found] == expected(filters)
    assert all(item["status"] == "completed" for item in found)
    item = found[0]
    receipt = (await api.call(tenant.key, "GET", f"/v1/requests/{item['id']}")).json()
    assert receipt["amount"] == item["amount"]
    assert receipt["status"] == item["status"]
    for wrong, param in (
        ("status=odd", "status"),
        ("min_cost=-1", "min_cost"),
        ("min_cost=NaN", "min_cost"),
        ("start=2026-02-01&end=2026-01-01", "start"),
        ("after=nothing", "after"),
        ("limit=0", "limit"),
    ):
        answer = await api.call(tenant.key, "GET", f"/v1/requests?{wrong}")
        assert answer.status_code == 400, wrong
        assert answer.json()["error"]["param"] == param
