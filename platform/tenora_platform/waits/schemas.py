"""Waits and shares over HTTP. docs/fairness.md says what the causes are."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Cause = Literal["queue", "pages", "load", "own", "start", "preempted"]


class WaitView(BaseModel):
    """What is not grouped by is null, as is an `other_id` where it was no other tenant's doing.
    "other" stands for all tenants that the metrics do not tell apart."""

    model_config = ConfigDict(serialize_by_alias=True)

    tenant_id: str | None
    tenant_name: str | None
    class_: str | None = Field(serialization_alias="class")
    cause: Cause | None
    other_id: str | None
    other_name: str | None
    seconds: float
    sequences: int = Field(description="That waited a millisecond of it at least")


class WaitList(BaseModel):
    """Whole minutes: those that begin in the range and the one that `start` is in."""

    object: Literal["waits"] = "waits"
    start: datetime
    end: datetime
    group_by: list[str]
    seconds: float
    data: list[WaitView]


class ShareView(BaseModel):
    """`service_share` of all service in its class, `weight_share` of the weights of those who were
    served or waited in it; null where the weight is not known."""

    tenant_id: str
    tenant_name: str | None
    service_tokens: int = Field(description="Rounded")
    service_share: float
    weight: float | None = Field(description="As it is now")
    weight_share: float | None
    waited_s: float = Field(description="Behind other tenants, in the queue or for their memory")


class GapPoint(BaseModel):
    at: datetime
    gap_tokens: float
    bound_tokens: float


class ClassFairness(BaseModel):
    """`gaps`: where anybody waited, the moments at which the gap was nearest to its bound."""

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
    """`queue_ms` until it first ran, `parts` of it and of what it waited after it had run, the
    largest first. Null where they are not kept: brief waits, and old ones."""

    sequence: int
    queue_ms: float
    parts: list[WaitPartView] | None


class NamedSequenceWaits(BaseModel):
    """As SequenceWaits, with whose doing each part was."""

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
