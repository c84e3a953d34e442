"""The history of service: counters are taken over once, whoever takes them over and however often
the engine begins anew; what is asked for over a window is what was put into it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

from api_harness import Api, TestTenant
from fake_engine import FakeEngine
from tenora_engine.telemetry import BOUNDS_S, Histogram, QueueStats, ServiceMeter, TelemetryStats
from tenora_platform.app import create_app
from tenora_platform.errors import BadRequestError
from tenora_platform.history import service
from tenora_platform.history.answers import AnswerCounts
from tenora_platform.history.merging import merged
from tenora_platform.history.metrics import ADMIN_METRICS
from tenora_platform.history.quantiles import quantile_ms
from tenora_platform.history.repository import Asked
from tenora_platform.history.sampler import HistorySampler
from tenora_platform.history.tables import (
    EngineMinuteRow,
    HistoryMarkRow,
    ServiceHourRow,
    ServiceMinuteRow,
)
from tenora_platform.history.window import POINTS_MAX, window
from tenora_platform.ids import new_ulid
from tenora_platform.processes.presence import this_process
from tenora_platform.settings import Settings
from tenora_platform.usage.books import UsageBooks
from usage_records import usage_record

NOON = datetime(2026, 11, 20, 12, 0, 10, tzinfo=UTC)
HOUR = {"start": "2026-11-20T12:00:00Z", "end": "2026-11-20T13:00:00Z", "step": "1m"}


@pytest.fixture
async def quiet(settings: Settings, tmp_path: Path) -> AsyncIterator[Api]:
    """An application beside which nothing runs, so that samples are taken by tests alone."""
    engine = FakeEngine(tmp_path / "model")
    app = create_app(settings, engine=engine, work=lambda _: {})
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://tenora") as http:
            await engine.start()
            yield Api(app, engine, http)


def meter(tenant: str, class_: str = "default", **counted: Any) -> ServiceMeter:
    made = ServiceMeter(class_, tenant)
    for name, value in counted.items():
        setattr(made, name, value)
    return made


def says(engine: FakeEngine, since_s: float, *meters: ServiceMeter, counted_s: float = 0.0) -> None:
    """What the engine has counted since it began."""
    queues = [QueueStats("default", "t", waiting=2, oldest_wait_s=1.5)]
    engine.telemetry = TelemetryStats(
        meters=list(meters), queues=queues, since_s=since_s, counted_s=counted_s
    )


async def minutes(api: Api, tenant_id: str) -> dict[int, ServiceMinuteRow]:
    """By minute of the hour."""
    async with api.state.db.admin_session() as session:
        rows = await session.scalars(
            select(ServiceMinuteRow).where(ServiceMinuteRow.tenant_id == tenant_id)
        )
        return {row.at.minute: row for row in rows}


async def test_counts_are_taken_over_once_by_whichever_worker(quiet: Api) -> None:
    tenant = await quiet.new_tenant("counted")
    begun = NOON.timestamp() - 5
    first, second = HistorySampler(quiet.state), HistorySampler(quiet.state)
    ttft = Histogram()
    ttft.observe(0.15)
    says(quiet.engine, begun, meter(tenant.id, output_tokens=5, ttft=ttft, ttft_promised=1))
    assert await first.sample(NOON)
    assert await second.sample(NOON + timedelta(seconds=5))
    later = ttft.copy()
    later.observe(0.15)
    later.observe(3.0)
    counted: dict[str, Any] = {"output_tokens": 12, "ttft_promised": 3, "ttft_met": 1}
    says(
        quiet.engine,
        begun,
        meter(tenant.id, **counted, ttft=later, finished={"stop": 2, "error": 1}),
    )
    await second.sample(NOON + timedelta(seconds=70))
    await first.sample(NOON + timedelta(seconds=75))
    found = await minutes(quiet, tenant.id)
    assert {at: row.output_tokens for at, row in found.items()} == {0: 5, 1: 7}
    assert [found[0].ttft_promised, found[1].ttft_promised, found[1].ttft_met] == [1, 2, 1]
    assert found[1].ended == {"stop": 2, "error": 1}
    assert found[1].finished == 3
    assert sum(found[1].ttft) == 2
    async with quiet.state.db.admin_session() as session:
        hour = await session.get_one(
            ServiceHourRow, (NOON.replace(minute=0, second=0), tenant.id, "default")
        )
        assert hour.output_tokens == 12
        assert hour.ttft == later.counts


async def test_an_engine_that_begins_anew_is_counted_from_zero(quiet: Api) -> None:
    tenant = await quiet.new_tenant("again")
    sampler, begun = HistorySampler(quiet.state), NOON.timestamp() + 3600
    at = NOON + timedelta(hours=1, seconds=5)
    says(quiet.engine, begun, meter(tenant.id, output_tokens=100))
    await sampler.sample(at)
    quiet.engine.ready = False
    await sampler.sample(at + timedelta(seconds=60))
    quiet.engine.ready = True
    says(quiet.engine, begun + 100, meter(tenant.id, output_tokens=130))
    await sampler.sample(at + timedelta(seconds=120))
    found = await minutes(quiet, tenant.id)
    assert {minute: row.output_tokens for minute, row in found.items()} == {0: 100, 2: 130}
    query = {"start": "2026-11-20T13:00:00Z", "end": "2026-11-20T13:05:00Z"}
    answer = await quiet.admin(
        "GET", "/admin/v1/timeseries", params={"metric": "ready,oldest_wait,pool", **query}
    )
    series = {(each["metric"], each["kind"]): each for each in answer.json()["series"]}
    ready = series["ready", None]
    assert ready["met"] == [1, 0, 1, 0, 0]
    assert ready["promised"] == [1, 1, 1, 0, 0]
    assert ready["values"] == [1.0, 0.0, 1.0, None, None]
    assert series["oldest_wait", None]["values"][0] == 1.5
    pool = (await quiet.engine.stats()).pool
    assert series["pool", "free"]["values"] == [pool.free_pages, None, pool.free_pages, None, None]


async def test_what_was_counted_long_before_anybody_looked_is_of_no_minute(quiet: Api) -> None:
    async with quiet.state.db.admin_session() as session:
        for mark in await session.scalars(select(HistoryMarkRow)):
            mark.data = {"meters": "of another version"}
    tenant = await quiet.new_tenant("long")
    sampler = HistorySampler(quiet.state)
    # Whatever the engine's wall clock says: it has counted for a day.
    begun = NOON.timestamp() + 3600
    says(quiet.engine, begun, meter(tenant.id, output_tokens=1_000_000), counted_s=86_400.0)
    await sampler.sample(NOON)
    assert await minutes(quiet, tenant.id) == {}
    says(quiet.engine, begun, meter(tenant.id, output_tokens=1_000_007), counted_s=86_405.0)
    await sampler.sample(NOON + timedelta(seconds=5))
    assert (await minutes(quiet, tenant.id))[0].output_tokens == 7


async def test_restarts_of_parts_are_counted(quiet: Api) -> None:
    sampler, at = HistorySampler(quiet.state), NOON + timedelta(hours=2)
    supervisor = this_process("supervisor")
    for n, restarts in enumerate(({"engine": 1}, {"engine": 1}, {"engine": 3, "api-1": 1})):
        quiet.state.presence.others = [
            _with(supervisor, restarts),
        ]
        await sampler.sample(at + timedelta(seconds=60 * n))
    query = {"start": "2026-11-20T14:01:00Z", "end": "2026-11-20T14:03:00Z"}
    answer = await quiet.admin(
        "GET", "/admin/v1/timeseries", params={"metric": "restarts", **query}
    )
    found = {each["kind"]: each["values"] for each in answer.json()["series"]}
    assert found == {"engine": [0, 2], "api-1": [0, 1]}


def _with(process: Any, restarts: dict[str, int]) -> Any:
    return replace(process, restarts=restarts)


async def test_answers_of_all_processes_are_counted_by_tenant_and_status(quiet: Api) -> None:
    tenant = await quiet.new_tenant("answered")
    elsewhere = AnswerCounts(quiet.state.redis)
    now = datetime.now(UTC)
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "hi"}]}
    chat = "/v1/chat/completions"
    for _ in range(3):
        assert (await quiet.call(tenant.key, "POST", chat, json=body)).status_code == 200
    unknown = {**body, "model": "none"}
    assert (await quiet.call(tenant.key, "POST", chat, json=unknown)).status_code == 404
    assert (await quiet.http.post(chat, json=body)).status_code == 401
    assert (await quiet.call(tenant.key, "GET", "/v1/adapters/none")).status_code == 404
    assert (await quiet.http.get("/healthz")).status_code == 200
    elsewhere._waiting.update(quiet.state.answers._waiting)  # another process answered the same
    for each in (quiet.state.answers, elsewhere):
        await each._flush()
    sampler = HistorySampler(quiet.state)
    await sampler.sample(now)
    await sampler.sample(now + timedelta(seconds=1))
    query = {"start": (now - timedelta(minutes=5)).isoformat(), "tenant": tenant.id}
    query["end"] = (now + timedelta(minutes=2)).isoformat()
    answer = await quiet.admin(
        "GET",
        "/admin/v1/timeseries",
        params={"metric": "answers,errors", "group_by": "tenant,class", **query},
    )
    totals = {
        (each["metric"], each["kind"], each["service_class"]): sum(filter(None, each["values"]))
        for each in answer.json()["series"]
    }
    assert totals == {
        ("answers", "200", "default"): 6,
        ("answers", "404", "default"): 2,
        ("errors", "404", "default"): 2,
    }
    own = await quiet.call(
        tenant.key, "GET", "/v1/timeseries", params={"metric": "errors", "group_by": "class"}
    )
    [errors] = own.json()["series"]
    assert errors["kind"] == "404"
    assert sum(filter(None, errors["values"])) == 2


async def test_attainment_says_what_was_met_of_what_was_promised(quiet: Api) -> None:
    await quiet.put_plan("quick", {}, sla_class="priority", ttft_ms=500, tpot_ms=50)
    mine, other = await quiet.new_tenant("mine", "quick"), await quiet.new_tenant("other", "quick")
    sampler, at = HistorySampler(quiet.state), NOON + timedelta(hours=3)
    says(
        quiet.engine,
        at.timestamp() - 1,
        meter(mine.id, "priority", ttft_promised=10, ttft_met=9, output_tokens=7),
        meter(other.id, "priority", ttft_promised=40, ttft_met=20),
    )
    await sampler.sample(at)
    query = {"start": "2026-11-20T15:00:00Z", "end": "2026-11-20T15:02:00Z"}
    asked = {"metric": "ttft_attainment", "group_by": "tenant,class", **query}
    lanes = (await quiet.admin("GET", "/admin/v1/timeseries", params=asked)).json()["series"]
    assert [(each["tenant_name"], each["met"], each["promised"]) for each in lanes] == [
        ("other", [20, 0], [40, 0]),  # who missed most comes first
        ("mine", [9, 0], [10, 0]),
    ]
    assert [each["target_ms"] for each in lanes] == [500, 500]
    assert lanes[1]["values"] == [0.9, None]
    whole = {**asked, "group_by": "class"}
    [lane] = (await quiet.admin("GET", "/admin/v1/timeseries", params=whole)).json()["series"]
    assert (lane["met"][0], lane["promised"][0], lane["tenant_id"]) == (29, 50, None)
    own = {"metric": "ttft_attainment,output_tokens", **query}
    answer = (await quiet.call(mine.key, "GET", "/v1/timeseries", params=own)).json()
    found = {each["metric"]: each for each in answer["series"]}
    assert found["ttft_attainment"]["met"] == [9, 0]
    assert found["ttft_attainment"]["target_ms"] == 500
    assert found["output_tokens"]["values"] == [7, None]  # nobody has looked since
    sums = {each["metric"]: each for each in answer["sums"]}
    kept = sums["ttft_attainment"]
    assert (kept["met"], kept["promised"], kept["value"]) == (9, 10, 0.9)
    assert sums["output_tokens"]["value"] == 7
    cut = {"metric": "ttft_attainment,ttft", "group_by": "tenant", "limit": 1, **query}
    answer = (await quiet.admin("GET", "/admin/v1/timeseries", params=cut)).json()
    [kept] = answer["sums"]  # of both tenants, and not of quantiles
    assert (kept["metric"], kept["met"], kept["promised"]) == ("ttft_attainment", 29, 50)
    assert len([each for each in answer["series"] if each["metric"] == "ttft_attainment"]) == 1


async def test_only_the_rows_of_the_groups_shown_are_read(quiet: Api) -> None:
    at, tenants = NOON + timedelta(hours=8), [await quiet.new_tenant(f"t{n}") for n in range(5)]
    waits = Histogram()
    waits.observe(0.04)
    made = [
        ServiceMinuteRow(
            at=at.replace(second=0),
            tenant_id=tenant.id,
            class_="default",
            output_tokens=10**n,
            ttft=[n * count for count in waits.counts],
            answers={"200": 5, "404": n, "503": 2 * n},
        )
        for n, tenant in enumerate(tenants)
    ]
    async with quiet.state.db.admin_session() as session:
        session.add_all(made)
    start = at.replace(minute=0, second=0)
    asked = Asked(
        window(start, start + timedelta(hours=1), "1m", minutes_days=10_000),
        ("tenant", "class"),
    )
    metrics = {name: ADMIN_METRICS[name] for name in ("output_tokens", "ttft", "errors")}
    async with quiet.state.db.admin_session() as session:
        found = await service.find(session, asked, metrics, 4, frozenset())
    read = [
        [(group.tenant_id, group.kind) for group in each.groups]
        for each in found.metrics
        if isinstance(each, service.Found)
    ]
    largest = [tenant.id for tenant in reversed(tenants)]
    assert read[0] == [(each, None) for each in largest[:4]]
    assert read[1] == [(each, None) for each in largest[:2]], "three quantiles each"
    assert read[2][:2] == [(largest[0], "503"), (largest[1], "503")]
    assert len(read[2]) == 4
    assert found.targets.tenants.keys() == set(largest[:4])
    answer = found.answer()
    assert {each.metric: each.value for each in answer.sums} == {
        "output_tokens": 11_111,
        "errors": 30,
    }
    assert answer.total == 15
    by_metric = Counter(each.metric for each in answer.series)
    assert by_metric == {"output_tokens": 4, "ttft": 4, "errors": 4}


def test_an_answer_has_at_most_so_many_points() -> None:
    day = window(NOON, NOON + timedelta(days=400), "1d", minutes_days=1)
    assert service.fitting(100, day, {"finished"}) == 100
    assert service.fitting(500, day, set("abcd")) * 4 * len(day.times) <= service.POINTS_MAX


async def test_quantiles_are_of_all_that_was_counted_in_a_step(quiet: Api) -> None:
    tenant = await quiet.new_tenant("timed")
    sampler, at = HistorySampler(quiet.state), NOON + timedelta(hours=6)
    waits = Histogram()
    for seconds in (0.03, 0.04, 0.15, 0.3):
        waits.observe(seconds)
    says(quiet.engine, at.timestamp() - 1, meter(tenant.id, ttft=waits.copy(), output_tokens=4))
    await sampler.sample(at)
    waits.observe(0.04)
    says(quiet.engine, at.timestamp() - 1, meter(tenant.id, ttft=waits, output_tokens=5))
    await sampler.sample(at + timedelta(minutes=1))
    query = {"metric": "ttft", "start": "2026-11-20T18:00:00Z", "end": "2026-11-20T19:00:00Z"}
    for step, counts in (("1m", [4, 1]), ("1h", [5])):  # of minutes' rows and of hours'
        asked = {**query, "step": step}
        own = await quiet.call(tenant.key, "GET", "/v1/timeseries", params=asked)
        assert own.status_code == 200, own.text
        found = {each["kind"]: each for each in own.json()["series"]}
        assert found["p50"]["counts"][: len(counts)] == counts
        assert 20 <= found["p50"]["values"][0] <= 50  # within the bucket of the median
        assert 200 <= found["p99"]["values"][0] <= 500
        of_all = await quiet.admin("GET", "/admin/v1/timeseries", params=asked)
        assert {each["kind"] for each in of_all.json()["series"]} == {"p50", "p90", "p99"}


async def test_a_tenants_adapters_are_told_from_its_usage(quiet: Api) -> None:
    await quiet.put_plan("slow", {}, ttft_ms=400)
    tenant, other = await quiet.new_tenant("uses", "slow"), await quiet.new_tenant("others")
    base = NOON.timestamp()
    waits = [0.1, 0.2, 0.3, 0.5]
    for owner in (tenant, other):
        records = [
            usage_record(
                f"chatcmpl-{new_ulid()}:0",
                owner.id,
                arrival_s=base,
                first_token_s=base + wait,
                finished_s=base + 1.5,
                output_tokens=11,
                context={
                    **usage_record("x:0", owner.id).context,
                    "api_key_id": owner.key_id,
                    "plan": "slow",
                },
            )
            for n, wait in enumerate(waits, start=10 if owner is other else 0)
        ]
        booked = await UsageBooks(quiet.state.db).store(records)
        assert booked.bad == []
    asked = {"metric": "finished,output_tokens,ttft,ttft_attainment", "group_by": "adapter"}
    answer = await quiet.call(tenant.key, "GET", "/v1/timeseries", params={**asked, **HOUR})
    assert answer.status_code == 200, answer.text
    found = {(each["metric"], each["kind"]): each for each in answer.json()["series"]}
    assert sum(found["finished", None]["values"]) == 4
    assert sum(found["output_tokens", None]["values"]) == 44
    assert found["finished", None]["adapter"] == ""
    median = next(value for value in found["ttft", "p50"]["values"] if value is not None)
    assert median == pytest.approx(statistics.median(waits) * 1000)
    assert sum(found["ttft_attainment", None]["met"]) == 3
    assert sum(found["ttft_attainment", None]["promised"]) == 4
    by_version = {**asked, **HOUR, "group_by": "version,class", "limit": 1}
    answer = (await quiet.call(tenant.key, "GET", "/v1/timeseries", params=by_version)).json()
    assert [(each["metric"], each["adapter"], each["version"]) for each in answer["series"]] == [
        (name, "", None) for name in asked["metric"].split(",")
    ], "of each metric one"
    assert answer["total"] == 3
    sums = {each["metric"]: each["value"] for each in answer["sums"]}
    assert sums == {"finished": 4, "output_tokens": 44, "ttft_attainment": 0.75}
    another = {**asked, **HOUR, "class": "batch"}
    answer = await quiet.call(tenant.key, "GET", "/v1/timeseries", params=another)
    assert answer.json()["series"] == []
    nobodys = {**asked, **HOUR, "adapter": "none-of-this-name"}
    answer = await quiet.call(tenant.key, "GET", "/v1/timeseries", params=nobodys)
    assert answer.json()["series"] == []
    refused = await quiet.call(
        tenant.key, "GET", "/v1/timeseries", params={**asked, **HOUR, "metric": "refused"}
    )
    assert refused.status_code == 400


async def test_tenants_without_a_label_are_told_from_their_usage_too(quiet: Api) -> None:
    tenant = await quiet.new_tenant("unknown")
    base = NOON.timestamp() + 7200
    record = usage_record(
        f"chatcmpl-{new_ulid()}:0",
        tenant.id,
        arrival_s=base,
        first_token_s=base + 0.2,
        finished_s=base + 1,
        output_tokens=3,
    )
    await UsageBooks(quiet.state.db).store([record])
    query = {"start": "2026-11-20T14:00:00Z", "end": "2026-11-20T15:00:00Z"}
    asked = {"metric": "output_tokens,refused", "group_by": "class", **query}
    answer = await quiet.call(tenant.key, "GET", "/v1/timeseries", params=asked)
    [series] = answer.json()["series"]
    assert sum(series["values"]) == 3
    assert series["service_class"] == "default"


async def test_history_is_forgotten_when_the_operator_says(quiet: Api, settings: Settings) -> None:
    old = datetime.now(UTC) - timedelta(days=settings.history_minutes_days + 1)
    sampler = HistorySampler(quiet.state)
    await sampler.sample(old)
    await sampler.sample(datetime.now(UTC))
    await sampler.sweep()
    async with quiet.state.db.admin_session() as session:
        earliest = await session.scalar(select(func.min(EngineMinuteRow.at)))
    assert earliest is not None
    assert earliest > old


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"metric": "nonsense"}, "metric"),
        ({"metric": ""}, "metric"),
        ({"metric": "finished", "group_by": "colour"}, "group_by"),
        ({"metric": "finished", "step": "7m"}, "step"),
        ({"metric": "finished", "start": "2026-11-21", "end": "2026-11-20"}, "start"),
        ({"metric": "finished", "start": "2001-11-21"}, "start"),
    ],
)
async def test_bad_questions_say_what_was_wrong(
    quiet: Api, query: dict[str, str], param: str
) -> None:
    tenant = await _tenant(quiet)
    for answer in (
        await quiet.admin("GET", "/admin/v1/timeseries", params=query),
        await quiet.call(tenant.key, "GET", "/v1/timeseries", params=query),
    ):
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


async def _tenant(api: Api) -> TestTenant:
    return await api.new_tenant("asks")


def test_a_window_has_at_most_so_many_points_and_covers_what_was_asked() -> None:
    now = datetime(2026, 11, 23, 6, 31, 17, tzinfo=UTC)
    for hours in (0.01, 1, 6, 8.3, 24, 100, 24 * 7, 24 * 31, 24 * 365):
        for step in (None, "1m", "1h", "1d"):
            found = window(now - timedelta(hours=hours), now, step, minutes_days=14, now=now)
            assert len(found.times) <= POINTS_MAX
            assert found.start_s <= (now - timedelta(hours=hours)).timestamp()
            assert found.end_s >= now.timestamp()
            assert found.start_s % found.step_s == 0
            if hours > 14 * 24:
                assert found.by_hour
    assert window(None, now, None, minutes_days=14, now=now).step_s == 60
    with pytest.raises(BadRequestError):
        window(now, now, None, minutes_days=14, now=now)


def test_quantiles_are_linear_within_a_bucket() -> None:
    counts = [0] * (len(BOUNDS_S) + 1)
    assert quantile_ms(counts, 0.5) is None
    counts[BOUNDS_S.index(0.2)] = 10  # between 0.1 and 0.2 s
    assert quantile_ms(counts, 0.5) == pytest.approx(150)
    counts[BOUNDS_S.index(0.5)] = 10
    assert quantile_ms(counts, 0.75) == pytest.approx(350)
    counts[-1] = 1000
    assert quantile_ms(counts, 0.99) == 60_000


def test_measures_are_put_together_by_their_names() -> None:
    assert merged("finished", 2, 3) == 5
    assert merged("running_max", 2, 3) == 3
    assert merged("ended", {"stop": 1}, {"stop": 2, "error": 1}) == {"stop": 3, "error": 1}
    assert merged("ttft", [], [1, 2]) == [1, 2]
    assert merged("ttft", [1, 1], [1, 2]) == [2, 3]
