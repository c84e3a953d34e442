"""The month that `tenora bench money` stores is the same each time and lies in one month, and a
target that was not measured is missed."""

from __future__ import annotations

from datetime import UTC, datetime

from tenora_bench.money.records import Adapter, Payer, month_before, month_of_records
from tenora_bench.money.run import TARGETS, missed


def test_a_seed_makes_one_month() -> None:
    begin, end = month_before(datetime(2027, 1, 15, tzinfo=UTC))
    assert (begin, end) == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    adapter = Adapter("adapter_1", "version_1", "sha256:1")
    payers = [Payer(f"tenant_{each}", ["key_1"], [None, adapter]) for each in range(5)]
    records = list(month_of_records(payers, 2000, begin, end, "m"))
    assert records == list(month_of_records(payers, 2000, begin, end, "m"))
    assert len({record.event_id for record in records}) == 2000
    assert all(begin.timestamp() < record.finished_s < end.timestamp() for record in records)
    assert all(record.cached_tokens < record.prompt_tokens for record in records)
    assert {record.tenant for record in records} == {payer.id for payer in payers}


def test_what_was_not_measured_is_missed() -> None:
    figures = dict.fromkeys(TARGETS, 1.0)
    assert missed(figures) == []
    assert missed(figures | {"invoice_run_s": 60.0}) == ["invoice_run_s"]
    del figures["event_bytes"]
    assert missed(figures) == ["event_bytes"]
