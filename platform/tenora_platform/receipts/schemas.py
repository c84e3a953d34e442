"""Receipts over HTTP: the keys that sign them, what tenants choose to keep, and what is kept."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from tenora_platform.schemas import Body, Item

KEEP_DAYS_MAX = 366


class JsonWebKey(BaseModel):
    """RFC 8037. `kid` is the key's thumbprint (RFC 7638)."""

    kty: Literal["OKP"]
    crv: Literal["Ed25519"]
    x: str
    kid: str
    use: Literal["sig"]
    alg: Literal["EdDSA"]


class JsonWebKeySet(BaseModel):
    keys: list[JsonWebKey]


class SigningKey(Item):
    """`signs_from`: until then another one signs. `can_sign`: its private part is still there."""

    object: Literal["signing_key"] = "signing_key"
    kid: str
    signs_from: datetime
    can_sign: bool
    created_at: datetime


class SigningKeyList(BaseModel):
    object: Literal["list"] = "list"
    data: list[SigningKey]


class TenantSettings(Item):
    """What a tenant has chosen for itself. `keep_contents_days` null: no prompt and no answer is
    kept."""

    object: Literal["settings"] = "settings"
    keep_contents_days: int | None


class TenantSettingsChange(Body):
    """What is absent stays as it is. `delete_kept_contents`: all that is kept so far, now."""

    keep_contents_days: Annotated[int, Field(ge=1, le=KEEP_DAYS_MAX)] | None = None
    delete_kept_contents: bool = False


class ContentsChoice(BaseModel):
    """`finish_reason` null: it was cut off."""

    index: int
    text: str
    finish_reason: str | None


class Contents(BaseModel):
    """What was asked, as the client wrote it, and what was answered."""

    object: Literal["request.contents"] = "request.contents"
    id: str
    endpoint: str
    request: dict[str, Any]
    choices: list[ContentsChoice]
    created_at: datetime
    expires_at: datetime
