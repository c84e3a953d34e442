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
from tenora_platform.receipts import search as search_module
from tenora_platform.receipts.filters import Filters
from tenora_platform.receipts.search import After, search
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.usage import slices
from tenora_platform.usage.ids import request_text
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
    queue_ms: int
    ttft_ms: int | None
    duration_ms: int


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
            queue = 10 * dice.randrange(20)
            ttft = None if reason == "error" else queue + 25 * dice.randrange(1, 6)
            took = (ttft or queue) + 100 * dice.randrange(1, 5)
            times = (later, tokens, queue, ttft, took)
            made.append(Made(request_id, sequence, key, adapter, class_, reason, *times))
    return made


ALL = made_at_random(120)


def trace(each: Made) -> str:
    """The x-request-id that a client gave it, and others."""
    return f"trace-{each.request_id[-1]}"


def record(tenant: TestTenant, each: Made, versions: dict[str, str]) -> UsageRecord:
    end_s = each.ended.timestamp()
    context = {
        "tenant_id": tenant.id,
        "api_key_id": each.key,
        "model": "searched",
        "plan": "standard",
        "x_request_id": trace(each),
        "adapter_version_id": versions.get(each.adapter or "", ""),
    }
    return usage_record(
        f"{each.request_id}:{each.sequence}",
        tenant.id,
        context=context,
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=each.tokens,
        arrival_s=end_s - each.duration_ms / 1000,
        first_token_s=None
        if each.ttft_ms is None
        else end_s - (each.duration_ms - each.ttft_ms) / 1000,
        finished_s=end_s,
        queue_ms=each.queue_ms,
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
        and filters.finish_reason in (None, each.reason)
        and each.queue_ms >= (filters.min_queue_ms or 0)
        and (each.ttft_ms or 0) >= (filters.min_ttft_ms or 0)
        and each.duration_ms >= (filters.min_duration_ms or 0)
    )


def worth(sort: str, sequences: list[Made], ended: datetime) -> Any:
    """By what a request is put into order; None: it has no place in it."""
    if sort == "newest":
        return ended
    if sort == "-cost":
        return sum(each.tokens for each in sequences)
    if sort == "-tpot":
        paces = [
            (each.duration_ms - each.ttft_ms) / (each.tokens - 1)
            for each in sequences
            if each.ttft_ms is not None and each.tokens > 1
        ]
        return max(paces, default=None)
    if sort == "-ttft":
        return max((each.ttft_ms for each in sequences if each.ttft_ms is not None), default=None)
    return max(each.queue_ms if sort == "-queue" else each.duration_ms for each in sequences)


def status(of: Iterable[Made]) -> str:
    reasons = {each.reason for each in of}
    return "failed" if "error" in reasons else "aborted" if "abort" in reasons else "completed"


def expected(filters: Filters) -> list[str]:
    """The ids, in order: a request is found by the first of its sequences that fit."""
    requests: dict[str, list[Made]] = {}
    for each in ALL:
        requests.setdefault(each.request_id, []).append(each)
    found: list[tuple[Any, str]] = []
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
        value = worth(filters.sort, sequences, ended)
        if in_time and value is not None:
            found.append((value, request_id))
    return [request_id for _, request_id in sorted(found, reverse=True)]


LATE = next(each for each in ALL if each.ended.minute >= 10 and not each.sequence)
UNASKED = (
    "end api_key adapter class_ status min_cost max_cost "
    "finish_reason min_queue_ms min_ttft_ms min_duration_ms"
)
NONE = dict.fromkeys(UNASKED.split()) | {"sort": "newest"}
MOMENTS = st.none() | st.integers(-5, 65 * 60).map(lambda at: START + timedelta(minutes=at))
COSTS = st.none() | st.none() | st.integers(0, 100).map(lambda tokens: tokens * UNITS)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=MOMENTS,
    end=MOMENTS,
    api_key=st.sampled_from((None, None, None, *KEYS, "key_c")),
    adapter=st.sampled_from(
        (None, None, None, "", "support", "support@1", "json", "json@2", "none", "support@x")
    ),
    class_=st.sampled_from((None, None, *CLASSES)),
    status=st.sampled_from((None, None, None, "completed", "aborted", "failed")),
    min_cost=COSTS,
    max_cost=COSTS,
    finish_reason=st.sampled_from((None, None, None, *REASONS)),
    min_queue_ms=st.sampled_from((None, None, None, 70, 190)),
    min_ttft_ms=st.sampled_from((None, None, None, 100)),
    min_duration_ms=st.sampled_from((None, None, None, 400)),
    sort=st.sampled_from(("newest", "newest", "-queue", "-ttft", "-tpot", "-duration", "-cost")),
    limit=st.sampled_from((5, 17, 200)),
    read=st.sampled_from((1, 40, 50_000)),
)
@example(
    **NONE
    | {"start": LATE.ended - timedelta(minutes=5), "api_key": LATE.key, "limit": 5, "read": 40}
)
@example(**NONE | {"start": None, "min_cost": 50 * UNITS, "limit": 5, "read": 40})
@example(**NONE | {"start": None, "sort": "-ttft", "limit": 5, "read": 40})
@example(**NONE | {"start": None, "sort": "-tpot", "limit": 5, "read": 40})
@example(**NONE | {"start": START, "sort": "-cost", "status": "completed", "limit": 5, "read": 40})
@example(**NONE | {"start": START, "sort": "-queue", "adapter": "support", "limit": 5, "read": 40})
async def test_it_finds_what_a_plain_filter_finds(
    api: Api, tenant: TestTenant, limit: int, read: int, **wanted: Any
) -> None:
    """Whatever one answer reads, all of them find all."""
    filters = Filters(tenant.id, **wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "READ_MAX", read)
        patch.setattr(slices, "FIRST", min(read, slices.FIRST))
        assert await found_by(api, filters, limit) == expected(filters)


