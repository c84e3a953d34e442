"""What one process knows of budgets by itself: what it holds, what Redis last said, and what it
has to settle yet. By that it checks budgets while Redis is away; how long that may go on, limits
say."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.auth import TenantContext
from tenora_platform.budgets.accounts import NO_CURRENCY, Budget, Charge, day_start, month_start
from tenora_platform.budgets.hold import BudgetHold
from tenora_platform.budgets.seeding import Seeder
from tenora_platform.budgets.store import Answer, Level, Work
from tenora_platform.errors import UnavailableError
from tenora_platform.single_flight import SingleFlight

QUEUE_MAX = 10_000
"""Settlements that wait for Redis; the true-up makes good what is beyond."""
_KNOWN_MAX = 100_000
_READ_S = 2.0  # so often the books are asked while Redis is away
_LAG_S = 5.0  # what has been settled for longer is in the books


@dataclass(frozen=True, slots=True)
class _Held:
    tenant_id: str
    keys: tuple[str, ...]
    currency: str
    nanos: int


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """What Redis is to be told of one request."""

    tenant_id: str
    model: str
    charges: Sequence[Charge]
    unused: Sequence[str]
    at_s: float


@dataclass(frozen=True, slots=True)
class _Read:
    """Nanos by account, from the books or from Redis; charges settled from `since_s` on are not in
    it."""

    spent: dict[str, int]
    since_s: float
    until_s: float


_Asked = tuple[str, tuple[str, ...]]
"""A tenant and the accounts that a request of it is under."""


class LocalBooks:
    """Lives on one asyncio loop."""

    def __init__(self, seeder: Seeder, processes: Callable[[], int]) -> None:
        self._seeder = seeder
        self._processes = processes
        self._held: dict[str, _Held] = {}
        self._queue: deque[Settlement] = deque(maxlen=QUEUE_MAX)
        self._known: dict[_Asked, _Read] = {}  # what Redis last said
        self._books: dict[_Asked, _Read] = {}
        self._flights: SingleFlight[_Read] = SingleFlight()

    def took(self, hold: BudgetHold) -> None:
        tenant = hold.tenant
        for event_id, nanos in hold.amounts.items():
            self._held[event_id] = _Held(tenant.tenant_id, tenant.lineage, hold.currency, nanos)

    def gave_back(self, hold: BudgetHold) -> None:
        for event_id in hold.amounts:
            self._held.pop(event_id, None)

    def held(self, event_id: str) -> tuple[int, str, tuple[str, ...]] | None:
        """(nanos, currency, its keys) of a sequence that still runs here."""
        found = self._held.get(event_id)
        return None if found is None else (found.nanos, found.currency, found.keys)

    def held_by_tenant(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for event_id, held in self._held.items():
            found[held.tenant_id].append(event_id)
        return found

    def queue(self, hold: BudgetHold, charges: Sequence[Charge], unused: Sequence[str]) -> None:
        """To be told to Redis once it is back."""
        of = hold.tenant.tenant_id
        self._queue.append(Settlement(of, hold.model, charges, unused, time.monotonic()))

    @property
    def queued(self) -> int:
        return len(self._queue)

    def first_queued(self) -> Settlement | None:
        return self._queue[0] if self._queue else None

    def was_told(self, settlement: Settlement) -> None:
        """Several may be telling at once."""
        if settlement in self._queue:
            self._queue.remove(settlement)

    def learn(self, tenant_id: str, answer: Answer) -> None:
        """What Redis says now."""
        now_s = time.monotonic()
        spent = {each.budget.account: each.spent or 0 for each in answer.levels}
        for each in answer.levels:
            if each.budget.cap is None:
                spent[_cap_of(each.budget)] = each.cap or 0
        asked = (tenant_id, tuple(each.budget.account for each in answer.levels))
        _remember(self._known, asked, _Read(spent, now_s, now_s))

    async def acquire(
        self, tenant: TenantContext, budgets: Sequence[Budget], work: Work, now: datetime
    ) -> Answer:
        """As the script decides, by the books as far as they answer, and with this process's share
        of what is left. Raises UnavailableError if nothing is known."""
        read = await self._read(tenant.tenant_id, budgets, now)
        levels = [self._level(tenant, budget, read) for budget in budgets]
        wanted = sum(work.amounts(work.unknown_tokens))
        others = max(1, self._processes())
        refused = None
        for level in levels:
            spent, cap = level.spent or 0, level.cap or 0
            if work.sequences and (spent >= cap or spent + others * (level.held + wanted) > cap):
                refused = level
                break
        return Answer("refused" if refused else "held", refused, work.unknown_tokens, levels)

    async def _read(self, tenant_id: str, budgets: Sequence[Budget], now: datetime) -> _Read:
        asked = (tenant_id, tuple(budget.account for budget in budgets))
        read = self._books.get(asked)
        if read is not None and read.until_s > time.monotonic():
            return read
        try:
            return await self._flights.run(asked, lambda: self._read_books(asked, now))
        except (SQLAlchemyError, OSError) as error:
            known = self._known.get(asked)
            if known is None:
                raise UnavailableError(
                    "The server cannot check budgets right now. Please try again.",
                    code="budgets_unavailable",
                ) from error
            return known

    async def _read_books(self, asked: _Asked, now: datetime) -> _Read:
        began_s = time.monotonic()
        spent = await self._seeder.spent(*asked, now)
        read = _Read(spent, began_s - _LAG_S, began_s + _READ_S)
        _remember(self._books, asked, read)
        return read

    def _level(self, tenant: TenantContext, budget: Budget, read: _Read) -> Level:
        spent = read.spent[budget.account]
        for settlement in self._queue:
            if settlement.tenant_id == tenant.tenant_id and settlement.at_s >= read.since_s:
                spent += sum(
                    charge.nanos for charge in settlement.charges if _belongs(charge, budget)
                )
        held = sum(
            each.nanos
            for each in self._held.values()
            if each.tenant_id == tenant.tenant_id and _counts_for(each, budget)
        )
        cap = read.spent.get(_cap_of(budget), 0) if budget.cap is None else budget.cap
        return Level(budget, spent, cap, held)


def _remember(reads: dict[_Asked, _Read], asked: _Asked, read: _Read) -> None:
    if len(reads) >= _KNOWN_MAX:
        reads.clear()
    reads[asked] = read


def _cap_of(credit: Budget) -> str:
    return f"credit_cap:{credit.currency or NO_CURRENCY}"


def _counts_for(amount: _Held | Charge, budget: Budget) -> bool:
    is_its_key = budget.key_id is None or budget.key_id in amount.keys
    return is_its_key and amount.currency == (budget.currency or NO_CURRENCY)


def _belongs(charge: Charge, budget: Budget) -> bool:
    if not _counts_for(charge, budget):
        return False
    return budget.start is None or budget.start in (day_start(charge.at), month_start(charge.at))
