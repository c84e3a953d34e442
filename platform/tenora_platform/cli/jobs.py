"""Waits for jobs that a worker does, and says how far they are."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from tenora_platform.cli.client import ApiClient
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import say

UNTAKEN_S = 60.0
"""A job that waits for a worker for longer has none."""
A_WORKER = "a worker"
"""As the API says it."""
_POLL_S = 0.2
_TELL_EVERY_S = 5.0

Cancel = Annotated[
    str | None,
    typer.Option("--cancel", metavar="ID", help="Cancel the one with this id instead."),
]


def cancelled(api: ApiClient, path: str, job_id: str, what: str) -> None:
    """Cancel the job at `path`/id. Raises CliError where it has ended."""
    api.call("POST", f"{path}/{job_id}/cancel")
    say(f"The {what} {job_id} is cancelled.")


def finished(
    api: ApiClient, path: str, job: dict[str, Any], what: str, command: str
) -> dict[str, Any]:
    """The job at `path`/id, once it is done, however long that takes; what it waits for is told,
    and on a terminal its progress. Interrupted, it says how `command` cancels it. Raises CliError
    where it fails or nobody works on it."""
    try:
        job = _ended(api, path, job, what)
    except KeyboardInterrupt:
        said = f"The {what} goes on without this command. Cancel it: {command} --cancel {job['id']}"
        say(said, err=True)
        raise typer.Exit(130) from None
    if job["state"] != "done":
        raise CliError(f"The {what} {job['id']} is {job['state']}: {job['error']}")
    return job


def _ended(api: ApiClient, path: str, job: dict[str, Any], what: str) -> dict[str, Any]:
    moved_s = told_s = time.monotonic()
    told: str | None = None
    while job["state"] in ("waiting", "running"):
        time.sleep(_POLL_S)
        job = api.call("GET", f"{path}/{job['id']}")
        now_s, waits = time.monotonic(), job["waiting_for"]
        if waits != A_WORKER:
            moved_s = now_s
        elif now_s - moved_s > UNTAKEN_S:
            raise CliError(
                f"The {what} {job['id']} is still waiting.",
                "Check that a worker is running (/readyz says so). It is done as soon as one is.",
            )
        is_new = waits is not None and waits != told
        if is_new and (waits != A_WORKER or now_s - moved_s > _TELL_EVERY_S):
            told = waits
            say(f"{what}: waiting for {waits}", err=True)
        if sys.stderr.isatty() and now_s - told_s > _TELL_EVERY_S:
            told_s = now_s
            of = "" if job["total"] is None else f" of {job['total']}"
            say(f"{what}: {job['done']}{of}", err=True)
    return job
