"""Under `tenora up` each process is killed while tenants ask: it is back without hands, and every
request is on the books exactly once, which agree. `tenora bench kills` does more of the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tenora_bench.books import Books
from tenora_bench.kills.load import Load, Outcome
from tenora_bench.kills.platform import PARTS
from tenora_bench.kills.run import Blow, measure_kills, random_blows, random_kills
from tenora_bench.kills.verdict import Event, Found, verdict
from tenora_platform.cli.books import read_books

BLOWS = [
    Blow("api-1"),
    Blow("worker"),
    Blow("api-2", "stop", 5.0),
    Blow("engine"),
    Blow("valkey"),
    Blow("postgres"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_each_process_is_killed_and_nothing_is_lost(base_model_dir: Path, tmp_path: Path) -> None:
    result = measure_kills(tmp_path, base_model_dir, BLOWS, read_books, bound_s=60.0)
    log = (tmp_path / "up.log").read_text()
    assert not result["faults"], f"{result}\n{log[-4000:]}"
    assert result["answered"] > 10, "there was a load"
    assert any("engine_unavailable" in error for error in result["errors"]), "and it met the kills"
    assert result["books"]["output_tokens"] >= result["output_tokens_answered"]
    assert "Traceback" not in log, log
    compared = result["books"]["compared"]
    assert compared["events"] == result["books"]["events"], "each was reconciled"
    assert min(compared.values()) > 0, "and every layer of it"


def test_each_process_is_killed_and_stopped_as_often_as_asked() -> None:
    blows = random_blows(3, seed=1)
    for part in ("engine", "api-1", "api-2", "worker", "valkey", "postgres"):
        for how in ("kill", "stop"):
            assert sum(blow.part == part and blow.how == how for blow in blows) == 3
    assert blows != random_blows(3, seed=2)


def test_random_kills_are_as_many_as_asked_for_of_all_processes() -> None:
    kills = random_kills(200, seed=1)
    counts = {part: sum(each.part == part for each in kills) for part in PARTS}
    assert sum(counts.values()) == 200
    assert set(counts.values()) == {33, 34}
    assert {each.how for each in kills} == {"kill"}
    assert len({each.after_s for each in kills}) > 190, "at random times"


def books(**events: list[tuple[int, int]]) -> Books:
    output = sum(row[1] for rows in events.values() for row in rows)
    return Books(events, {"output": output}, 0, 0, 0, 0)


def test_the_verdict_finds_what_is_lost_doubled_or_nobodys() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    load = Load([Outcome("a", usage), Outcome("b", None, "503 engine_unavailable")])

    def faults(*, found: Found | None = None, **events: list[tuple[int, int]]) -> str:
        return " ".join(verdict(load, books(**events), found or Found()))

    assert faults(a=[(5, 3)]) == ""
    assert faults(a=[(5, 3)], b=[(5, 1)]) == ""
    assert "stored as []" in faults()
    assert "stored as" in faults(a=[(5, 2)])
    assert "2 events" in faults(a=[(5, 3), (5, 3)])
    assert "none of our requests" in faults(a=[(5, 3)], c=[(5, 3)])
    late = Found(events=[Event("engine", "kill", 15.1, 1, 2)])
    assert "back 15.1 s after" in faults(a=[(5, 3)], found=late)
    costly = Found(events=[Event("api-1", "kill", 1.0, 1, 2)])
    assert "cost the engine" in faults(a=[(5, 3)], found=costly)
    leaking = Found(held={"acme": {"parallel_requests": 1}})
    assert "acme still holds" in faults(a=[(5, 3)], found=leaking)
    assert "still runs" in faults(a=[(5, 3)], found=Found(processes_left=["7 postgres"]))
    apart = replace(books(a=[(5, 3)]), differences=["hour_wrong: an hour"])
    assert verdict(load, apart, Found()) == ["hour_wrong: an hour"]


def test_the_verdict_excuses_only_what_the_blows_explain() -> None:
    def faults(error: str, *events: Event) -> list[str]:
        return verdict(Load([Outcome(None, None, error)]), books(), Found(list(events)))

    api = Event("api-1", "kill", 1.0, 1, 1)
    assert "500 internal_error" in faults("500 internal_error")[0]
    assert faults("ServerDisconnectedError") == ["requests ended with ServerDisconnectedError"]
    assert faults("ServerDisconnectedError", api) == []
    assert faults("ClientConnectorError", api), "the port is nobody's to lose"
    assert verdict(Load(), Books({}, {}, 0, 0, 0, in_outbox=2), Found()) == ["2 in outbox"]
