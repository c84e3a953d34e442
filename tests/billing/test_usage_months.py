"""Months of usage events: made before they begin, archived and dropped when they are old, and then
still read; never while something needs them, never before the archive has been proved."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from api_harness import Api, TestTenant, running_api, stored_objects
from platform_fixtures import Servers
from tenora_engine.events import UsageRecord
from tenora_platform.budgets.credit import credit_of
from tenora_platform.ids import ulid_text
from tenora_platform.operations.metrics import Metrics
from tenora_platform.settings import Settings
from tenora_platform.usage.archive import ArchiveError, UsageArchive
from tenora_platform.usage.partitions import UsageMonths, after, bound, months_of
from tenora_platform.usage.rebuild import rebuild_sums
from tenora_platform.usage.seal import EVENT_COLUMNS
from tenora_platform.usage.sink import UsageSink
from tenora_platform.usage.tables import (
    DeadLetterRow,
    UsageArchiveRow,
    UsageEventRow,
)
from usage_records import find_event, usage_record

_numbers = itertools.count(1)
TODAY = datetime.now(UTC).date()


@pytest.fixture
def archive(api: Api, tmp_path: Path) -> UsageArchive:
    return UsageArchive(api.state.db, LocalStore(prefix=tmp_path), "tenora")


def months(api: Api, archive: UsageArchive, retention: int = 0) -> UsageMonths:
    return UsageMonths(api.state.db, archive, api.state.store, Metrics(), retention)


async def _never(_: UsageMonths) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("kept")


def record(tenant: TestTenant, at: datetime, **more: object) -> UsageRecord:
    """Of a request with an id of that time."""
    request = f"chatcmpl_{ulid_text((int(at.timestamp() * 1000) << 80) + next(_numbers))}"
    ended = at.timestamp()
    times = {"arrival_s": ended, "first_token_s": ended + 0.1, "finished_s": ended + 0.3}
    return usage_record(f"{request}:0", tenant.id, **times, **more)


async def old_month(api: Api, tenant: TestTenant, month: date) -> list[UsageRecord]:
    """A month with a partition and three events of it, one of which ends in the next."""
    async with api.state.db.admin_session() as session:
        await session.execute(text("select create_usage_month(:m)"), {"m": month})
    begin = datetime(month.year, month.month, 1, tzinfo=UTC)
    last = datetime.combine(after(month, 1), begin.time(), UTC) - timedelta(milliseconds=100)
    made = [record(tenant, at) for at in (begin, begin + timedelta(days=9, seconds=1), last)]
    await UsageSink(api.engine, api.state.db).store(made)
    return made


async def used(api: Api, tenant: TestTenant) -> object:
    path = "/v1/costs?start=2020-01-01T00:00:00Z&bucket=1mo&limit=200&group_by=model"
    answer = (await api.call(tenant.key, "GET", path)).json()
    return [bucket for bucket in answer["data"] if bucket["results"]]


async def test_months_are_made_before_they_begin(api: Api, archive: UsageArchive) -> None:
    """And what a clock that was ahead had put elsewhere is moved there."""
    tenant = await api.new_tenant("ahead")
    month = after(TODAY, 7)
    ahead = record(tenant, datetime(month.year, month.month, 9, tzinfo=UTC))
    await UsageSink(api.engine, api.state.db).store([ahead])
    part = text("select tableoid::regclass::text from usage_events where request >= :low")
    low = {"low": bound(after(TODAY, 6))}
    keeper = months(api, archive)
    await keeper.run_once(TODAY)
    async with api.state.db.admin_session() as session:
        assert set(await months_of(session)) >= {after(TODAY, ahead) for ahead in range(3)}
        assert await session.scalar(part, low) == "usage_events_default"
    assert b"tenora_usage_strays 1.0" in keeper._metrics.text()
    await keeper.run_once(after(TODAY, 6))
    async with api.state.db.admin_session() as session:
        assert await session.scalar(part, low) == f"usage_events_{month:%Y_%m}"
        assert await find_event(session, ahead.event_id) is not None
    await keeper.run_once(after(TODAY, 6))
    assert b"tenora_usage_strays 0.0" in keeper._metrics.text()


async def test_an_old_month_is_archived_and_still_read(
    api: Api, archive: UsageArchive, tenant: TestTenant
) -> None:
    month = after(TODAY, -5)
    made = await old_month(api, tenant, month)
    before = await used(api, tenant)
    async with api.state.db.admin_session() as session:
        events = (
            await session.execute(
                select(*(getattr(UsageEventRow, name) for name in (*EVENT_COLUMNS, "seal")))
                .where(UsageEventRow.request >= bound(month))
                .where(UsageEventRow.request < bound(after(month, 1)))
                .order_by(UsageEventRow.request)
            )
        ).all()
    assert await months(api, archive).run_once(TODAY) == []  # for ever is the default
    assert await months(api, archive, 5).run_once(TODAY) == []
    assert await months(api, archive, 4).run_once(TODAY) == [month]
    async with api.state.db.admin_session() as session:
        assert month not in await months_of(session)
        assert await find_event(session, made[0].event_id) is None
        [part] = await archive.parts(session)
    read = [each async for each in archive.read(part)]
    assert [each.event_id for each in read] == [each.event_id for each in made]
    assert [(*each.values, each.seal) for each in read] == [tuple(row) for row in events]
    assert {each.tenant_id for each in read} == {tenant.id}
    assert await used(api, tenant) == before
    for each in (month, after(month, 1)):
        await rebuild_sums(api.state.db, archive, each)
    assert await used(api, tenant) == before
    await refuses_parts_of_hours(api, tenant, read[0].row.event_time)
    # Had it not been acknowledged, it would come again; nobody would know that it was billed.
    await UsageSink(api.engine, api.state.db).store(made[:1])
    assert await used(api, tenant) == before
    async with api.state.db.admin_session() as session:
        letter = await session.get(DeadLetterRow, made[0].event_id)
    assert letter is not None
    assert "has been archived" in letter.reason


async def refuses_parts_of_hours(api: Api, tenant: TestTenant, used: datetime) -> None:
    """Of which no sum says anything; whole hours, and hours without usage, are as ever."""
    hour = used.replace(minute=0, second=0, microsecond=0)
    whole = hour + timedelta(hours=1)
    for start, end, param in (
        (hour + timedelta(minutes=1), whole + timedelta(days=1), "start"),
        (hour - timedelta(days=1), hour + timedelta(minutes=59), "end"),
    ):
        for path in ("/v1/usage", "/v1/costs"):
            window = {"start": start.isoformat(), "end": end.isoformat()}
            answer = await api.call(tenant.key, "GET", path, params=window)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "usage_archived")
            assert error["param"] == param
    before = {"start": "2020-01-01T00:00:30Z", "end": whole.isoformat()}
    assert (await api.call(tenant.key, "GET", "/v1/usage", params=before)).status_code == 200


async def test_a_month_stays_while_it_is_needed(
    api: Api, archive: UsageArchive, tenant: TestTenant
) -> None:
    month = after(TODAY, -7)
    await old_month(api, tenant, month)
    keeper = months(api, archive, 1)
    begin = datetime(month.year, month.month, 1, tzinfo=UTC)
    ends = datetime.combine(after(month, 1), begin.time(), UTC)
    async with api.state.db.admin_session() as session:
        mark = text(
            "insert into unrated_events (tenant_id, request, sequence, reason)"
            " select :t, request, sequence, 'x' from usage_events where request >= :r limit 1"
        )
        await session.execute(mark, {"t": tenant.id, "r": bound(month)})
    assert await keeper.run_once(TODAY) == []
    async with api.state.db.admin_session() as session:
        await session.execute(text("delete from unrated_events"))
        grant = text(
            "insert into credit_grants (id, tenant_id, amount, created_at) values ('g', :t, 1, :at)"
        )
        in_use = begin + timedelta(days=9, minutes=30)
        await session.execute(grant, {"t": tenant.id, "at": in_use})
    assert await keeper.run_once(TODAY) == []
    # An event of the month ended in the next.
    change = text("update credit_grants set created_at = :begins, expires_at = :ends")
    idle = in_use + timedelta(hours=1)
    async with api.state.db.admin_session() as session:
        await session.execute(change, {"begins": idle, "ends": ends + timedelta(minutes=5)})
    assert await keeper.run_once(TODAY) == []
    async with api.state.db.admin_session() as session:
        await session.execute(change, {"begins": idle, "ends": ends + timedelta(hours=1)})
        before = await credit_of(session, tenant.id, ends + timedelta(days=1), "USD")
    assert await keeper.run_once(TODAY) == [month]  # whose credit begins and ends, without use then
    async with api.state.db.admin_session() as session:
        assert await credit_of(session, tenant.id, ends + timedelta(days=1), "USD") == before
    assert before.cap > 0  # what it paid


async def test_nothing_is_dropped_that_the_archive_has_not(
    api: Api, archive: UsageArchive, tenant: TestTenant
) -> None:
    month = after(TODAY, -9)
    await old_month(api, tenant, month)
    drop = text("select drop_usage_month(:m)")
    with pytest.raises(DBAPIError, match="is not archived"):
        async with api.state.db.admin_session() as session:
            await session.execute(drop, {"m": month})
    await archive.write(month, bound(month), bound(after(month, 1)))
    late = record(tenant, datetime(month.year, month.month, 5, tzinfo=UTC))
    await UsageSink(api.engine, api.state.db).store([late])
    with pytest.raises(
        Exception, match="has 4 events, of which 0 wait for a price, and 3 archived"
    ):
        async with api.state.db.admin_session() as session:
            await session.execute(drop, {"m": month})
    assert await months(api, archive, 8).run_once(TODAY) == [month]  # written anew


async def test_no_month_leaves_for_a_store_that_is_not_the_databases(
    settings: Settings, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a start with a forgotten TENORA_OBJECT_STORE: the archive would be missing later."""
    monkeypatch.setattr(UsageMonths, "run", _never)  # only the test itself archives
    changes = {"data_dir": tmp_path / "data", "database_url": servers.new_database()}
    own = settings.model_copy(update=changes)
    month = after(TODAY.replace(day=1), -6)
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("kept")
        await old_month(api, tenant, month)
        await api.state.store.problem()
    wrong = own.model_copy(update={"object_store": str(tmp_path / "wrong")})
    async with running_api(wrong, tmp_path / "2") as api:
        archive = UsageArchive(api.state.db, api.state.objects, "tenora")
        assert await months(api, archive, retention=4).run_once(TODAY) == []
        assert not [path for path in stored_objects(api) if "usage-archive" in path]
        async with api.state.db.admin_session() as session:
            assert month in await months_of(session)
            assert await archive.parts(session, dropped=False) == []
    async with running_api(own, tmp_path / "3") as api:
        archive = UsageArchive(api.state.db, api.state.objects, "tenora")
        assert await months(api, archive, retention=4).run_once(TODAY) == [month]


