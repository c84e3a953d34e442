"""What all parts of an inference request's body have in common."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tenora_platform.inference.bounds import FIELDS_MAX, too_many

ItemT = TypeVar("ItemT")
QuickList = Annotated[list[ItemT], Field(fail_fast=True)]
"""Given up at the first item that is wrong: a client is told of one anyway."""


class Given(BaseModel):
    """A part of a request's body. Null is absent: clients write out what they do not set."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if len(data) > FIELDS_MAX:
                raise too_many(len(data), FIELDS_MAX)
            return {name: value for name, value in data.items() if value is not None}
        return data
