"""`tenora bench books` fills books that reconcile and whose chains are whole, asks every GET route
of a platform on them, and says which of its claims hold."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tenora_bench.growth.claims import claims
from tenora_bench.growth.run import measure_growth
from tenora_bench.growth.size import Size, size_of
from tenora_platform.cli.growth_bench import print_growth
from tenora_platform.cli.growth_events import Kind, Maker, Payer, days_of
from tenora_platform.cli.growth_fill import LOG_ENTRIES, fill
from tenora_platform.cli.portal_bench import pretend_arena

SIZE = Size(tenants=4, versions=20, events=600)


def test_a_size_is_shared_out_whole() -> None:
    assert size_of("500:5000:100000") == Size(500, 5000, 100_000)
    size = Size(500, 5990, 1)
    counts = [size.versions_of(number) for number in range(500)]
    assert sum(counts) == 5990
    assert counts[0] == 1000
    assert set(counts[1:]) == {10}
    with pytest.raises(ValueError, match="two tenants"):
        size_of("1:1:1")


def test_a_day_has_the_events_that_it_is_to_have() -> None:
    begin = datetime(2026, 9, 1, tzinfo=UTC)
    days = days_of(100, begin, begin + timedelta(days=7))
    assert sum(day.events for day in days) == 100
    kinds = [Kind(10, 5, 3, Decimal("0.000001"))]
    maker = Maker(b"s" * 32, [Payer(1, (1, 2)), Payer(2, (3,))], kinds, 1)
    for day in days:
        made = maker.make(day)
        assert made.copied.count(b"\n") == day.events == sum(each.events for each in made.moved)
        hours = [each.hour for each in made.moved]
        assert hours == sorted(hours), "an index by time needs rows in its order"


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_books_of_many_are_filled_right_and_measured(
    base_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measure_growth(
        tmp_path, base_model_dir, [SIZE], fill, pretend_arena, quiet_s=0.1, times=1
    )
    one = result["results"][0]
    jobs = {each["job"]: each for each in one["jobs"]}  # one that fails raises
    looked = jobs["reconciliation, full"]["looked"]
    assert looked["events"] == SIZE.events
    assert looked["ledger_amounts"] > 0
    assert jobs["reconciliation, full"]["mb"] > 0, "its process was seen"
    assert jobs["invoices of a month"]["made"] == SIZE.tenants
    entries = jobs["audit verification, full"]["entries"]
    assert entries > LOG_ENTRIES * (SIZE.tenants - 1 + 100)
    answered = [each for each in one["routes"] if not each["skipped"]]
    assert {each["asker"] for each in answered} == {"average", "large", "operator"}
    assert [each["path"] for each in answered if each["status"] not in (200, 403, 404)] == []
    mine = {each["path"] for each in answered if each["asker"] == "average"}
    assert {"/v1/requests/{request_id}", "/v1/invoices/{invoice_id}", "/v1/adapters/{name}"} <= mine
    assert all(mb > 0 for mb in one["quiet"]["mb"].values())
    print_growth(result)
    assert "audit verification, full" in capsys.readouterr().out


def measured(size: str, page_ms: float, *, status: int = 200, mb: float = 100.0) -> dict[str, Any]:
    times = {"first_ms": page_ms, "median_ms": page_ms, "skipped": "", "status": status}
    return {
        "size": size,
        "routes": [{"path": "/v1/usage", "asker": "average", **times}],
        "jobs": [
            {"job": "invoices of a month", "seconds": 1.0, "mb": 1.0},
            {"job": "reconciliation, recent", "seconds": 1.0, "mb": mb},
        ],
        "quiet": {"cores": {"worker": 0.005, "postgres": 0.005}},
    }


@pytest.mark.parametrize(
    ("results", "broken"),
    [
        ([measured("s", 10)], set()),
        ([measured("s", 301)], {"slowest first page, ms"}),
        ([measured("s", 10, status=503)], {"routes that answer 5xx"}),
        ([measured("s", 10, mb=301)], {"incremental reconciliation, MB"}),
        ([measured("s", 10), measured("l", 39)], set()),
        ([measured("s", 10), measured("l", 41)], {"a tenant's page against s"}),
    ],
)
def test_a_claim_holds_up_to_its_bound(results: list[dict[str, Any]], broken: set[str]) -> None:
    found = {each["claim"].partition(" (")[0] for each in claims(results) if not each["holds"]}
    assert found == broken
