"""The task of compiling schemas and scoring answers, as it is done in a process apart
(`apart.process`): neither a schema nor a text that is looked for has a bound on its time."""

from __future__ import annotations

import msgspec

from tenora_engine.printable import brief
from tenora_platform.evaluations.scoring import SchemaError, chosen, fits_schema, validator


class Compile(msgspec.Struct, frozen=True, tag=True):
    """Whether each of these JSON texts is a schema."""

    schemas: list[str]


class Score(msgspec.Struct, frozen=True, tag=True):
    """What an answer is worth, by a schema or by the choices."""

    answer: str
    schema: str | None = None
    choices: list[str] = []
    expected: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The score; of schemas the first that is none, by its place, and why."""

    score: float | None = None
    place: int | None = None
    error: str | None = None


def answer(question: bytes) -> bytes:
    """The Verdict on a Compile or a Score, each in msgpack."""
    asked: Compile | Score = msgspec.msgpack.decode(question, type=Compile | Score)
    made = _compiled(asked) if isinstance(asked, Compile) else Verdict(score=_score(asked))
    return msgspec.msgpack.encode(made)


def _compiled(asked: Compile) -> Verdict:
    for place, schema in enumerate(asked.schemas):
        try:
            validator(schema)
        except (SchemaError, RecursionError) as error:
            return Verdict(place=place, error=brief(error))
    return Verdict()


def _score(asked: Score) -> float:
    if asked.schema is not None:
        return float(fits_schema(asked.answer, asked.schema))
    return float(chosen(asked.answer, asked.choices) == asked.expected)


def warm_up() -> None:
    """One of each, so that all is imported before no file can be read."""
    schema = '{"type": "object", "properties": {"a": {"pattern": "^a", "format": "email"}}}'
    for each in (
        Compile([schema, '{"type": 1}']),
        Compile(['{"$ref": "https://example.com/"}']),
        Score('{"a": "a@b.example"}', schema),
        Score("A", choices=["A", "B"], expected="A"),
    ):
        answer(msgspec.msgpack.encode(each))
