"""Rows are locked so that who refers to them by a foreign key does not wait (decision 56)."""

from __future__ import annotations

import re
from pathlib import Path

PLATFORM = Path(__file__).parents[2] / "platform"
_STRONG = re.compile(r"with_for_update(?:=True|\((?![^)]*(?:key_share|read)=True))|\bFOR UPDATE\b")


def test_no_row_is_locked_against_those_who_refer_to_it() -> None:
    found = [
        f"{path.relative_to(PLATFORM)}: {line.strip()}"
        for path in PLATFORM.rglob("*.py")
        for line in path.read_text().splitlines()
        if _STRONG.search(line)
    ]
    assert found == []
