"""The totals that engines tell of, as they are kept: an older answer takes nothing back, an engine
that is no more is known as it last was, and what copies brought is counted beside."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from api_harness import Api
from tenora_engine.events import EngineTotals, TenantDay
from tenora_platform.usage.engine_totals import COPIES, TotalsKeeper, add_recovered, keep
from tenora_platform.usage.gate import UsageGate
from tenora_platform.usage.tables import EngineOutboxRow, EngineTotalRow
from usage_records import usage_record


def totals(engine: str, *days: TenantDay) -> EngineTotals:
    return EngineTotals(engine, "2026-11-01", 0.0, list(days))


async def kept(api: Api, engine: str) -> list[tuple[str, str, int, int]]:
    async with api.state.db.admin_session() as session:
        query = select(EngineTotalRow).where(EngineTotalRow.engine == engine)
        rows = await session.scalars(query.order_by(EngineTotalRow.day, EngineTotalRow.tenant_id))
        return [(r.tenant_id, r.day.isoformat(), r.sequences, r.output_tokens) for r in rows]


async def test_totals_only_rise(api: Api) -> None:
    first, second = "2026-11-21", "2026-11-22"
    for answer in (
        totals(
            "eng_1", TenantDay("a", first, 1, 1, 0, 10, 0), TenantDay("b", first, 1, 1, 0, 5, 0)
        ),
        totals(
            "eng_1", TenantDay("a", first, 3, 3, 0, 30, 0), TenantDay("a", second, 1, 1, 0, 2, 1)
        ),
        totals("eng_1", TenantDay("a", first, 2, 2, 0, 20, 0)),  # of another worker, and late
        totals("eng_2", TenantDay("a", first, 1, 1, 0, 7, 0)),
    ):
        async with api.state.db.admin_session() as session:
            await keep(session, answer)
    assert await kept(api, "eng_1") == [
        ("a", first, 3, 30),
        ("b", first, 1, 5),
        ("a", second, 1, 2),
    ]
    assert await kept(api, "eng_2") == [("a", first, 1, 7)]
    async with api.state.db.admin_session() as session:
        heard = await session.get_one(EngineOutboxRow, "eng_1")
    assert heard.whole_since.isoformat() == "2026-11-01"
    assert heard.last_heard_at >= heard.first_heard_at


async def test_a_worker_keeps_what_the_engine_says(api: Api) -> None:
    tenant = await api.new_tenant("totals", plan="premium")
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}], "n": 2}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    keeper = TotalsKeeper(api.engine, api.state.db)
    told = await keeper.run_once()
    today = datetime.now(UTC).date().isoformat()
    tokens = answer.json()["usage"]["completion_tokens"]
    assert (tenant.id, today, 2, tokens) in await kept(api, told.engine)
    assert (await keeper.run_once()).engine == told.engine


async def test_damage_of_an_outbox_is_told(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def damaged(since: str) -> EngineTotals:
        return EngineTotals("eng_damaged", "2026-11-01", 0.0, [], unreadable=2)

    await api.state.store.problem()
    monkeypatch.setattr(api.engine, "usage_totals", damaged)
    gate = UsageGate(api.state.db, api.state.store)
    await TotalsKeeper(api.engine, api.state.db, gate=gate).run_once()
    warnings = (await api.http.get("/readyz")).json()["warnings"]
    assert any("2 segments or records of the engine's usage outbox" in each for each in warnings)
    metrics = (await api.http.get("/metrics")).text
    assert "tenora_store_unreadable_usage 2.0" in metrics


@pytest.mark.parametrize("times", [1, 2])
async def test_what_copies_brought_is_added(api: Api, times: int) -> None:
    name = f"tenant_copied_{times}"
    records = [usage_record(f"r{n}:0", name, finished_s=1_763_000_000.0) for n in range(3)]
    for _ in range(times):
        async with api.state.db.admin_session() as session:
            await add_recovered(session, records)
    day = "2025-11-13"
    assert (name, day, 3 * times, 15 * times) in await kept(api, COPIES)
