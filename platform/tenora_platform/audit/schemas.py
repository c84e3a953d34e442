"""The audit log over HTTP."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel

from tenora_platform.audit.tables import AuditRow
from tenora_platform.schemas import IdItem, ListPage


class AuditEntry(IdItem):
    """`details` is all that was hashed; `before` and `after` are out of it: the target as it was
    and as it is (null: it did not exist, or does not any more; both are null in old entries), and
    the address that it was asked from (null: by the platform itself). `actor_name` is what the
    actor is called now: an email, a key's name, or null where nobody knows."""

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
    """`problem` names the first entry that does not fit its chain, of the audit log's or the
    ledger's; `problems` the first twenty."""

    object: Literal["audit_verification"] = "audit_verification"
    valid: bool
    problem: str | None
    problems: list[str]
