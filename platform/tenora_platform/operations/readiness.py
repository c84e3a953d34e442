"""Whether requests can be served now, and what they are served in spite of. What is said to anybody
names parts and kinds of trouble; hosts, paths and drivers' words are the operator's."""

from __future__ import annotations

import asyncio

from tenora_platform.background import NEEDED
from tenora_platform.operations.probes import Found
from tenora_platform.operations.schemas import Readiness
from tenora_platform.operations.service import told_warnings
from tenora_platform.state import AppState, not_ready_reason

_NO_WRITES = ("read-only", "full")


async def readiness_of(state: AppState, *, detailed: bool) -> Readiness:
    """`detailed`: as the operator is told."""
    warnings = [each.words(detailed=detailed) for each in told_warnings(state)]
    reason = _unready_engine(state, detailed) or _failed_work(state)
    if reason is None:
        reason = await _unready_servers(state, warnings, detailed)
    if reason is not None:
        return Readiness(status="not_ready", reason=reason, warnings=warnings)
    of_model = state.engine.model.warnings  # what follows the colon may be a path
    warnings += [each if detailed else each.partition(": ")[0] for each in of_model]
    return Readiness(status="ready", warnings=warnings)


def _unready_engine(state: AppState, detailed: bool) -> str | None:
    if state.engine.ready and state.engine.refuses is None:
        return None
    return not_ready_reason(state, detailed=detailed)


def _failed_work(state: AppState) -> str | None:
    for work, why in state.outages.items():  # by its kind: see `outages.kind_of`
        if work in NEEDED:
            return f"The background task '{work}' has failed and is being restarted: {why}"
    return None


async def _unready_servers(state: AppState, warnings: list[str], detailed: bool) -> str | None:
    """What of them keeps requests from being served; what does not goes into `warnings`. Inference
    needs neither the object store nor a database that takes writes; without Redis it goes on for a
    while."""
    probes = state.probes
    database, redis, objects = await asyncio.gather(
        probes.database.found(), probes.redis.found(), probes.objects.found()
    )
    reasons = []
    if database is not None:
        said = _said("The database", database, detailed)
        if database.trouble == "read-only":
            warnings.append(f"{said} Requests that change nothing are served, inference included.")
        else:
            reasons.append(said)
    if redis is not None:
        said, left_s = _said("Redis", redis, detailed), state.limits.away()
        if left_s is None:
            reasons.append(said)
        else:
            warnings.append(
                f"{said} Rate limits are checked without it for another {left_s:.0f} s."
            )
    if objects is not None:
        warnings.append(f"{_said('The object store', objects, detailed)} Uploads are not taken.")
    return " ".join(reasons) or None


def _said(server: str, found: Found, detailed: bool) -> str:
    what = "takes no writes" if found.trouble in _NO_WRITES else "does not answer"
    more = f": {found.words.rstrip('.')}" if detailed else ""
    return f"{server} {what} ({found.trouble}){more}."
