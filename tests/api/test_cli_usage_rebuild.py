"""`tenora usage rebuild` at the database of a platform that runs, as a shell runs it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import psycopg
import pytest

from api_harness import Api
from books import record, store
from platform_fixtures import plain_url
from shell import run
from tenora_platform.settings import Settings

ENDED = datetime(2031, 10, 9, 8, 30, tzinfo=UTC)


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    assert settings.secret is not None
    return {
        "TENORA_DATABASE_URL": str(settings.database_url),
        "TENORA_SECRET": settings.secret.get_secret_value(),
        "TENORA_DATA_DIR": str(settings.data_dir),
    }


async def test_a_months_sums_are_made_anew(
    api: Api, database_url: str, environment: dict[str, str]
) -> None:
    tenant = await api.new_tenant("rebuilt")
    await store(api, [record(tenant.id, ENDED.timestamp(), output_tokens=7) for _ in range(3)])

    async def rebuilt(*more: str, month: str = "2031-10") -> tuple[int, str]:
        words = ("usage", "rebuild", "--month", month, *more)
        return await asyncio.to_thread(run, *words, **environment)

    code, text = await rebuilt()
    assert (code, "All were right" in text) == (0, True), text
    with psycopg.connect(plain_url(database_url), autocommit=True) as link:
        link.execute("UPDATE usage_days SET output = 20, output_amount = 0")
        link.execute("DELETE FROM usage_hours")
        code, text = await rebuilt(month="2031-11")
        assert (code, "All were right" in text) == (0, True), text
        code, text = await rebuilt("--json")
        assert code == 0, text
        found = json.loads(text[: text.rindex("]") + 1])
        (of_days,) = [each for each in found if each["sums_by"] == "days"]
        assert [of_days[name] for name in ("tenant", "day", "meter")] == [
            *(tenant.id, "2031-10-09", "output")
        ]
        assert (of_days["quantity_before"], of_days["quantity"]) == (20, 21)
        assert float(of_days["amount_before"]) == 0 < float(of_days["amount"])
        hours = {each["meter"] for each in found if each["sums_by"] == "hours"}
        assert hours >= {"output", "sequences", "uncached_prefill"}
        for table in (b"usage_hours", b"usage_days"):
            assert link.execute(b"SELECT sum(output) FROM " + table).fetchone() == (21,)
        notes = link.execute(
            "SELECT actor, target FROM audit_logs WHERE action = 'usage.rebuild' ORDER BY seq"
        ).fetchall()
    assert notes == [("command line", month) for month in ("2031-10", "2031-11", "2031-10")]
    code, text = await rebuilt()
    assert (code, "All were right" in text) == (0, True), text


def test_what_is_no_month_is_said(environment: dict[str, str]) -> None:
    for month in ("2031-13", "October", "2031-10-09"):
        code, text = run("usage", "rebuild", "--month", month, **environment)
        assert (code, "is not a month" in text) == (1, True), text
