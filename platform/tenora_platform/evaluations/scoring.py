"""What an answer is worth, by each way of scoring. Pure; asks nobody. What looks for users' texts
or follows their schemas is called in a process apart alone (`evaluations.apart`)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jsonschema_rs

from tenora_engine.printable import brief

Scoring = Literal["exact", "contains", "choice", "json_schema", "loglikelihood"]
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)

_FENCE = re.compile(r"\A```[a-zA-Z]*\n(.*?)\n?```\Z", re.DOTALL)


class SchemaError(ValueError):
    """Not a JSON schema that answers can be held against; the message says why."""


def exact(answer: str, expected: str) -> bool:
    """But for white space around either."""
    return answer.strip() == expected.strip()


def contains(answer: str, expected: str) -> bool:
    return expected.strip() in answer


def chosen(answer: str, choices: Sequence[str]) -> str | None:
    """The choice that the answer names first, as a whole word and whatever its case; of two that
    begin at the same place the longer."""
    found = []
    for choice in choices:
        pattern = rf"(?<!\w){re.escape(choice.strip())}(?!\w)"
        match = re.search(pattern, answer, re.IGNORECASE)
        if match is not None:
            found.append((match.start(), -len(choice), choice))
    return min(found)[2] if found else None


def fits_schema(answer: str, schema: str) -> bool:
    """Whether the whole answer (or what it fences as code) is JSON that the schema takes."""
    text = answer.strip()
    fenced = _FENCE.match(text)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return False
    return bool(validator(schema).is_valid(value))


def validator(schema: str) -> Any:
    """Of a schema as JSON text. Refers to nothing outside itself, and its patterns cannot run wild.
    Raises SchemaError."""

    def refuse(uri: str) -> Any:
        raise ValueError(f"the reference {uri} points outside the schema")

    try:
        return jsonschema_rs.validator_for(
            json.loads(schema),
            retriever=refuse,
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise SchemaError(brief(str(error).partition("\n")[0])) from error
