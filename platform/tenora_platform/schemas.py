"""HTTP shapes shared by all domains: OpenAI's list envelope and its paging parameters, and what
every kind of key has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from fastapi import Query
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema

from tenora_platform.plain_text import ONE_LINE
from tenora_platform.times import DAY_S

FIELDS_MAX = 256
"""Of one object of a body, known ones and others. An object is made of each that is unknown."""


def too_many(count: int, most: int) -> PydanticCustomError:
    return PydanticCustomError(
        "too_long",
        "has {count} entries; at most {most} are allowed",
        {"count": count, "most": most},
    )


def _strict(value: Any) -> Any:
    """A schema with strict numbers and truth values, and lists that are given up at the first item
    that is wrong: a client is told of one anyway. Strict models would take no text for a time
    either, because bodies are no JSON any more when they are validated."""
    if isinstance(value, list | tuple):
        return type(value)(map(_strict, value))
    if not isinstance(value, dict):
        return value
    made = {name: _strict(each) for name, each in value.items()}
    if made.get("type") == "decimal":
        return core_schema.no_info_before_validator_function(plainly_written, made)
    if made.get("type") in ("list", "set", "tuple"):
        made["fail_fast"] = True
    return made | {"strict": True} if made.get("type") in ("int", "float", "bool") else made


def plainly_written(value: Any) -> Any:
    """What a decimal is made of: Python's own may have underscores, and digits of any script."""
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise PydanticKnownError("decimal_parsing")
    return value


class Body(BaseModel):
    """A request body: unknown fields, infinities and NaN are errors that name them. Where a number
    or a truth value belongs, the body holds one: `true` is no 1, and "yes" and "10" are texts."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > FIELDS_MAX:
            raise too_many(len(data), FIELDS_MAX)
        return data

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        strict: core_schema.CoreSchema = _strict(handler(source))
        return strict


class Item(BaseModel):
    """What an answer is made of; may be filled from a row."""

    model_config = ConfigDict(from_attributes=True)


class IdItem(Item):
    """An item that lists can page over."""

    id: str


ItemT = TypeVar("ItemT", bound=IdItem)


class ListPage(BaseModel, Generic[ItemT]):
    """`{object: "list", data, first_id, last_id, has_more}`."""

    object: Literal["list"] = "list"
    data: list[ItemT]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False

    @classmethod
    def of(cls, found: Sequence[ItemT], limit: int, **more: Any) -> Self:
        """The page of at most `limit` items, from a query that asked for `limit + 1`. `more`: the
        fields that a page of its kind has beside these."""
        data = list(found[:limit])
        return cls(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=len(found) > limit,
            **more,
        )


class Deleted(BaseModel):
    """`{id, object, deleted: true}`."""

    id: str
    object: str
    deleted: Literal[True] = True


Limit = Annotated[int, Query(ge=1, le=100, description="Maximum number of items to return")]
After = Annotated[str | None, Query(description="Return the items after the one with this id")]
Internal = Annotated[
    bool,
    Query(description="Include the platform's own tenants, of synthetic checks and probes"),
]
Order = Annotated[Literal["asc", "desc"], Query(description="Order by time")]
Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=120, pattern=ONE_LINE),
]
Reason = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=ONE_LINE),
]
"""In a person's words, of a change."""


class Rotation(Body):
    """`overlap_s`: how long the previous secret stays valid, in seconds."""

    overlap_s: Annotated[int, Field(ge=0, le=90 * DAY_S)] = DAY_S


class PreviousSecret(Item):
    """The secret before the rotation, which is still valid until `expires_at`."""

    prefix: str
    expires_at: datetime
