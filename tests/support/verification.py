"""A verification of audit log and ledger as a worker does it, without waiting for one."""

from __future__ import annotations

from typing import Any

from tenora_platform.audit.verify_job import VerificationJob
from tenora_platform.jobs.work import Asked
from tenora_platform.state import AppState


async def problems_of(state: AppState, mode: str = "full") -> list[str]:
    """The first twenty; none if all is as it was written."""
    work, place, result = VerificationJob(state), None, dict[str, Any]()
    while True:
        step = await work(Asked({"mode": mode}, "test", place, 0, 0, result))
        if step.place is None:
            problems: list[str] = step.result["problems"]
            return problems
        place, result = dict(step.place), dict(step.result)
