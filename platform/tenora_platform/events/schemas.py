"""Events over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from tenora_platform.schemas import IdItem, ListPage


class Event(IdItem):
    """`data` is the thing it is about, as it was then; its form follows from `type`."""

    object: Literal["event"] = "event"
    type: str
    created_at: datetime
    data: dict[str, Any]


class EventPage(ListPage[Event]):
    pass
