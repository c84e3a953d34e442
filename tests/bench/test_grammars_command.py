"""`tenora bench grammars` on a few schemas, with the real model."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tenora_bench.cli import app

NAME = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}},
    "required": ["name"],
    "additionalProperties": False,
}
COLOUR = {"enum": ["red", "green"]}
REFUSED = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


def test_it_says_what_compiles_and_whether_answers_are_valid(
    base_model_dir: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "schemas", tmp_path / "out.json"
    folder.mkdir()
    for name, schema in {"name": NAME, "colour": COLOUR, "refused": REFUSED}.items():
        (folder / f"{name}.json").write_text(json.dumps({"schema": schema, "tests": []}))
    command = ["grammars", str(folder), "--most", "24", "--rounds", "0", "--json", str(out)]
    told = CliRunner().invoke(app, [*command, "--model", str(base_model_dir)])
    assert told.exit_code == 0, told.output
    result = json.loads(out.read_text())
    assert (result["schemas"], result["compiled"]) == (3, 2)
    assert sum(result["refusals"].values()) == 1
    assert result["answers"]["reasons"] == {"stop": 2}
    assert (result["answers"]["valid"], result["answers"]["invalid"]) == (2, [])
    assert result["ratios"] == {}


def test_a_folder_without_schemas_is_named(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["grammars", str(tmp_path), "--model", str(tmp_path)])
    assert told.exit_code == 1
