"""What `tenora bench tools` makes of questions, and how it judges answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tenora_bench.client import BenchError
from tenora_bench.tools.measure import Question, json_schema, judge, questions

LINE = {
    "id": "q0",
    "question": [[{"role": "user", "content": "How far is it?"}]],
    "function": [
        {
            "name": "geo.distance",
            "description": "Kilometres.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "to": {"type": "tuple", "items": {"type": "float"}},
                    "type": {"type": "String", "optional": True},
                    "more": {"type": "any"},
                },
                "required": ["to"],
            },
        }
    ],
}


@pytest.fixture
def question(tmp_path: Path) -> Question:
    (tmp_path / "some.json").write_text(json.dumps(LINE) + "\n")
    [found] = questions(tmp_path, 5, seed=0)
    return found


def test_types_of_other_languages_are_jsons(question: Question) -> None:
    function = question.tools[0]["function"]
    assert function["name"] == "geo_distance"
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "to": {"type": "array", "items": {"type": "number"}},
            "type": {"type": "string"},
            "more": {},
        },
        "required": ["to"],
    }
    assert json_schema(["a", 1]) == ["a", 1]


def answer(arguments: str | None, name: str = "geo_distance") -> dict[str, Any]:
    call = {"function": {"name": name, "arguments": arguments}}
    message = {"tool_calls": None if arguments is None else [call]}
    reason = "stop" if arguments is None else "tool_calls"
    return {"choices": [{"finish_reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (answer('{"to": [1, 2.5]}'), "valid"),
        (answer('{"to": ["1"]}'), "arguments do not fit"),
        (answer('{"to": [1'), "arguments are no JSON"),
        (answer("{}", name="another"), "no function of that name"),
        (answer(None), "no call"),
        ({"choices": [{"finish_reason": "length", "message": {}}]}, "cut"),
    ],
)
def test_calls_are_held_against_their_functions(
    question: Question, said: dict[str, Any], outcome: str
) -> None:
    assert judge(question, 200, said)[0] == outcome


def test_a_refusal_is_told(question: Question) -> None:
    refused = {"error": {"message": "too long"}}
    assert judge(question, 400, refused)[0] == "refused: too long"


def test_a_folder_without_questions_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no questions"):
        questions(tmp_path, 1, seed=0)
