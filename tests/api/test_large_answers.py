"""Answers that are written piece by piece say what FastAPI would."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, Field

from tenora_platform.large_answers import json_of


class Inner(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    class_: str = Field(serialization_alias="class")
    amounts: list[float] = []


class Middle(BaseModel):
    inner: list[Inner]
    one: Inner | None = None


class Outer(BaseModel):
    rows: list[Middle]
    total: int
    more: list[Inner] = Field(default=[], serialization_alias="others")


class Lists(BaseModel):
    first: list[Inner]
    second: list[Inner]


def test_pieces_are_the_whole() -> None:
    inner = Inner(class_='with "quotes" and ü', amounts=[0.1, 2])
    rows = [Middle(inner=[inner, inner], one=inner), Middle(inner=[])]
    for model in (
        inner,
        Outer(rows=rows, total=3, more=[inner]),
        Outer(rows=[], total=0),
        Lists(first=[inner], second=[inner, inner]),
        Lists(first=[], second=[]),
    ):
        whole = json.loads(model.model_dump_json(by_alias=True))
        assert json.loads(json_of(model)) == whole
