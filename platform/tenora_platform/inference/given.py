"""What all parts of an inference request's body have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from types import UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tenora_platform.errors import from_validation
from tenora_platform.schemas import FIELDS_MAX, too_many

P = ParamSpec("P")
MadeT = TypeVar("MadeT")
ItemT = TypeVar("ItemT")
QuickList = Annotated[list[ItemT], Field(fail_fast=True)]
"""Given up at the first item that is wrong: a client is told of one anyway."""


_TRUTHS = {True: "true", False: "false"}
"""As texts, which no number can be made of, so that the error names the field."""


class Given(BaseModel):
    """Part of a request body. A null field counts as absent, because clients send null for what
    they do not set. Where a number belongs, true and false are errors, not 1 and 0."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)  # whoever logs one

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if len(data) > FIELDS_MAX:
                raise too_many(len(data), FIELDS_MAX)
            return {
                name: _TRUTHS[value]
                if isinstance(value, bool) and name in number_fields(cls)
                else value
                for name, value in data.items()
                if value is not None
            }
        return data


def conversion(make: Callable[P, MadeT]) -> Callable[P, MadeT]:
    """A decorator of what makes one body of another, which has met its own schema. What the one
    refuses nevertheless is an error of the client's, named without the value."""

    @wraps(make)
    def converted(*given: P.args, **named: P.kwargs) -> MadeT:
        try:
            return make(*given, **named)
        except ValidationError as error:
            raise from_validation(error) from None

    return converted


@cache
def number_fields(model: type[BaseModel]) -> frozenset[str]:
    """The fields, by their names in a body, that hold a number and never a truth value, and look at
    what is given in no way of their own."""
    return frozenset(
        field.alias or name
        for name, field in model.model_fields.items()
        if not any(isinstance(each, BeforeValidator) for each in field.metadata)
        and (types := set(_types(field.annotation))) & {int, float}
        and bool not in types
    )


def _types(annotation: Any) -> tuple[Any, ...]:
    """Those that a field may be: the members of a union, through what `Annotated` says of them."""
    inner = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _types(inner[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(each for one in inner for each in _types(one))
    return (annotation,)
