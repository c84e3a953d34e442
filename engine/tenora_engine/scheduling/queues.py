"""Which queue an engine has, by its scheduling policy. No state."""

from __future__ import annotations

from tenora_engine.config import ResolvedConfig
from tenora_engine.scheduling.queue import FairQueue
from tenora_engine.scheduling.standings import Standings
from tenora_engine.scheduling.waiting import ArrivalQueue, WaitingQueue

ROUNDS_A_STEP = 8
"""A tenant's turn is this part of a step: whoever comes to the queue waits for no more of it than
that, however much of it is overdue."""


def make_queue(config: ResolvedConfig, standings: Standings) -> WaitingQueue:
    engine = config.engine
    if engine.scheduling_policy == "fcfs":
        return ArrivalQueue()
    return FairQueue(max(engine.max_step_tokens / ROUNDS_A_STEP, 1.0), standings)
