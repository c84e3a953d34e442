"""Admin keys over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tenora_platform.operators.roles import Role
from tenora_platform.schemas import Body, IdItem, ListPage, Name, PreviousSecret
from tenora_platform.times import BodyTime


class AdminKeyCreate(Body):
    name: Name = "key"
    role: Role
    expires_at: BodyTime | None = None


class AdminKey(IdItem):
    """`source` configured: the key the server is set up with (TENORA_ADMIN_KEY, else the one made
    in its data directory). It is an owner's, and ends there and not here."""

    object: Literal["admin_key"] = "admin_key"
    name: str
    role: Role
    source: Literal["api", "configured"] = "api"
    prefix: str | None = None
    previous: PreviousSecret | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


class AdminKeyPage(ListPage[AdminKey]):
    pass


class NewAdminKey(AdminKey):
    """The only answers that hold the secret."""

    key: str
