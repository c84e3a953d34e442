"""Jobs over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tenora_platform.jobs.tables import JobRow
from tenora_platform.schemas import IdItem

State = Literal["waiting", "running", "done", "failed", "cancelled"]


class JobView(IdItem):
    """How far a job is: `done` of `total`, which is null while it is not known. Poll it until its
    `state` is `done`, `failed` or `cancelled`; a worker that dies is replaced, and the job goes on.
    `waiting_for` says what it waits for, such as other jobs, a worker or a server that does not
    answer; `attempts` have failed since it last came forward, and after five it has failed."""

    state: State
    asked_by: str
    asked_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    done: int
    total: int | None
    error: str | None
    attempts: int
    waiting_for: str | None


def common(row: JobRow) -> dict[str, object]:
    """The fields of a JobView. `row.waiting_for` is as `repository.tell` has it."""
    return {
        name: getattr(row, name)
        for name in (
            *("id", "state", "asked_by", "asked_at", "started_at", "finished_at"),
            *("done", "total", "error", "attempts", "waiting_for"),
        )
    }
