"""docs/threat-model.md names every boundary, and for each of them tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
BOUNDARIES = {
    "browser",
    "tenant key",
    "person",
    "upload",
    "template",
    "grammar",
    "webhook receiver",
    "Redis",
    "PostgreSQL",
    "object store",
    "engine port",
    "data directory",
}


def test_every_boundary_has_tests_that_exist() -> None:
    text = (REPOSITORY / "docs" / "threat-model.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    named = {row[0].strip(): re.findall(r"`(test_\w+\.py)`", row[-1]) for row in rows}
    assert named.keys() >= BOUNDARIES
    there = {path.name for path in (REPOSITORY / "tests").rglob("test_*.py")}
    assert {boundary for boundary, tests in named.items() if not tests} == set()
    assert {test for tests in named.values() for test in tests} - there == set()
