"""Gate: whether a new request may wait at all, and in which class. It looks at the length of the
queue and at the deadline; the queue orders what has been let in."""

from __future__ import annotations

from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import DeadlineError, QueueFullError
from tenora_engine.events import Residency
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import Tenant
from tenora_engine.scheduling.charges import Charges
from tenora_engine.scheduling.classes import LOWEST_CLASS, service_class
from tenora_engine.scheduling.feasibility import Feasibility
from tenora_engine.scheduling.waiting import WaitingQueue
from tenora_engine.sequence import Sequence

NO_TARGET_S = 10.0
"""Where no TTFT was promised, the queue orders by this one."""


class Gate:
    def __init__(
        self, config: ResolvedConfig, memory: MemoryManager, queue: WaitingQueue, charges: Charges
    ) -> None:
        self._limit = config.engine.max_waiting
        self._tenant_limit = config.engine.max_tenant_waiting
        self._keeps_promises = config.engine.scheduling_policy == "sla"
        self._memory = memory
        self._queue = queue
        self._charges = charges
        self.feasibility = Feasibility(memory.costs)

    def check_room(
        self, tenant: Tenant, num_sequences: int, held: int = 0, tenant_held: int = 0
    ) -> None:
        """Raises QueueFullError unless `num_sequences` more of the tenant may wait; `held` others
        count as waiting, `tenant_held` of them its own."""
        waiting = len(self._queue) + held
        own = self._queue.waiting_of(tenant.key) + tenant_held
        if own + num_sequences > self._tenant_limit:
            raise QueueFullError(
                f"{own} sequences of this tenant wait and {num_sequences} more would exceed its "
                f"limit of {self._tenant_limit}; try again later",
                self._room_ms(own + num_sequences - self._tenant_limit, waiting, own),
            )
        if waiting + num_sequences > self._limit:
            raise QueueFullError(
                f"{waiting} sequences wait and {num_sequences} more would exceed the limit of "
                f"{self._limit}; try again later",
                self._room_ms(waiting + num_sequences - self._limit, waiting, waiting),
            )

    def appraise(self, sequence: Sequence, residency: Residency | None, now_s: float) -> None:
        """Fill in a new sequence's class, cost and place in line. Raises DeadlineError when its
        first token cannot be expected in time and its plan refuses what is late."""
        tenant, adapter = sequence.request.tenant, sequence.request.adapter
        costs = self._memory.costs
        load_s = 0.0
        if adapter is not None and residency not in ("device", "host"):
            load_s = costs.adapter_s(self._charges.adapter_bytes(adapter))
        uncached = len(sequence.token_ids) - self._memory.cached_tokens(sequence)
        sequence.token_cost = self._charges.token(adapter)
        sequence.work = uncached * sequence.token_cost
        if not self._keeps_promises:
            return
        sequence.service_class = service_class(tenant.tier)
        target_s = NO_TARGET_S if tenant.ttft_ms is None else tenant.ttft_ms / 1000
        sequence.due_s = sequence.arrival_s + target_s + load_s + sequence.work * costs.token_s
        if tenant.ttft_ms is None or tenant.late == "best_effort":
            return
        before = self._queue.work_before(sequence)
        expected_s = self.feasibility.ttft_s(before, load_s, sequence.work)
        late_s = now_s + expected_s - (sequence.arrival_s + target_s)
        if late_s > 0 and tenant.late == "relegate":
            self.relegate(sequence)
        elif late_s > 0:
            raise DeadlineError(
                f"the first token is expected after {expected_s * 1000:.0f} ms; this plan promises "
                f"{tenant.ttft_ms:.0f} ms and refuses what would be late",
                self.feasibility.retry_after_ms(late_s),
            )

    def relegate(self, sequence: Sequence) -> None:
        """A sequence which does not stand in the queue goes to the lowest class, without a promise;
        what it has been charged so far stays with its own."""
        sequence.service_class = LOWEST_CLASS
        sequence.due_s += NO_TARGET_S

    def is_hopeless(self, sequence: Sequence, now_s: float) -> bool:
        """Whether it is to be relegated: started now, its first token would still be late."""
        tenant = sequence.request.tenant
        if not self._keeps_promises or sequence.admitted_s is not None:
            return False
        if tenant.late != "relegate" or tenant.ttft_ms is None:
            return False
        expected_s = sequence.work * self._memory.costs.token_s
        late = now_s + expected_s > sequence.arrival_s + tenant.ttft_ms / 1000
        return late and sequence.service_class != LOWEST_CLASS

    def _room_ms(self, excess: int, waiting: int, own: int) -> int:
        """Until `excess` of a tenant's `own` sequences have left, if they leave evenly."""
        mean = self._queue.work() / max(len(self._queue), 1)
        return self.feasibility.drain_ms(excess * mean * waiting / max(own, 1))
