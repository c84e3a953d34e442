"""Ways of scoring against what they are said to be, and the interval against its definition."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.evaluations.intervals import Z_95, wilson
from tenora_platform.evaluations.scoring import (
    SchemaError,
    chosen,
    contains,
    exact,
    fits_schema,
    validator,
)


@given(count=st.integers(1, 5000), data=st.data())
def test_wilsons_bounds_are_where_the_score_test_would_turn(
    count: int, data: st.DataObject
) -> None:
    passed = data.draw(st.integers(0, count))
    share = passed / count
    low, high = wilson(passed, count)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1
    for bound in (low, high):
        if 1e-9 < bound < 1 - 1e-9:
            z = abs(share - bound) / math.sqrt(bound * (1 - bound) / count)
            assert z == pytest.approx(Z_95, rel=1e-6)


def test_a_published_interval() -> None:
    # Newcombe (1998), table I: 81 of 263, score method without continuity correction.
    assert list(wilson(81, 263)) == pytest.approx([0.2553, 0.3662], abs=5e-5)


@given(st.text(), st.text(alphabet=" \n\t"))
def test_exact_is_but_for_white_space_around(said: str, around: str) -> None:
    assert exact(around + said + around, said)
    assert not exact(said + "x", said)
    assert contains(f"a{said}b", said)


@pytest.mark.parametrize(
    ("answer", "picked"),
    [
        ("B", "B"),
        ("The answer is (b).", "B"),
        ("Ab", None),
        ("C or A", "C"),
        ("", None),
    ],
)
def test_choice(answer: str, picked: str | None) -> None:
    assert chosen(answer, ["A", "B", "C"]) == picked


def test_the_longer_of_two_choices_that_begin_alike() -> None:
    assert chosen("new york city", ["New York", "New York City"]) == "New York City"


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ('{"a": 1}', True),
        ('```json\n{"a": 1}\n```', True),
        ('{"a": "1"}', False),
        ('Here: {"a": 1}', False),
        ("[" * 100_000, False),
    ],
)
def test_json_schema(answer: str, fits: bool) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert fits_schema(answer, schema) is fits


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"pattern": r"(a)\1"},
    ],
)
def test_schemas_that_are_refused(schema: dict[str, str]) -> None:
    with pytest.raises(SchemaError):
        validator(json.dumps(schema))