async def test_an_archive_is_never_overwritten(
    api: Api, archive: UsageArchive, tenant: TestTenant, tmp_path: Path
) -> None:
    """As by a database that was restored, or begun anew beside the store of another."""
    month = after(TODAY, -10)
    await old_month(api, tenant, month)
    await archive.write(month, bound(month), bound(after(month, 1)))
    async with api.state.db.admin_session() as session:
        before = await session.get_one(UsageArchiveRow, (month, 0))
    content = (tmp_path / before.path).read_bytes()
    late = record(tenant, datetime(month.year, month.month, 5, tzinfo=UTC))
    await UsageSink(api.engine, api.state.db).store([late])
    await archive.write(month, bound(month), bound(after(month, 1)))
    assert (tmp_path / before.path).read_bytes() == content


async def test_a_changed_archive_or_event_is_found(
    api: Api, archive: UsageArchive, tenant: TestTenant, tmp_path: Path
) -> None:
    month = after(TODAY, -11)
    await old_month(api, tenant, month)
    await archive.write(month, bound(month), bound(after(month, 1)))
    async with api.state.db.admin_session() as session:
        part = await session.get_one(UsageArchiveRow, (month, 0))
    file = tmp_path / part.path
    content = file.read_bytes()
    text_of = gzip.decompress(content)
    changed = gzip.compress(text_of.replace(b'"output_tokens":5', b'"output_tokens":4'))
    file.write_bytes(changed)
    with pytest.raises(ArchiveError, match="not the file"):
        assert [each async for each in archive.read(part)]
    part.sha256 = sha256(changed).hexdigest()
    with pytest.raises(ArchiveError, match="seal of event"):
        assert [each async for each in archive.read(part)]
    obstore.delete(LocalStore(prefix=tmp_path), part.path)
    with pytest.raises(ArchiveError, match="missing"):
        assert [each async for each in archive.read(part)]
