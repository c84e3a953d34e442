"""Reconciliations over HTTP."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field

from tenora_platform.canary.tables import CanaryRoundRow
from tenora_platform.reconciliation.differences import ADVICE, Kind
from tenora_platform.reconciliation.tables import ReconciliationRow
from tenora_platform.reconciliation.task import Looked, Mode, Waiting
from tenora_platform.schemas import Body, IdItem, ListPage
from tenora_platform.times import EARLIEST, LATEST

Day = Annotated[date, Field(ge=EARLIEST.date(), lt=LATEST.date())]


class RunCreate(Body):
    """What to reconcile. `full` (the default) is every event, and price lists, accounts, credit,
    invoices and the ledger's chains; `recent` is usage of the days that have not ended, and of
    those that have changed since they were last found correct. Days are UTC and inclusive."""

    mode: Mode = "full"
    tenant: Annotated[str, Field(max_length=100)] | None = None
    first: Day | None = None
    last: Day | None = None


class Difference(BaseModel):
    """`subject` is the event or row; `expected` is the value by the layer before, `found` the
    stored value; `advice` says what to do."""

    kind: str
    tenant_id: str | None
    day: date | None
    subject: str
    expected: str
    found: str
    advice: str


class Run(IdItem):
    """One run. `agrees` is null until it is done; `differences` counts each kind, `named` are the
    first of them, at most 200 of a kind."""

    object: Literal["reconciliation.run"] = "reconciliation.run"
    state: Literal["waiting", "running", "done", "failed"]
    mode: Mode
    tenant_id: str | None
    first: date | None
    last: date | None
    asked_by: str
    asked_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    agrees: bool | None
    looked: Looked | None
    waiting: Waiting | None
    differences: dict[str, int]
    named: list[Difference]

    @classmethod
    def of(cls, row: ReconciliationRow) -> Self:
        result: dict[str, Any] = row.result or {}
        return cls.model_validate(
            {
                "id": row.id,
                "state": row.state,
                "mode": row.mode,
                "tenant_id": row.only_tenant,
                "first": row.first_day,
                "last": row.last_day,
                "asked_by": row.asked_by,
                "asked_at": row.asked_at,
                "started_at": row.started_at,
                "finished_at": row.finished_at,
                "error": row.error,
                "agrees": None if row.difference_count is None else not row.difference_count,
                "looked": result.get("looked"),
                "waiting": result.get("waiting"),
                "differences": result.get("differences", {}),
                "named": [_named(each) for each in result.get("named", ())],
            }
        )


def _named(each: dict[str, Any]) -> dict[str, Any]:
    known = each["kind"] in Kind.__members__.values()
    return {**each, "advice": ADVICE[Kind(each["kind"])] if known else ""}


class RunPage(ListPage[Run]):
    pass


class CanaryCheck(BaseModel):
    """One synthetic check; `problem` is null if it passed."""

    name: str
    problem: str | None
    seconds: float


class CanaryRound(BaseModel):
    """The last round of synthetic checks."""

    at: datetime
    ok: bool
    checks: list[CanaryCheck]

    @classmethod
    def of(cls, row: CanaryRoundRow) -> Self:
        return cls.model_validate({"at": row.at, "ok": row.ok, "checks": row.checks})