async def found_by(api: Api, filters: Filters, limit: int) -> list[str]:
    """By all pages."""
    tenant_id, found = filters.tenant_id, list[str]()
    assert tenant_id is not None
    async with api.state.db.tenant_session(tenant_id) as session:
        after: After | None = None
        while True:
            page = await search(session, filters, after, limit)
            assert page is not None
            found += [request_text("chatcmpl", request) for request in page.requests]
            after = page.stopped
            if after is None and len(page.requests) == limit:
                after = After(page.requests[-1])
            if after is None:
                break
    return found


@pytest.mark.parametrize("read", [3, 50_000])
async def test_over_http(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    monkeypatch.setattr(slices, "READ_MAX", read)
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
        ("sort=oldest", "sort"),
        ("min_queue_ms=-1", "min_queue_ms"),
        ("min_ttft_ms=inf", "min_ttft_ms"),
        ("finish_reason=odd", "finish_reason"),
        ("q=", "q"),
        ("limit=0", "limit"),
    ):
        answer = await api.call(tenant.key, "GET", f"/v1/requests?{wrong}")
        assert answer.status_code == 400, wrong
        assert answer.json()["error"]["param"] == param


async def test_a_list_says_how_long_it_took(api: Api, tenant: TestTenant) -> None:
    page = (await api.call(tenant.key, "GET", "/v1/requests?limit=100")).json()
    for item in page["data"]:
        of = [each for each in ALL if each.request_id == item["id"]]
        ttfts = [each.ttft_ms for each in of if each.ttft_ms is not None]
        assert item["queue_ms"] == max(each.queue_ms for each in of)
        assert item["ttft_ms"] == pytest.approx(max(ttfts) if ttfts else None, abs=0.01)
        assert item["duration_ms"] == pytest.approx(max(each.duration_ms for each in of), abs=0.01)
        assert item["finish_reason"] in {each.reason for each in of}
        assert item["kind"] == "chatcmpl"


async def test_one_is_found_by_any_of_its_names(api: Api, tenant: TestTenant) -> None:
    item = (await api.call(tenant.key, "GET", "/v1/requests?limit=1")).json()["data"][0]
    same = sorted(
        {each.request_id for each in ALL if trace(each) == item["x_request_id"]}, reverse=True
    )
    assert len(same) > 1
    stranger = await api.new_tenant()
    for name, ids in (
        (item["id"], [item["id"]]),
        (f"{item['id']}:0", [item["id"]]),
        (item["x_request_id"], same),
        (item["x_request_id"][:-1], []),
    ):
        page = (await api.call(tenant.key, "GET", f"/v1/requests?q={name}&class=none")).json()
        assert [each["id"] for each in page["data"]] == ids, name
        assert (await api.call(stranger.key, "GET", f"/v1/requests?q={name}")).json()["data"] == []
        path = f"/admin/v1/requests?q={name}&tenant="
        assert (await api.admin("GET", path + tenant.id)).json()["data"] == page["data"]
        assert (await api.admin("GET", path + stranger.id)).json()["data"] == []
    path = f"/v1/requests?q={item['x_request_id']}&limit=1"
    first = (await api.call(tenant.key, "GET", path)).json()
    second = (await api.call(tenant.key, "GET", f"{path}&after={first['last_id']}")).json()
    assert [page["data"][0]["id"] for page in (first, second)] == same[:2]


@pytest.mark.parametrize("read", [7, 50_000])
async def test_the_operator_pages_through_all_tenants(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    monkeypatch.setattr(slices, "READ_MAX", read)
    found: list[dict[str, Any]] = []
    path = "/admin/v1/requests?limit=30&status=completed"
    page = (await api.admin("GET", path)).json()
    found += page["data"]
    while page["has_more"]:
        page = (await api.admin("GET", f"{path}&after={page['last_id']}")).json()
        found += page["data"]
    ids = [item["id"] for item in found]
    assert ids == sorted(ids, reverse=True), "the last that came first"
    own = [item["id"] for item in found if item["tenant_id"] == tenant.id]
    assert sorted(own) == sorted(expected(Filters(tenant.id, status="completed")))
    assert len({item["tenant_id"] for item in found}) > 1
    slow = (await api.admin("GET", "/admin/v1/requests?sort=-queue&limit=100")).json()["data"]
    queues = [item["queue_ms"] for item in slow]
    assert queues == sorted(queues, reverse=True)
    assert len({item["tenant_id"] for item in slow}) > 1


async def test_one_answer_looks_through_so_much(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for what there is not says where it stopped."""
    monkeypatch.setattr(slices, "READ_MAX", 100)
    path = "/v1/requests?min_cost=1000"
    page = (await api.call(tenant.key, "GET", path)).json()
    assert (page["data"], page["has_more"], page["searching"]) == ([], True, True)
    answers = 1
    while page["has_more"]:
        page = (await api.call(tenant.key, "GET", f"{path}&after={page['last_id']}")).json()
        answers += 1
    assert (page["data"], page["searching"]) == ([], False)
    assert len(ALL) / 100 <= answers <= len(ALL) / 20


async def test_too_many_are_not_put_in_order(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "RANKED_MAX", 50)
    for path in ("/v1/requests?sort=-cost", "/v1/requests?sort=-ttft&start=2020-01-01"):
        answer = await api.call(tenant.key, "GET", path)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "range_too_long"
    short = f"/v1/requests?sort=-cost&start={ALL[0].ended.isoformat()[:19]}Z"
    end = (ALL[0].ended + timedelta(minutes=30)).isoformat()[:19]
    assert (await api.call(tenant.key, "GET", f"{short}&end={end}Z")).status_code == 200
