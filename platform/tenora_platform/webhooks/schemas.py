"""Webhooks over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tenora_platform.plain_text import ONE_LINE
from tenora_platform.schemas import Body, IdItem, ListPage

EVENT_TYPES = (
    "adapter.active",
    "adapter.rejected",
    "adapter.damaged",
    "adapter.no_effect_measured",
    "evaluation.completed",
    "evaluation.failed",
    "rollout.rolled_back",
    "budget.alert",
    "budget.unbound",
    "budget.soft",
    "budget.hard",
    "key.created",
    "invoice.final",
    "invoice.void",
    "invoice.credited",
)
"""What is told today; others may come, and an endpoint may ask for them before they do."""

Type = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}(\.[a-z0-9_]{1,40}){1,3}$")]
Types = Annotated[list[Type], Field(min_length=1, max_length=50)]
Url = Annotated[str, Field(min_length=1, max_length=2000)]
Description = Annotated[
    str, StringConstraints(strip_whitespace=True, max_length=200, pattern=ONE_LINE)
]
State = Literal["waiting", "delivered", "dead"]


class EndpointCreate(Body):
    """`types`: only these events (`invoice.final`, ...); null: all."""

    url: Url
    types: Types | None = None
    description: Description = ""


class EndpointChange(Body):
    """Absent fields stay as they are. `enabled` true resumes deliveries, also after the endpoint
    answered 410 Gone. Deliveries that came due while it was disabled are given up, and can be sent
    again."""

    url: Url | None = None
    types: Types | None = None
    description: Description | None = None
    enabled: bool | None = None


class WebhookEndpoint(IdItem):
    """`created_by`, and `url_by` for who changed its address last (null: nobody): `api_key:`,
    `person:` or `admin_key:` and an id. An endpoint is disabled when the person whose address it
    has is removed, or loses the role for it, and when the key is revoked, rotated without an
    overlap, or loses the scope `keys`."""

    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    url: str
    url_by: str | None
    created_by: str | None
    types: list[str] | None
    description: str
    enabled: bool
    disabled_reason: str | None
    previous_expires_at: datetime | None
    created_at: datetime


class NewWebhookEndpoint(WebhookEndpoint):
    """The secret (`whsec_...`) is only in this answer."""

    secret: str


class WebhookEndpointPage(ListPage[WebhookEndpoint]):
    pass


class WebhookDelivery(IdItem):
    """`webhook-id` is the event's id. `next_at` is the time of the next attempt; null if there is
    none."""

    object: Literal["webhook_delivery"] = "webhook_delivery"
    event_id: str
    type: str
    state: State
    attempts: int
    next_at: datetime | None
    last_at: datetime | None
    last_status: int | None
    last_error: str | None
    created_at: datetime


class WebhookDeliveryPage(ListPage[WebhookDelivery]):
    pass


class Resent(Body):
    """`resent` is the number of dead deliveries that are sent again."""

    object: Literal["resent"] = "resent"
    resent: int
