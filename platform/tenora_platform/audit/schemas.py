"""The audit log over HTTP."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel

from tenora_platform.audit.tables import AuditRow
from tenora_platform.schemas import IdItem, ListPage


class AuditEntry(IdItem):
    """`details` is everything that was hashed. `before` and `after` are taken from it: the target's
    state before and after (null: it did not exist, or no longer exists; both are null in old
    entries); so is the client's address (null: the platform itself). `actor_name` is the actor's
    current name: an email, a key's name, or null if unknown."""

    object: Literal["audit_log"] = "audit_log"
    tenant_id: str | None
    chain: str
    seq: int
    at: datetime
    actor: str
    actor_name: str | None = None
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    address: str | None
    details: dict[str, Any]
    request_id: str | None
    prev_hash: str
    hash: str

    @classmethod
    def of(cls, row: AuditRow, actor_name: str | None = None) -> Self:
        details = json.loads(row.details)
        columns = {column.key: getattr(row, column.key) for column in AuditRow.__table__.columns}
        changes = {name: details.get(name) for name in ("before", "after", "address")}
        return cls.model_validate(
            columns | changes | {"details": details, "actor_name": actor_name}
        )


class AuditPage(ListPage[AuditEntry]):
    pass


class AuditVerification(BaseModel):
    """`problem` names the first entry of the audit log or ledger that breaks its hash chain;
    `problems` lists the first twenty."""

    object: Literal["audit_verification"] = "audit_verification"
    valid: bool
    problem: str | None
    problems: list[str]
