"""The portal is written in plain English: phrases that once stood in it do not return."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenora_platform.operations import engine_metrics

SOURCES = Path(__file__).parents[2] / "admin_ui" / "src"
ODD = (
    "not now",
    "forget the turns",
    "keep the turns",
    "is like that",
    "is called so",
    "the secret so far",
    "of yours",
    "told of",
    "is out at once",
    "take it back",
    "taken back",
    "note it",
    "put right",
    "as it should be",
    "goes next",
    "leads to",
    "by itself",
    "no such",
    "nobody waited",
    "what serves",
    "what ran",
    "what it cost",
    "what was done",
    "leave out",
    "said again",
    "asked at once",
    "roll-out",
)
_COMMENT = re.compile(r"/\*.*?\*/|(?<![:\w])//[^\n]*", re.DOTALL)


def odd_in(text: str) -> list[str]:
    """The phrases in code, line breaks of JSX text included; comments may say what they like."""
    plain = " ".join(_COMMENT.sub(" ", text).lower().split())
    return [phrase for phrase in ODD if re.search(rf"\b{re.escape(phrase)}\b", plain)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('cancelLabel="Not now"', ["not now"]),
        ("<Text>\n  No tenant is like\n  that\n</Text>", ["is like that"]),
        ("/** What serves now. */\n// Said again, it takes itself back.\nconst x = 1;", []),
    ],
)
def test_a_phrase_is_found_where_a_person_reads_it(text: str, found: list[str]) -> None:
    assert odd_in(text) == found


def test_the_portal_has_none_of_these_phrases() -> None:
    sources = [path for path in SOURCES.rglob("*.ts*") if not path.name.endswith(".d.ts")]
    assert len(sources) > 100
    found = {
        str(path.relative_to(SOURCES)): odd
        for path in sources
        if not path.name.endswith(".test.ts") and (odd := odd_in(path.read_text()))
    }
    assert not found


def test_every_counter_of_the_engine_has_words_on_its_page() -> None:
    source = (SOURCES / "operator" / "engine" / "model.ts").read_text(encoding="utf-8")
    words = set(re.findall(r"^  (\w+): \[", source, re.MULTILINE))
    assert words == set(engine_metrics.ENGINE_COUNTERS)
