"""Price lists as the admin API shows them. Prices are decimal strings, never JSON numbers."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, Field

from tenora_platform.schemas import Body
from tenora_platform.times import BodyTime

Price = Annotated[Decimal, Field(ge=0, max_digits=20, decimal_places=6)]


# No control characters, NUL among them, and not empty: absent is what means any.
Scope = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Prices(BaseModel):
    """The price of a million tokens of each meter."""

    uncached_prefill: Price
    cached_prefill: Price
    output: Price


class PriceVersionCreate(Body):
    """A new price list. Without model or plan it holds for any; without `effective_from`, from
    now on. It may not begin where usage has been rated already."""

    model: Scope | None = None
    plan: Scope | None = None
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    effective_from: BodyTime | None = None
    per_million: Prices


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
