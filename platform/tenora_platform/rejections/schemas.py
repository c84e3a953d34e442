"""Rejected calls over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from tenora_platform.schemas import IdItem, ListPage


class RejectedCall(IdItem):
    """A call of the inference API that was answered with a status of 400 or more, or a stream
    that failed after its start. Where very many of one kind came within a minute, one entry stands
    for `calls` of them, until `last_at`. No prompt is in it: what a message quotes of one is left
    out."""

    object: Literal["rejected_call"] = "rejected_call"
    at: datetime
    last_at: datetime | None = Field(description="null: it is a single call")
    calls: int
    tenant_id: str | None = Field(description="null: no valid tenant's key came with it")
    tenant_name: str | None
    api_key_id: str | None = Field(description="Or the id of the person who was signed in")
    api_key_name: str | None
    route: str
    status: int
    code: str | None
    param: str | None = Field(description="The field that was wrong")
    message: str
    model: str | None = Field(description="As the client asked for it")
    request_id: str | None = Field(description="The x-request-id of the answer")


class RejectedCallPage(ListPage[RejectedCall]):
    pass
