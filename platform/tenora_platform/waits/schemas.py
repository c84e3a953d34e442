"""Waits and shares over HTTP. docs/fairness.md says what the causes are."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Cause = Literal["queue", "pages", "load", "own", "start", "preempted"]


class WaitView(BaseModel):
    """Fields that the query did not group by are null, and so is `other_id` if no other tenant
    caused the wait. "other" stands for all tenants that the metrics do not tell apart."""

    model_config = ConfigDict(serialize_by_alias=True)

    tenant_id: str | None
    tenant_name: str | None
    class_: str | None = Field(serialization_alias="class")
    cause: Cause | None
    other_id: str | None
    other_name: str | None
    seconds: float
    sequences: int = Field(
        description="Number of requests that waited at least one millisecond for this"
    )


class WaitList(BaseModel):
    """Whole minutes: those that begin in the range, and the one that contains `start`. The most
    seconds come first; `seconds` and `total` are of all waits, of which 10,000 are listed."""

    object: Literal["waits"] = "waits"
    start: datetime
    end: datetime
    group_by: list[str]
    seconds: float
    total: int
    data: list[WaitView]


class ShareView(BaseModel):
    """`service_share` is the share of all service in its class, `weight_share` the share of the
    weights of all tenants that were served or waited in it; null if the weight is not known."""

    tenant_id: str
    tenant_name: str | None
    service_tokens: int = Field(description="Rounded")
    service_share: float
    weight: float | None = Field(description="As of now")
    weight_share: float | None
    waited_s: float = Field(
        description="Seconds waited because of other tenants, in the queue or for memory"
    )


class GapPoint(BaseModel):
    at: datetime
    gap_tokens: float
    bound_tokens: float


class ClassFairness(BaseModel):
    """`gaps`: for each period in which anybody waited, the moment at which the gap was closest to
    its bound."""

    model_config = ConfigDict(serialize_by_alias=True)

    class_: str = Field(serialization_alias="class")
    service_tokens: int = Field(description="Rounded")
    tenants: list[ShareView]
    gaps: list[GapPoint]


class Fairness(BaseModel):
    object: Literal["fairness"] = "fairness"
    start: datetime
    end: datetime
    classes: list[ClassFairness]


class WaitPartView(BaseModel):
    cause: Cause
    ms: float


class NamedWaitPart(WaitPartView):
    other_id: str | None
    other_name: str | None


class SequenceWaits(BaseModel):
    """`queue_ms` is the time until it first ran; `parts` are the causes of that and of later waits,
    largest first. Null if they are not stored: for short waits, and old ones."""

    sequence: int
    queue_ms: float
    parts: list[WaitPartView] | None


class NamedSequenceWaits(BaseModel):
    """As SequenceWaits, with the tenant that caused each part."""

    sequence: int
    queue_ms: float
    parts: list[NamedWaitPart] | None


class RequestWaits(BaseModel):
    """Other tenants are not named."""

    object: Literal["request.waits"] = "request.waits"
    id: str
    sequences: list[SequenceWaits]


class NamedRequestWaits(BaseModel):
    object: Literal["request.waits"] = "request.waits"
    id: str
    sequences: list[NamedSequenceWaits]
