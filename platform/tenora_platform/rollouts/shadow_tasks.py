"""Work that follows answers and that nobody waits for: a few shadows at a time in each process,
fewer of one tenant, and none that waits. It does not know what they do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import log_failure

AT_ONCE = 8
OF_ONE_TENANT = 4
SHADOW_S = 300.0
"""A shadow that takes longer is cut off, and billed for what it generated."""
_LAST_S = 5.0
_log = structlog.get_logger(__name__)


class ShadowTasks:
    """Of one process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: set[asyncio.Task[None]] = set()
        self._of: Counter[str] = Counter()

    def begin(self, tenant_id: str, work: Callable[[], Coroutine[Any, Any, str]]) -> bool:
        """Whether there was room for it; the other copies are left out. `work` gives the outcome
        that the metric counts."""
        if len(self._running) >= AT_ONCE or self._of[tenant_id] >= OF_ONE_TENANT:
            self._metrics.shadow_requests.labels("no_room").inc()
            return False
        self._of[tenant_id] += 1
        task = asyncio.create_task(self._run(tenant_id, work), name="shadow")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return True

    async def finish(self) -> None:
        """Before the process ends: what runs is cut off."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_LAST_S)

    async def _run(self, tenant_id: str, work: Callable[[], Coroutine[Any, Any, str]]) -> None:
        try:
            async with asyncio.timeout(SHADOW_S):
                outcome = await work()
        except Exception as error:
            log_failure(_log, "shadow failed", error)
            outcome = "failed"
        finally:
            self._of[tenant_id] -= 1
            if not self._of[tenant_id]:
                del self._of[tenant_id]
        self._metrics.shadow_requests.labels(outcome).inc()
