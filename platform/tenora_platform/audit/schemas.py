"""The audit log over HTTP."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, field_validator

from tenora_platform.schemas import IdItem, ListPage


class AuditEntry(IdItem):
    object: Literal["audit_log"] = "audit_log"
    tenant_id: str | None
    chain: str
    seq: int
    at: datetime
    actor: str
    action: str
    target: str
    details: dict[str, Any]
    request_id: str | None
    prev_hash: str
    hash: str

    @field_validator("details", mode="before")
    @classmethod
    def _parse(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value


class AuditPage(ListPage[AuditEntry]):
    pass


class AuditVerification(BaseModel):
    """`problem` names the first entry that does not fit its chain."""

    object: Literal["audit_verification"] = "audit_verification"
    valid: bool
    problem: str | None
