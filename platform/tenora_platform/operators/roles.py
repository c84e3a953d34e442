"""The operator's people and programs by role: what an admin request knows of who sent it. Which
route takes which role is said at the route (`auth.require_role`)."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Role = Literal["owner", "operator", "billing", "read_only", "metrics"]
ROLES: tuple[Role, ...] = get_args(Role)
READERS: tuple[Role, ...] = ("operator", "read_only")
MONEY_READERS: tuple[Role, ...] = ("operator", "billing", "read_only")


class AdminContext(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks on the operator's side, by which admin key or as which person."""

    key_id: str  # a person's id, of who is signed in
    key_prefix: str | None = None  # of the secret it came with; None: of a configured key
    role: Role
    is_person: bool = False

    @property
    def actor(self) -> str:
        """Names who asks in the audit log, without giving a key away."""
        return f"{'person' if self.is_person else 'admin_key'}:{self.key_id}"
