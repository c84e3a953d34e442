"""Waits for jobs that a worker does, and says how far they are."""

from __future__ import annotations

import sys
import time
from typing import Any

from tenora_platform.cli.client import ApiClient
from tenora_platform.cli.errors import CliError
from tenora_platform.cli.output import say

UNTAKEN_S = 60.0
"""A job that waits for longer has no worker."""
_POLL_S = 0.2
_TELL_EVERY_S = 5.0


def finished(api: ApiClient, path: str, job: dict[str, Any], what: str) -> dict[str, Any]:
    """The job at `path`/id, once it is done, however long that takes; on a terminal its progress is
    told. Raises CliError where it fails or nobody works on it."""
    began_s = told_s = time.monotonic()
    while job["state"] in ("waiting", "running"):
        time.sleep(_POLL_S)
        job = api.call("GET", f"{path}/{job['id']}")
        now_s = time.monotonic()
        if job["state"] == "waiting" and now_s - began_s > UNTAKEN_S:
            raise CliError(
                f"The {what} {job['id']} is still waiting.",
                "Check that a worker is running (/readyz says so). It is done as soon as one is.",
            )
        if sys.stderr.isatty() and now_s - told_s > _TELL_EVERY_S:
            told_s = now_s
            of = "" if job["total"] is None else f" of {job['total']}"
            say(f"{what}: {job['done']}{of}", err=True)
    if job["state"] == "failed":
        raise CliError(f"The {what} failed: {job['error']}")
    return job
