"""Who asks, over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tenora_platform.auth import Scope
from tenora_platform.operators.roles import Role
from tenora_platform.operators.schemas import AdminKey
from tenora_platform.people.rights import MemberRole
from tenora_platform.schemas import Item
from tenora_platform.tenants.schemas import ApiKey, Plan


class MyTenant(Item):
    id: str
    name: str


class MyPerson(Item):
    id: str
    email: str | None
    email_verified: bool
    name: str | None


class Me(Item):
    """By `type`: api_key: the tenant with its plan, and the key's scopes; admin_key: the operator,
    and the key's role; person: who is signed in, with their role at that tenant or among the
    operator's people. `secret_prefix` is the prefix of the secret in use; a key has two while it is
    being rotated."""

    object: Literal["me"] = "me"
    type: Literal["api_key", "admin_key", "person"]
    tenant: MyTenant | None
    key: Annotated[ApiKey | AdminKey, Field(discriminator="object")] | None
    person: MyPerson | None
    secret_prefix: str | None
    roles: list[Role | MemberRole]
    scopes: list[Scope]
    plan: Plan | None
