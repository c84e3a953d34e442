"""The audit log over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self

from tenora_platform.audit.names import id_of
from tenora_platform.audit.tables import AuditRow
from tenora_platform.jobs.schemas import JobView, common
from tenora_platform.jobs.tables import JobRow
from tenora_platform.schemas import Body, IdItem, ListPage


class AuditEntry(IdItem):
    """`details` is all that was hashed; `before` and `after` are out of it: the target as it was
    and as it is (null: it did not exist, or does not any more; both are null in old entries), and
    the address that it was asked from (null: by the platform itself). The names are what the
    tenant, the actor and the target are called now: an email, a key's or an adapter's name, or null
    where there is none."""

    object: Literal["audit_log"] = "audit_log"
    tenant_id: str | None
    tenant_name: str | None = None
    chain: str
    seq: int
    at: datetime
    actor: str
    actor_name: str | None = None
    action: str
    target: str
    target_name: str | None = None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    address: str | None
    details: dict[str, Any]
    request_id: str | None
    prev_hash: str
    hash: str

    @classmethod
    def of(cls, row: AuditRow, names: Mapping[str, str] = {}) -> Self:
        """`names` by id."""
        details = json.loads(row.details)
        columns = {column.key: getattr(row, column.key) for column in AuditRow.__table__.columns}
        changes = {name: details.get(name) for name in ("before", "after", "address")}
        called = {
            "tenant_name": names.get(row.tenant_id or ""),
            "actor_name": names.get(id_of(row.actor)),
            "target_name": names.get(row.target),
        }
        return cls.model_validate(columns | changes | called | {"details": details})


class AuditPage(ListPage[AuditEntry]):
    pass


class VerificationBody(Body):
    """What to verify: all of the log and the ledger (`full`), or of the log what was written since
    each chain was last found as it was written (`recent`)."""

    mode: Literal["full", "recent"] = "full"


class VerificationJobView(JobView):
    """A verification. `valid` is null until it is done; `problems` names the first twenty of
    `problem_count`; `done` and `total` count entries of the log and tenants' ledgers."""

    object: Literal["audit_verification.job"] = "audit_verification.job"
    mode: Literal["full", "recent"]
    valid: bool | None
    problem_count: int
    problem: str | None
    problems: list[str]

    @classmethod
    def of(cls, row: JobRow) -> Self:
        count, named = row.result.get("count", 0), row.result.get("problems", [])
        found = {
            "mode": row.spec["mode"],
            "valid": not count if row.state == "done" else None,
            "problem_count": count,
            "problem": named[0] if named else None,
            "problems": named,
        }
        return cls.model_validate({**common(row), **found})


class VerificationPage(ListPage[VerificationJobView]):
    pass
