"""The sources of live events, in one table: what the operator's pages show as it moves. New ones go
into `SOURCES`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tenora_engine.errors import EngineError
from tenora_engine.events import EngineStats
from tenora_engine.telemetry import OTHER
from tenora_platform.errors import UnavailableError
from tenora_platform.live.sources import Source
from tenora_platform.memory.live import EVERY_S, pages
from tenora_platform.operations.service import ENGINE, failing, process_view, told_warnings
from tenora_platform.state import AppState, answered, not_ready_reason


def engine(state: AppState) -> Callable[[], Awaitable[dict[str, Any]]]:
    """`engine`: what runs and waits now, tokens a second since the last time, pages by kind. While
    it does not serve: `ready` false, why, and since when."""
    before: tuple[float, EngineStats] | None = None

    async def sample() -> dict[str, Any]:
        nonlocal before
        try:
            stats = await answered(state.engine.stats()) if state.engine.ready else None
            reason = not_ready_reason(state, detailed=True)
        except EngineError:
            stats, reason = None, not_ready_reason(state, detailed=True)
        except UnavailableError as error:
            stats, reason = None, error.message
        if stats is None:
            before = None
            since_s = state.since.known.get(ENGINE)
            return {"at": time.time(), "ready": False, "reason": reason, "since": since_s}
        now_s = time.monotonic()
        rates = _rates(before, (now_s, stats))
        before = (now_s, stats)
        return {"at": time.time(), "ready": True, "reason": None, **_now(stats), **rates}

    return sample


def _now(stats: EngineStats) -> dict[str, Any]:
    waiting: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    whose: dict[str, str] = {}
    for queue in stats.telemetry.queues:
        waiting[queue.service_class] += queue.waiting
        name = queue.service_class
        if queue.oldest_wait_s >= oldest.get(name, 0.0):
            oldest[name] = queue.oldest_wait_s
            whose[name] = "" if queue.tenant == OTHER else queue.tenant
    pool = stats.pool
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "waiting_by_class": dict(waiting),
        "oldest_wait_s": max(oldest.values(), default=0.0),
        "oldest_wait_s_by_class": oldest,
        "oldest_wait_tenant_by_class": whose,
        "last_step_ms": stats.last_step_ms,
        "pool": {
            "total": pool.total_pages,
            "free": pool.free_pages,
            "live_kv": pool.live_kv_pages,
            "cached_kv": pool.cached_kv_pages,
            "adapter": pool.adapter_pages,
        },
        "adapters": dict(Counter(adapter.state for adapter in stats.adapters)),
    }


_RATES = {
    "prompt_tokens_per_s": "prompt_tokens",
    "output_tokens_per_s": "output_tokens",
    "finished_per_s": "requests_finished",
}


def _rates(before: tuple[float, EngineStats] | None, now: tuple[float, EngineStats]) -> Any:
    """Null for the first sample, and after an engine that began anew."""
    rates: dict[str, float | None] = dict.fromkeys(_RATES)
    if before is None:
        return rates
    elapsed_s = max(now[0] - before[0], 1e-3)
    for name, counter in _RATES.items():
        more = now[1].counters.get(counter, 0) - before[1].counters.get(counter, 0)
        rates[name] = more / elapsed_s if more >= 0 else None
    return rates


def processes(state: AppState) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """`processes`: who lives, with what fails and how often its parts were started again, and the
    warnings of /readyz; of both since when. When any of it has changed."""
    before: object = None

    async def sample() -> dict[str, Any] | None:
        nonlocal before
        others = state.presence.others
        times = state.since.known
        found = {
            "known": others is not None,
            "processes": [process_view(each).model_dump(mode="json") for each in others or []],
            "warnings": [
                {"about": each.about, "text": each.text, "since": times.get(each.key)}
                for each in told_warnings(state)
            ],
            "since": {name: times.get(name) for name in failing(state)},
        }
        if found == before:
            return None
        before = found
        return {"at": time.time(), **found}

    return sample


SOURCES: Sequence[Source] = (
    Source("engine", 2.0, engine),
    Source("processes", 1.0, processes),
    Source("pages", EVERY_S, pages, repeats=False),
)
