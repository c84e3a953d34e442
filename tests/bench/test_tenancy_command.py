"""`tenora bench tenancy`: its frame, without an engine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tenora_bench.cli import app
from tenora_bench.tenancy import registry
from tenora_bench.tenancy.experiment import Claim, Experiment, Options, Outcome, median_ratio


def fake(options: Options) -> Outcome:
    (options.scratch / "used").touch()
    claims = [Claim("as it should be", 1.0, "below", 1.2), Claim("not there", 0.4, "at least", 0.9)]
    return Outcome(claims, ("run", "ms"), [("one", 1.5), ("two", None)], {"rounds": options.rounds})


def test_an_experiment_prints_its_claims_and_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.EXPERIMENTS, "fake", Experiment("fake", "nothing", fake))
    path = tmp_path / "out.json"
    arguments = ["tenancy", "fake", "--rounds", "3", "--model", str(tmp_path), "--json", str(path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "not held: not there" in result.output
    written = json.loads(path.read_text())["experiments"]["fake"]
    assert [claim["held"] for claim in written["claims"]] == [True, False]
    assert written["rounds"] == 3


def test_without_a_name_the_experiments_are_listed() -> None:
    result = CliRunner().invoke(app, ["tenancy"])
    assert result.exit_code == 0
    for name in registry.EXPERIMENTS:
        assert name in result.output


def test_an_unknown_name_is_a_readable_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["tenancy", "nosuch", "--model", str(tmp_path)])
    assert result.exit_code == 1
    assert "nosuch" in result.output


def test_a_figure_that_could_not_be_had_keeps_no_bound() -> None:
    for must_be in ("below", "above", "at least", "at most"):
        assert not Claim("nothing", math.nan, must_be, 1.0).held


def test_ratios_are_taken_round_by_round() -> None:
    assert median_ratio([(2.0, 1.0), (30.0, 10.0), (4.0, 4.0)]) == 2.0
