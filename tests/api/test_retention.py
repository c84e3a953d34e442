"""What nobody needs any more goes after its time, and nothing that somebody still refers to."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from api_harness import Api
from tenora_platform.ids import first_id
from tenora_platform.retention import RULES, sweep

NOW = datetime.now(UTC)


def id_of(kind: str, days: float) -> str:
    """Of what was made so many days ago."""
    return first_id(kind, NOW - timedelta(days=days))


async def execute(api: Api, statement: str, **values: object) -> None:
    async with api.state.db.admin_session() as session:
        await session.execute(text(statement), values)


async def event(api: Api, tenant: str, days: float) -> str:
    """One that webhooks have been told of."""
    made = id_of("evt", days + random.random() / 2)
    await execute(
        api,
        "insert into events (id, tenant_id, type, once, data, created_at) "
        "values (:id, :tenant, 'key.created', :id, '{}', :at)",
        id=made,
        tenant=tenant,
        at=NOW - timedelta(days=days),
    )
    await execute(api, "delete from webhook_queue where event_id = :id", id=made)
    return made


async def delivery(api: Api, tenant: str, of: str, days: float, state: str) -> None:
    await execute(
        api,
        "insert into webhook_deliveries (id, endpoint_id, tenant_id, event_id, state) "
        "values (:id, :endpoint, :tenant, :event, :state)",
        id=id_of("delivery", days),
        endpoint=await endpoint(api, tenant),
        tenant=tenant,
        event=of,
        state=state,
    )


async def endpoint(api: Api, tenant: str) -> str:
    made = f"webhook_{tenant[-26:]}"
    await execute(
        api,
        "insert into webhook_endpoints (id, tenant_id, url, secret) "
        "values (:id, :tenant, 'https://8.8.8.8/', '') on conflict do nothing",
        id=made,
        tenant=tenant,
    )
    return made


async def left(api: Api, table: str, tenant: str) -> set[str]:
    async with api.state.db.admin_session() as session:
        query = text(f"select id from {table} where tenant_id = :tenant")
        return set(await session.scalars(query, {"tenant": tenant}))


async def test_events_and_deliveries_go_when_nothing_refers_to_them(api: Api) -> None:
    tenant = (await api.new_tenant("told")).id
    old, sent, waits, new = [await event(api, tenant, days) for days in (100, 101, 102, 80)]
    await delivery(api, tenant, sent, 100, "delivered")
    await delivery(api, tenant, waits, 101, "waiting")
    await delivery(api, tenant, new, 20, "dead")
    gone = await sweep(api.state.db, NOW)
    assert (gone["webhook_deliveries"], gone["events"]) == (1, 2)
    there = await left(api, "events", tenant)
    assert {waits, new} <= there
    assert not {old, sent} & there
    assert (await sweep(api.state.db, NOW))["events"] == 0


async def test_nothing_young_can_be_taken_from_what_is_only_added_to(api: Api) -> None:
    tenant = (await api.new_tenant("kept")).id
    made = await event(api, tenant, 80)
    with pytest.raises(DBAPIError, match="append-only"):
        await execute(api, "delete from events where id = :id", id=made)


async def test_an_aliass_last_changes_stay(api: Api) -> None:
    """A roll back needs them, however old they are."""
    tenant = (await api.new_tenant("moved")).id
    adapter = id_of("adapter", 900)
    await execute(
        api,
        "insert into adapters (id, tenant_id, name) values (:id, :tenant, 'bot')",
        id=adapter,
        tenant=tenant,
    )
    for number in range(60):
        await execute(
            api,
            "insert into alias_changes (id, tenant_id, adapter_id, alias, action, actor, at) "
            "values (:id, :tenant, :adapter, 'prod', 'move', 'test', :at)",
            id=id_of("change", 800 - number),
            tenant=tenant,
            adapter=adapter,
            at=NOW - timedelta(days=800 - number),
        )
    assert (await sweep(api.state.db, NOW))["alias_changes"] == 10
    assert len(await left(api, "alias_changes", tenant)) == 50


async def test_an_upload_goes_when_its_version_needs_it_no_more(api: Api) -> None:
    """The version stays, which was made of it."""
    tenant = (await api.new_tenant("uploaded")).id
    adapter = id_of("adapter", 50)
    await execute(
        api,
        "insert into adapters (id, tenant_id, name) values (:id, :tenant, 'bot')",
        id=adapter,
        tenant=tenant,
    )
    made = {}
    for number, (state, staged) in enumerate((("revoked", None), ("validating", "staging/x")), 1):
        made[staged] = upload = id_of("upload", 40 + number)
        await execute(
            api,
            "insert into uploads (id, tenant_id, status, bytes, expires_at) "
            "values (:id, :tenant, 'used', 1, now())",
            id=upload,
            tenant=tenant,
        )
        await execute(
            api,
            "insert into adapter_versions "
            "(id, tenant_id, adapter_id, number, state, bytes, weights_sha256, upload_id, "
            "staging_key, check_begun_at) values "
            "(:id, :tenant, :adapter, :number, :state, 1, '', :upload, :staged, now())",
            id=id_of("version", 40 + number),
            tenant=tenant,
            adapter=adapter,
            number=number,
            state=state,
            upload=upload,
            staged=staged,
        )
    assert (await sweep(api.state.db, NOW))["uploads"] == 1
    assert await left(api, "uploads", tenant) == {made["staging/x"]}
    assert len(await left(api, "adapter_versions", tenant)) == 2


async def test_the_rules_are_said_in_words() -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    for rule in RULES:
        (line,) = [line for line in page.splitlines() if f"`{rule.table}`" in line]
        assert str(rule.days) in line, rule.table
