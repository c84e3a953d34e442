"""A run over all tenants as a job: a few seconds of it at a time, in a worker."""

from __future__ import annotations

from dataclasses import dataclass

from tenora_platform.invoices.period import first_day
from tenora_platform.invoices.runs import InvoiceRuns, Wanted
from tenora_platform.invoices.schemas import NOTHING_MADE
from tenora_platform.jobs.work import Asked, Kind, Step
from tenora_platform.operators.roles import Role
from tenora_platform.state import AppState

KIND = "invoices"
ROLES: tuple[Role, ...] = ("billing",)
"""Who may start and cancel one, and has to be able to while it runs."""
STEP_S = 2.0
"""After so long a step ends with the tenants that it has begun."""
FAILED_MAX = 1000
"""Tenants named in a result; the others are counted."""


@dataclass(frozen=True)
class InvoiceJob:
    """A step that is repeated finds what it has made final unchanged."""

    state: AppState

    async def __call__(self, asked: Asked) -> Step:
        """Raises ConflictError and BadRequestError, as a run does."""
        spec, result = asked.spec, {**NOTHING_MADE, **asked.result}
        wanted = Wanted(
            first_day(spec["period"]),
            spec["tenant"],
            draft=spec["draft"],
            after=asked.place["after"] if asked.place else "",
        )
        state = self.state
        runs = InvoiceRuns(state.db, state.ledger, state.audit, asked.asked_by)
        total = asked.total if asked.total is not None else await runs.count(wanted)
        report = await runs.run(wanted, most_s=STEP_S)
        kind = "final" if report.final else "draft"
        state.metrics.invoices.labels(kind).inc(len(report.made))
        failed = [{"tenant": tenant, "reason": reason} for tenant, reason in report.failed]
        result = {
            "made": result["made"] + len(report.made),
            "unchanged": result["unchanged"] + report.unchanged,
            "empty": result["empty"] + report.empty,
            "failures": result["failures"] + len(failed),
            "failed": [*result["failed"], *failed][:FAILED_MAX],
        }
        place = {"after": report.next_after} if report.next_after is not None else None
        return Step(place, asked.done + report.looked, total, result)


def invoice_runs(state: AppState) -> Kind:
    """What a worker does of them."""
    return Kind(KIND, ROLES, InvoiceJob(state))
