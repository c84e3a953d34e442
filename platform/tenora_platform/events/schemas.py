"""Events over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from tenora_platform.schemas import IdItem, ListPage


class Event(IdItem):
    """`data` is the object that the event is about, as it was then; its fields depend on `type`."""

    object: Literal["event"] = "event"
    type: str
    created_at: datetime
    data: dict[str, Any]


class EventPage(ListPage[Event]):
    pass
