"""Under `tenora up` each part is killed while tenants ask: it is back without hands, and every
request is on the books exactly once. `tenora bench kills` does more of the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tenora_bench.books import Books
from tenora_bench.kills import PARTS, Load, Outcome, measure_kills, verdict
from tenora_platform.cli.books import read_books


@pytest.mark.skipif(sys.platform != "linux", reason="finds the engine's process in /proc")
def test_each_part_is_killed_and_nothing_is_lost(base_model_dir: Path, tmp_path: Path) -> None:
    result = measure_kills(tmp_path, base_model_dir, PARTS, read_books)
    log = (tmp_path / "up.log").read_text()
    assert not result["faults"], f"{result}\n{log[-4000:]}"
    assert result["answered"] > 10, "there was a load"
    assert any("engine_unavailable" in error for error in result["errors"]), "and it met the kills"
    assert result["books"]["output_tokens"] >= result["output_tokens_answered"]
    assert "Traceback" not in log, log


def books(**events: list[tuple[int, int]]) -> Books:
    output = sum(row[1] for rows in events.values() for row in rows)
    return Books(events, {"output": output}, 0, 0, 0, 0)


def test_the_verdict_finds_what_is_lost_doubled_or_nobodys() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    load = Load([Outcome("a", usage), Outcome("b", None, "503 engine_unavailable")])
    assert verdict(load, books(a=[(5, 3)]), [], None, []) == []
    assert verdict(load, books(a=[(5, 3)], b=[(5, 1)]), [], None, []) == []
    assert "stored as []" in verdict(load, books(), [], None, [])[0]
    assert "stored as" in verdict(load, books(a=[(5, 2)]), [], None, [])[0]
    assert "2 events" in " ".join(verdict(load, books(a=[(5, 3), (5, 3)]), [], None, []))
    assert "none of our requests" in verdict(load, books(a=[(5, 3)], c=[(5, 3)]), [], None, [])[0]
    late = [{"part": "engine", "back_s": 15.1}]
    assert "back after 15.1 s" in verdict(load, books(a=[(5, 3)]), late, None, [])[0]
    wrong = Load([Outcome(None, None, "500 internal_error")])
    assert "500 internal_error" in verdict(wrong, books(), [], None, [])[0]
    lost = Books({}, {}, 0, 0, 0, in_outbox=2)
    assert verdict(Load(), lost, [], None, []) == ["2 in outbox"]
    assert "still runs" in verdict(Load(), books(), [], None, ["7 postgres"])[0]
