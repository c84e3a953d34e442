"""What an operator sees of the probes: how many versions wait, what the probes take, and until
when."""

from __future__ import annotations

import math

from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.probing import repository
from tenora_platform.probing.pace import SHARE, Told, told
from tenora_platform.probing.schemas import ProbingView
from tenora_platform.state import AppState

COUNTED_MAX = 10_000


async def progress(session: AsyncSession, state: AppState) -> ProbingView:
    """From the rows, and from what the worker that probes says."""
    waiting = await repository.count_waiting(session, COUNTED_MAX)
    try:
        said = await told(state.redis, state.seal)
    except (RedisError, OSError):
        said = None
    enabled = state.settings.probe_adapters
    done_in_s = said.done_in_s(waiting) if said is not None and enabled else None
    return ProbingView(
        enabled=enabled,
        waiting=waiting,
        version_id=None if said is None else said.version,
        share=0.0 if said is None else round(said.share, 4),
        most_share=SHARE if said is not None and said.is_paced else None,
        done_in_s=done_in_s,
        summary=summary(enabled, waiting, said, done_in_s),
    )


def summary(enabled: bool, waiting: int, said: Told | None, done_in_s: float | None) -> str:
    if not enabled:
        return "Probes are turned off (TENORA_PROBE_ADAPTERS)."
    if not waiting:
        return "No adapter is waiting for a probe."
    many = f"{waiting} versions wait" if waiting > 1 else "One version waits"
    if said is None:
        return f"{many} to be probed; no worker is probing yet."
    pace = f"{said.share:.0%} of a core used"
    pace += f" (at most {SHARE:.0%} while requests are served)" if said.is_paced else ""
    when = "" if done_in_s is None else f"; done in about {_lasting(done_in_s)}"
    return f"{many} to be probed; {pace}{when}."


def _lasting(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    if minutes < 120:
        return "a minute" if minutes <= 1 else f"{minutes} minutes"
    return f"{math.ceil(seconds / 3600)} hours"
