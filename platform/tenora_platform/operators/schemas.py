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
    """`source` configured: the key from the server's configuration (TENORA_ADMIN_KEY, else the one
    generated in its data directory). It has the role owner, and can only be changed there."""

    object: Literal["admin_key"] = "admin_key"
    name: str
    role: Role
    source: Literal["api", "configured"] = "api"
    prefix: str | None = None
    previous: PreviousSecret | None = None
    created_at: datetime | None = None
    created_by: str | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


class AdminKeyPage(ListPage[AdminKey]):
    pass


class NewAdminKey(AdminKey):
    """The secret is only in this answer."""

    key: str
