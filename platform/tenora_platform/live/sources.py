"""What listeners are sent by itself, under a name, every few seconds: sampled once in a process
however many listen, and only while somebody does. The table of it is `live.payloads`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenora_platform.operators.roles import READERS, Role

if TYPE_CHECKING:
    from tenora_platform.state import AppState


@dataclass(frozen=True, slots=True)
class Source:
    """`begin` is called when somebody begins to listen, and what it returns every `every_s` for as
    long as somebody does: so a source that tells differences begins anew. It gives what msgspec can
    make JSON of, or None: nothing to tell this time. The operator's people of one of `roles`, and
    owners, are sent it. Who joins later is sent `latest` at once, if the source `repeats`."""

    name: str
    every_s: float
    begin: Callable[[AppState], Callable[[], Awaitable[object | None]]]
    roles: tuple[Role, ...] = READERS
    repeats: bool = True

    def is_for(self, role: Role | None) -> bool:
        """`role` is a listener's; None: a tenant's."""
        return role is not None and (role == "owner" or role in self.roles)
