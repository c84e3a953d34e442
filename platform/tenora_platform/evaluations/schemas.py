"""Evaluations over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    SkipValidation,
    StringConstraints,
    ValidationError,
    field_validator,
)
from pydantic_core import from_json

from tenora_engine.printable import brief
from tenora_platform.errors import from_validation
from tenora_platform.evaluations.scoring import Scoring
from tenora_platform.json_bodies import KEYS_MAX
from tenora_platform.schemas import Body, IdItem, ListPage
from tenora_platform.texts import keys_in

ITEMS_MAX = 1000
MESSAGES_MAX = 8000
"""Of all items together."""
SUBJECTS_MAX = 8
TEXT_MAX = 32_000
State = Literal["queued", "running", "completed", "failed", "cancelled"]
OPEN: tuple[State, ...] = ("queued", "running")

_Text = Annotated[str, StringConstraints(max_length=TEXT_MAX, pattern=r"^[^\x00]*$")]
_NotEmpty = Annotated[_Text, StringConstraints(min_length=1)]


class Message(Body):
    role: Literal["system", "user", "assistant"]
    content: _Text


class Item(Body):
    """One item: either `prompt`, which the model continues as in /v1/completions, or `messages`,
    which it answers as a chat."""

    prompt: _NotEmpty | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=64)] | None = None
    expected: _NotEmpty | None = None
    choices: Annotated[list[_NotEmpty], Field(min_length=2, max_length=64)] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


Items = Annotated[list[Item], Field(min_length=1, max_length=ITEMS_MAX)]


class EvaluationCreate(Body):
    """`versions` are version numbers of the adapter, and "base" for the base model. `items` is an
    array, or JSON lines in one string. `schema` applies to items without a schema of their own."""

    adapter: Annotated[str, StringConstraints(max_length=63)]
    versions: Annotated[
        list[Annotated[int, Field(ge=1, lt=2**31)] | Literal["base"]],
        Field(min_length=1, max_length=SUBJECTS_MAX),
    ]
    scoring: Scoring
    items: Annotated[Items, SkipValidation]  # `items_of` looks at them
    max_tokens: Annotated[int, Field(ge=1, le=1024)] = 64
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class _Given(Body):
    items: Annotated[list[Any], Field(min_length=1, max_length=ITEMS_MAX)]

    @field_validator("items", mode="before")
    @classmethod
    def _lines(cls, items: Any) -> Any:
        if not isinstance(items, str):
            return _few_messages(items)
        if keys_in(items.encode(errors="replace"), KEYS_MAX) > KEYS_MAX:
            raise ValueError(f"has more than {KEYS_MAX} keys in all lines")
        found = []
        for number, line in enumerate(items.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                found.append(from_json(line, cache_strings="keys"))
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON: {brief(error)}") from error
            if len(found) > ITEMS_MAX:
                raise ValueError(f"has more than {ITEMS_MAX} lines")
        return _few_messages(found)


def items_of(body: EvaluationCreate) -> Iterator[Item]:
    """Make the items of a body one by one: all of them in one call would keep Python's lock for
    100 ms, from the event loop, too. Raises BadRequestError."""
    within: tuple[str | int, ...] = ()
    try:
        for no, given in enumerate(_Given.model_validate({"items": body.items}).items):
            within = ("items", no)
            yield Item.model_validate(given)
    except ValidationError as error:
        raise from_validation(error, within) from None


def _few_messages(items: Any) -> Any:
    """The items as they were given: looked at before they are made, which takes 3 us a message."""
    if not isinstance(items, list):
        return items
    said = [each.get("messages") for each in items if isinstance(each, dict)]
    count = sum(len(each) for each in said if isinstance(each, list))
    if count > MESSAGES_MAX:
        raise ValueError(f"has {count} messages in total; at most {MESSAGES_MAX} are allowed")
    return items


class Subject(BaseModel):
    """What is evaluated: a version of the adapter, or the base model."""

    name: str  # "base", or the version's number
    version_id: str | None = None
    adapter_id: str = ""
    number: int = 0
    digest: str = ""
    rank: int = 0


class Result(BaseModel):
    """The result of one version. `score` is the share of items that passed, with Wilson's 95%
    interval; for loglikelihood it is the mean over the items, higher is better, with the normal
    interval. An item with an `error` counts as not passed, and has no loglikelihood."""

    version: int | Literal["base"]
    answered: int
    errors: int
    passed: int | None
    score: float | None
    low: float | None
    high: float | None
    prompt_tokens: int
    output_tokens: int


class Evaluation(IdItem):
    object: Literal["evaluation"] = "evaluation"
    adapter: str
    versions: list[int | Literal["base"]]
    scoring: Scoring
    items: int
    max_tokens: int
    state: State
    error: str | None
    results: list[Result]
    created_at: datetime
    ended_at: datetime | None


class ItemAnswer(BaseModel):
    """`request_ids` lead to receipts: GET /v1/requests/{id}."""

    version: int | Literal["base"]
    answer: str | None
    score: float | None
    error: str | None
    request_ids: list[str]


class ItemView(BaseModel):
    """One item with the answer of each version, side by side."""

    no: int
    item: dict[str, Any]
    answers: list[ItemAnswer]


class ItemPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[ItemView]
    has_more: bool


class EvaluationPage(ListPage[Evaluation]):
    pass
