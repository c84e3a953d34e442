"""`tenora bench scheduler` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tenora_bench.cli import app


def test_the_scheduler_is_timed_by_what_its_queue_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"
    arguments = ["--running", "8", "--waiting", "20", "--steps", "10", "--json", str(path)]
    result = CliRunner().invoke(app, ["scheduler", *arguments])
    assert result.exit_code == 0, result.output
    measured = json.loads(path.read_text())
    assert measured["prefix_match"]["match_p50_ms"] > 0
    queues = measured["queue_waits_for"]
    assert len(queues) == 4
    for times in queues.values():
        assert 0 < times["schedule_p50_ms"] <= times["schedule_p99_ms"]
        assert 0 < times["commit_p50_ms"] <= times["commit_p99_ms"]
