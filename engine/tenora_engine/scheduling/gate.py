"""Gate: whether a new request may wait at all, and in which class. It looks at the length of the
queue and at the deadline; the queue orders what has been let in."""

from __future__ import annotations

from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import DeadlineError, QueueFullError
from tenora_engine.events import Residency
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.request import AdapterRef, Tenant
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
        self.keeps_promises = config.engine.scheduling_policy == "sla"
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
        costs, load_s = self._memory.costs, self._load_s(adapter, residency)
        fetched, fetch_s = self._memory.estimate_fetch(sequence)
        computed = len(sequence.token_ids) - self._memory.cached_tokens(sequence) - fetched
        sequence.token_cost = self._charges.token(adapter)
        sequence.work = computed * sequence.token_cost + fetch_s / costs.token_s
        if not self.keeps_promises:
            return
        sequence.service_class = service_class(tenant.tier)
        target_s = NO_TARGET_S if tenant.ttft_ms is None else tenant.ttft_ms / 1000
        sequence.due_s = sequence.arrival_s + target_s + load_s + sequence.work * costs.token_s
        if tenant.ttft_ms is None or tenant.late == "best_effort":
            return
        expected_s = self._expected_s(sequence, load_s)
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
        sequence.service_class = sequence.tier = LOWEST_CLASS
        sequence.due_s += NO_TARGET_S

    def retry_after_ms(self, sequence: Sequence, residency: Residency | None) -> int:
        """When a request like this one, which does not wait any more, may be in time."""
        target_s = (sequence.request.tenant.ttft_ms or 0.0) / 1000
        load_s = self._load_s(sequence.request.adapter, residency)
        return self.feasibility.retry_after_ms(self._expected_s(sequence, load_s) - target_s)

    def _expected_s(self, sequence: Sequence, load_s: float) -> float:
        """Until the first token of a sequence that does not wait yet."""
        before = self._queue.work_before(sequence)
        return self.feasibility.ttft_s(before, load_s, sequence.work)

    def _load_s(self, adapter: AdapterRef | None, residency: Residency | None) -> float:
        if adapter is None or residency in ("device", "host"):
            return 0.0
        return self._memory.costs.adapter_s(self._charges.adapter_bytes(adapter))

    def _room_ms(self, excess: int, waiting: int, own: int) -> int:
        """Until `excess` of a tenant's `own` sequences have left, if they leave evenly."""
        mean = self._queue.work() / max(len(self._queue), 1)
        return self.feasibility.drain_ms(excess * mean * waiting / max(own, 1))
