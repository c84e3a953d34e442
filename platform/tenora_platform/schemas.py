"""HTTP shapes shared by all domains: OpenAI's list envelope and its paging parameters, and what
every kind of key has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tenora_platform.times import DAY_S


class Body(BaseModel):
    """A request body: unknown fields, infinities and NaN are errors that name them."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


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
    # No control characters, NUL among them.
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f]*$"
    ),
]
Reason = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$"
    ),
]
"""In a person's words, of a change."""


class Rotation(Body):
    """`overlap_s`: how long the previous secret stays valid, in seconds."""

    overlap_s: Annotated[int, Field(ge=0, le=90 * DAY_S)] = DAY_S


class PreviousSecret(Item):
    """The secret before the rotation, which is still valid until `expires_at`."""

    prefix: str
    expires_at: datetime
