"""Price lists as the admin API shows them. Prices are decimal strings, never JSON numbers."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from tenora_platform.schemas import Body

Price = Annotated[Decimal, Field(ge=0, max_digits=20, decimal_places=6)]


class Prices(BaseModel):
    """The price of a million tokens of each meter."""

    uncached_prefill: Price
    cached_prefill: Price
    output: Price


class PriceVersionCreate(Body):
    """A new price list. Without model or plan it holds for any; without `effective_from`, from
    now on."""

    model: str | None = Field(default=None, max_length=256)
    plan: str | None = Field(default=None, max_length=256)
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    effective_from: datetime | None = None
    per_million: Prices

    @field_validator("effective_from")
    @classmethod
    def _with_zone(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs a time zone, such as 2030-01-01T00:00:00Z")
        return value


class PriceVersion(BaseModel):
    id: str
    object: str = "price_version"
    model: str | None
    plan: str | None
    currency: str
    effective_from: datetime
    effective_to: datetime | None
    per_million: Prices


class PriceVersionList(BaseModel):
    object: str = "list"
    data: list[PriceVersion]
