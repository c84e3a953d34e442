"""Waits over HTTP: what engines told of, in any order of starts, as sums that anybody can add up
again; names for the operator only; and a request's own wait, whoever asks."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from api_harness import Api, TestTenant
from tenora_engine.telemetry import (
    OTHER,
    GapMinute,
    ServiceMeter,
    TelemetryStats,
    WaitPart,
    WaitTotal,
)
from tenora_platform import locks
from tenora_platform.ids import new_id
from tenora_platform.usage.sink import UsageSink
from tenora_platform.waits import reading
from tenora_platform.waits.deltas import Totals
from tenora_platform.waits.sampler import WaitSampler, keep
from usage_records import usage_record

WAITED = {"own": 1.0, "queue": 5.0, "pages": 3.0}
NOON = datetime(2031, 3, 1, 12, tzinfo=UTC)


def told(
    waits: list[tuple[str, str, str, float, int]],
    service: dict[str, float] | None = None,
    started: str = "start_1",
    gaps: dict[datetime, tuple[float, float]] | None = None,
) -> TelemetryStats:
    """(who waits, cause, other, seconds, sequences), all in the default class."""
    meters = [
        ServiceMeter("default", tenant, service=tokens)
        for tenant, tokens in (service or {}).items()
    ]
    return TelemetryStats(
        meters=meters,
        gap_minutes=[
            GapMinute(int(at.timestamp()), "default", *each) for at, each in (gaps or {}).items()
        ],
        waits=[WaitTotal("default", *each) for each in waits],
        started=started,
    )


async def sampled(api: Api, telemetry: TelemetryStats, at: datetime) -> None:
    async with api.state.db.admin_session() as session:
        await keep(session, telemetry, at)


async def asked(api: Api, path: str, start: datetime, minutes: int, **more: str) -> Any:
    params = {"start": start.isoformat(), "end": (start + timedelta(minutes=minutes)).isoformat()}
    answer = await api.admin("GET", path, params=params | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
async def pair(api: Api) -> tuple[TestTenant, TestTenant]:
    await api.put_plan("heavy", {}, weight=3.0)
    return await api.new_tenant("acme", plan="heavy"), await api.new_tenant("beta")


async def test_the_matrix_has_what_was_waited_between_two_times(
    api: Api, pair: tuple[TestTenant, TestTenant]
) -> None:
    acme, beta = pair
    start = NOON
    first = [(acme.id, "queue", beta.id, 4.0, 2), (acme.id, "own", "", 1.0, 1)]
    await sampled(api, told(first, started="s_a"), start)
    second = [
        (acme.id, "queue", beta.id, 10.0, 3),
        (acme.id, "own", "", 1.0, 1),
        (beta.id, "pages", OTHER, 0.5, 1),
    ]
    await sampled(api, told(second, started="s_a"), start + timedelta(minutes=1, seconds=20))
    whole = await asked(api, "/admin/v1/waits", start, 5)
    assert whole["seconds"] == pytest.approx(11.5)
    rows = {(row["tenant_name"], row["cause"], row["other_name"]): row for row in whole["data"]}
    assert {key: (row["seconds"], row["sequences"]) for key, row in rows.items()} == {
        ("acme", "queue", "beta"): (10.0, 3),
        ("acme", "own", None): (1.0, 1),
        ("beta", "pages", "other tenants"): (0.5, 1),
    }
    assert rows["acme", "queue", "beta"]["other_id"] == beta.id
    assert [row["seconds"] for row in whole["data"]] == [10.0, 1.0, 0.5]
    later = await asked(api, "/admin/v1/waits", start + timedelta(minutes=1), 5)
    assert later["seconds"] == pytest.approx(6.5)
    by_class = await asked(api, "/admin/v1/waits", start, 5, group_by="class")
    assert [(row["class"], row["seconds"], row["tenant_id"]) for row in by_class["data"]] == [
        ("default", 11.5, None)
    ]
    assert (await asked(api, "/admin/v1/waits", start, 5, group_by=""))["seconds"] == 11.5


async def test_of_many_waits_the_longest_are_listed(
    api: Api, pair: tuple[TestTenant, TestTenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WAITS_MAX", 2)
    acme, beta = pair
    start = NOON + timedelta(hours=5)
    waits = [(acme.id, cause, "", seconds, 1) for cause, seconds in WAITED.items()]
    await sampled(api, told([*waits, (beta.id, "own", "", 0.0, 1)], started="s_many"), start)
    found = await asked(api, "/admin/v1/waits", start, 1)
    assert [row["cause"] for row in found["data"]] == ["queue", "pages"]
    assert (found["total"], found["seconds"]) == (3, 9.0)


async def test_an_engine_that_begins_anew_counts_from_nothing(
    api: Api, pair: tuple[TestTenant, TestTenant]
) -> None:
    acme, beta = pair
    start = NOON + timedelta(hours=1)
    for seconds, started in ((5.0, "s_b"), (7.0, "s_b"), (2.0, "s_c"), (3.0, "s_c"), (7.0, "s_b")):
        waits = [(acme.id, "queue", beta.id, seconds, 1)]
        await sampled(api, told(waits, {acme.id: seconds}, started), start)
    found = await asked(api, "/admin/v1/waits", start, 1)
    assert found["seconds"] == pytest.approx(7.0 + 3.0)
    shares = await asked(api, "/admin/v1/fairness", start, 1)
    assert shares["classes"][0]["service_tokens"] == pytest.approx(7.0 + 3.0)


async def test_shares_stand_beside_weights_and_the_gap_beside_its_bound(
    api: Api, pair: tuple[TestTenant, TestTenant]
) -> None:
    acme, beta = pair
    start = NOON + timedelta(hours=2)
    waits = [(beta.id, "queue", acme.id, 6.0, 1), (beta.id, "own", "", 9.0, 1)]
    service = {acme.id: 700.0, beta.id: 200.0, OTHER: 100.0}
    first, later = start, start + timedelta(minutes=3)
    for gaps in (
        {first: (10.0, 100.0)},
        {first: (10.0, 100.0), later: (50.0, 120.0)},
        {first: (9.0, 100.0), later: (40.0, 80.0)},  # of an engine that began anew
        {later: (45.0, 100.0)},
    ):
        await sampled(api, told(waits, service, "s_d", gaps), later)
    (found,) = (await asked(api, "/admin/v1/fairness", start, 10))["classes"]
    assert found["class"] == "default"
    shares = {each["tenant_name"]: each for each in found["tenants"]}
    assert shares["acme"]["service_share"] == pytest.approx(0.7)
    assert shares["acme"]["weight_share"] == pytest.approx(0.75)
    assert shares["beta"]["weight_share"] == pytest.approx(0.25)
    assert shares["beta"]["waited_s"] == pytest.approx(6.0)
    assert shares["other tenants"]["weight"] is None
    points = [(each["gap_tokens"], each["bound_tokens"]) for each in found["gaps"]]
    assert points == [(10.0, 100.0), (40.0, 80.0)]


async def test_a_long_range_has_no_more_points_than_a_picture(api: Api) -> None:
    start = NOON + timedelta(days=2)
    async with api.state.db.admin_session() as session:
        await session.execute(
            text(
                "insert into gap_minutes select cast(:start as timestamptz) + m * interval "
                "'1 minute', 'flex', m, 10000 from generate_series(0, 1439) m"
            ),
            {"start": start},
        )
    (found,) = (await asked(api, "/admin/v1/fairness", start, 1440))["classes"]
    assert len(found["gaps"]) == 288
    assert [point["gap_tokens"] for point in found["gaps"][:3]] == [4.0, 9.0, 14.0]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("group_by=tenant,whose", "group_by"),
        ("start=2031-01-02T00:00:00Z&end=2031-01-01T00:00:00Z", "start"),
        ("start=noon", "start"),
    ],
)
async def test_what_cannot_be_asked_says_so(api: Api, query: str, param: str) -> None:
    answer = await api.admin("GET", f"/admin/v1/waits?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_request_says_what_it_waited_for_and_whom_only_to_the_operator(
    api: Api, pair: tuple[TestTenant, TestTenant]
) -> None:
    acme, beta = pair
    request_id = new_id("chatcmpl")
    parts = [
        WaitPart("queue", beta.id, 900.0),
        WaitPart("pages", OTHER, 50.0),
        WaitPart("queue", OTHER, 40.0),
        WaitPart("start", "", 10.0),
    ]
    context = {
        "tenant_id": acme.id,
        "api_key_id": acme.key_id,
        "model": "fake-base",
        "plan": "heavy",
    }
    records = [
        usage_record(
            f"{request_id}:{index}",
            acme.id,
            context=context,
            queue_ms=1000.0 if index == 0 else 3.0,
            waits=parts if index == 0 else [],
        )
        for index in range(2)
    ]
    sink = UsageSink(api.engine, api.state.db)
    await sink.store(records)
    await sink.store(records)  # they come again after a crash
    mine = await api.call(acme.key, "GET", f"/v1/requests/{request_id}/waits")
    assert mine.json()["sequences"] == [
        {
            "sequence": 0,
            "queue_ms": 1000.0,
            "parts": [
                {"cause": "queue", "ms": 940.0},
                {"cause": "pages", "ms": 50.0},
                {"cause": "start", "ms": 10.0},
            ],
        },
        {"sequence": 1, "queue_ms": 3.0, "parts": None},
    ]
    assert beta.id not in mine.text
    named = (await api.admin("GET", f"/admin/v1/requests/{request_id}/waits")).json()
    assert [(part["cause"], part["other_name"]) for part in named["sequences"][0]["parts"]] == [
        ("queue", "beta"),
        ("pages", "other tenants"),
        ("queue", "other tenants"),
        ("start", None),
    ]
    assert named["sequences"][0]["parts"][0]["other_id"] == beta.id
    theirs = await api.call(beta.key, "GET", f"/v1/requests/{request_id}/waits")
    assert theirs.status_code == 404


async def test_old_minutes_are_forgotten(api: Api, pair: tuple[TestTenant, TestTenant]) -> None:
    acme, beta = pair
    now = datetime.now(UTC)
    for days, started in ((40, "s_old"), (2, "s_new")):
        waits = [(acme.id, "queue", beta.id, 1.0, 1)]
        await sampled(api, told(waits, {acme.id: 1.0}, started), now - timedelta(days=days))
    await WaitSampler(api.engine, api.state.db, history_days=35).sweep()
    found = await asked(api, "/admin/v1/waits", now - timedelta(days=60), 60 * 1440)
    mine = [row for row in found["data"] if row["tenant_id"] == acme.id]
    assert [row["seconds"] for row in mine] == [1.0]


async def test_of_several_workers_one_looks(api: Api) -> None:
    api.engine.telemetry = told([], started="s_lock")
    first, second = (WaitSampler(api.engine, api.state.db, 35) for _ in range(2))
    async with api.state.db.admin_session() as session:
        await session.execute(text("select 1"))
        assert await locks.try_lock(session, "waits")
        assert not await second.run_once()
    assert await first.run_once()
    api.engine.telemetry = TelemetryStats()


_SAMPLES = st.lists(
    st.tuples(
        st.sampled_from(("one", "two", "three")),  # which start of the engine
        st.sampled_from("ab"),
        st.sampled_from(("", "b", OTHER)),
        st.floats(0, 100),
        st.booleans(),  # whether it is looked at afterwards
    ),
    max_size=40,
)


@given(_SAMPLES)
def test_what_is_added_up_is_what_was_told(
    samples: list[tuple[str, str, str, float, bool]],
) -> None:
    """Whatever is looked at whenever, and stored as JSON between."""
    totals: dict[str, defaultdict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
    marks: dict[str, Any] = {}
    kept: defaultdict[tuple[str, str], float] = defaultdict(float)

    def look(started: str) -> None:
        waits = [(a, "queue", b, s, 1) for (a, b), s in totals[started].items()]
        now = Totals.of(told(waits))
        for (_, waiter, _, other), (seconds, _) in now.since(
            Totals.stored(marks.get(started))
        ).waits.items():
            kept[waiter, other] += seconds
        marks[started] = now.as_json()

    for started, waiter, other, seconds, is_looked_at in samples:
        totals[started][waiter, other] += seconds
        if is_looked_at:
            look(started)
    for started in totals:
        look(started)
    expected: defaultdict[tuple[str, str], float] = defaultdict(float)
    for start in totals.values():
        for key, seconds in start.items():
            expected[key] += seconds
    assert {key: kept[key] for key in expected} == pytest.approx(dict(expected), abs=1e-6)
