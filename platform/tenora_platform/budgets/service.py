"""Budgets of money: what a request may cost is held before it runs, and replaced by what it has
cost. It knows tenants' caps, prices and Redis as its memory; invoices and their rounding are
billing's, requests and tokens a minute are limits'."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from tenora_engine.events import UsageRecord
from tenora_platform.auth import TenantContext
from tenora_platform.billing.price_book import PriceBook
from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.rating import UnratableError
from tenora_platform.budgets import repository
from tenora_platform.budgets.accounts import (
    Budget,
    Charge,
    budgets_of,
    charge_of,
    has_budget,
    month_start,
)
from tenora_platform.budgets.alerts import AccountAlerts
from tenora_platform.budgets.estimate import currency_of, estimate
from tenora_platform.budgets.fallback import LocalBooks
from tenora_platform.budgets.families import Families
from tenora_platform.budgets.hold import NO_HOLD, BudgetHold, Run, is_degraded
from tenora_platform.budgets.refusals import refusal
from tenora_platform.budgets.seeding import Seeder
from tenora_platform.budgets.store import NOTHING, Answer, BudgetStore, Level, Work
from tenora_platform.budgets.telling import Teller
from tenora_platform.db import Database
from tenora_platform.errors import UnavailableError
from tenora_platform.operations.metrics import Metrics
from tenora_platform.single_flight import SingleFlight
from tenora_platform.usage.records import BadRecordError

TICK_S = 1.0
FLEX = "flex"
"""As what a request is served that has been degraded, or relegated because it would be late."""
_LAST_S = 5.0
_SEEDS_MAX = 3  # of one request: a day may begin, or Redis be emptied, between two steps
_log = structlog.get_logger(__name__)


def _classes(tenant: TenantContext, runs: Sequence[Run], budgets: Sequence[Budget]) -> list[str]:
    """Those that may serve it: its own, and the lowest where a budget or the plan may say so."""
    own = runs[0].request.tenant.tier
    lower = tenant.plan.late == "relegate" or any(budget.degrade for budget in budgets)
    return list(dict.fromkeys([own, FLEX] if lower else [own]))


def _is_worth_showing(level: Level) -> bool:
    """In a currency that is not the tenant's own."""
    granted = level.budget.cap is None and level.cap
    return bool(level.spent or level.held or granted) or level.budget.name == "account_month"


def utc_now() -> datetime:
    return datetime.now(UTC)


class Budgets:
    """The budgets of every tenant, as this process sees them. `keep` must run beside it. Without
    Redis each of `processes` has its share of what the books say is left."""

    def __init__(
        self,
        db: Database,
        redis: Redis,
        *,
        lease_s: float,
        metrics: Metrics,
        clock: Callable[[], datetime] = utc_now,
        processes: Callable[[], int] = lambda: 1,
    ) -> None:
        self._db = db
        self.store = BudgetStore(redis, lease_ms=int(lease_s * 1000))
        self.seeder = Seeder(db, self.store)
        self._prices = PriceBook(db)
        self.alerts = AccountAlerts(db)
        self._teller = Teller(db)
        self._families = Families(db)
        self._local = LocalBooks(self.seeder, processes)
        self._metrics = metrics
        self._clock = clock
        self._lease_s = lease_s
        self._seeding: SingleFlight[object] = SingleFlight()
        self._ending: set[asyncio.Task[None]] = set()
        self._changed: dict[str, TenantContext] = {}  # by key: has settled since the last tick

    async def admit(self, tenant: TenantContext) -> None:
        """Refuse, before anything is done for a request, what a budget that is used up refuses
        later anyway. Raises QuotaExceededError."""
        if not has_budget(tenant):
            return
        every = await self._in_each_currency(tenant)
        try:
            levels = [await self.store.spent(tenant.tenant_id, each) for each in every]
        except RedisError:
            return  # `acquire` knows what then
        first = [next((level for level in each if level.reached), None) for each in levels]
        if first[0] is not None and None not in first:  # in which currency it is, nobody knows yet
            self._refuse(tenant, levels[0], first[0], 0)

    async def acquire(self, tenant: TenantContext, runs: Sequence[Run], model: str) -> BudgetHold:
        """Hold what these runs are expected to cost under every budget of the tenant and its key;
        `model` is by whose history. Costs nothing without a budget. Raises QuotaExceededError, and
        UnavailableError where there is no price to go by."""
        if not has_budget(tenant):
            return NO_HOLD
        now = self._clock()
        prices = await self._prices.lists()
        budgets = budgets_of(tenant, now, currency_of(prices, tenant, runs, now))
        used = await self._prices.used(tenant.tenant_id)
        price = partial(estimate, prices, used, tenant, runs, model, now=now)
        work = price(_classes(tenant, runs, budgets))
        answer = await self._ask(tenant, budgets, work)
        if is_degraded(answer.levels) and (as_flex := price([FLEX])) != work:
            work = as_flex  # the same holds anew, or another chance
            answer = await self._ask(tenant, budgets, work)
        amounts = work.amounts(answer.expected_tokens)
        if answer.refused_by is not None:
            self._refuse(tenant, answer.levels, answer.refused_by, sum(amounts))
        self._teller.tell(tenant.tenant_id, answer.levels)
        hold = BudgetHold(
            self,
            tenant,
            model,
            work.currency,
            {each.event_id: nanos for each, nanos in zip(work.sequences, amounts, strict=True)},
            answer.levels,
        )
        self._local.took(hold)
        return hold

    async def levels(self, tenant: TenantContext) -> list[Level]:
        """What is spent and held of each budget that a request may be under now, changing
        nothing: in the tenant's own currency, and in others in which there is something."""
        return await self._levels(tenant, await self.currencies(tenant))

    async def every_level(
        self, tenant: TenantContext, charged: Sequence[str | None]
    ) -> list[Level]:
        """The same, of the currencies in which the tenant is charged, and of those in which it was
        charged this month or has credit or an account budget, though nothing is priced in them
        now."""
        had = [] if tenant.account_currency is None else [tenant.account_currency]
        if has_budget(tenant):
            try:
                async with self._db.tenant_session(tenant.tenant_id) as session:
                    of_month = month_start(self._clock())
                    had += await repository.currencies_had(session, tenant.tenant_id, of_month)
            except (SQLAlchemyError, OSError) as error:
                _log.warning("currencies of this month not read", reason=str(error))
        return await self._levels(tenant, list(dict.fromkeys([*charged, *had])))

    async def currencies(self, tenant: TenantContext) -> list[str | None]:
        """All in which the tenant may be charged now, its own first; that is None where there is
        no price, or nobody can say."""
        try:
            prices = await self._prices.lists()
        except (SQLAlchemyError, OSError):
            return [None]
        return [*prices.currencies_of(tenant.tenant_id, tenant.plan.name, self._clock())] or [None]

    async def end(
        self, hold: BudgetHold, records: Sequence[UsageRecord], unused: Sequence[str]
    ) -> None:
        """Called by the hold. A task of its own: a client that goes away cancels its request, and
        what it held must be settled all the same."""
        self._local.gave_back(hold)
        task = asyncio.create_task(self._settle(hold, records, unused))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.shield(task)

    async def book(self, charges: Sequence[Charge]) -> None:
        """The usage sink tells what it has stored and rated. While Redis is away nothing is lost:
        the true-up reads the books."""
        by_tenant: dict[str, list[Charge]] = defaultdict(list)
        for charge in charges:
            by_tenant[charge.tenant_id].append(charge)
        if not by_tenant:
            return
        self.alerts.touch(by_tenant)
        try:
            for tenant_id in await self.store.with_counters(list(by_tenant)):
                counted = await self._families.whole(by_tenant[tenant_id])
                await self.store.book(tenant_id, counted)
        except (RedisError, SQLAlchemyError) as error:
            _log.warning(
                "cost of requests not sent to Redis", events=len(charges), reason=str(error)
            )

    async def keep(self) -> None:
        """For ever: renew holds of this process, so that one that dies frees its own a lease later;
        settle what Redis did not take; tell of caps that were reached."""
        renewed_s = time.monotonic()
        while True:
            await asyncio.sleep(min(TICK_S, self._lease_s / 3))
            try:
                await self._settle_queued()
                if time.monotonic() - renewed_s >= self._lease_s / 3:
                    await self._renew()
                    renewed_s = time.monotonic()
                await self._look()
            except RedisError as error:
                _log.warning("budget reservations not renewed", reason=str(error))

    async def finish(self) -> None:
        """Before the process ends: what is still being settled and told."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=_LAST_S)
        await self._teller.finish(_LAST_S)

    async def _levels(self, tenant: TenantContext, currencies: Sequence[str | None]) -> list[Level]:
        """Of all budgets in the first of these currencies; in others of what an account has set,
        and of what was spent, held or granted."""
        found: dict[tuple[str, str], Level] = {}  # an account's budget may come with two of them
        for currency in currencies:
            budgets = budgets_of(tenant, self._clock(), currency)
            levels = (await self._ask(tenant, budgets, NOTHING)).levels if budgets else []
            for each in levels:
                if currency == currencies[0] or _is_worth_showing(each):
                    found.setdefault((each.budget.name, each.budget.account), each)
        return list(found.values())

    async def _in_each_currency(self, tenant: TenantContext) -> list[list[Budget]]:
        """At least once, the tenant's own first."""
        now = self._clock()
        return [budgets_of(tenant, now, each) for each in await self.currencies(tenant)]

    def _refuse(
        self, tenant: TenantContext, levels: Sequence[Level], by: Level, wanted: int
    ) -> None:
        of, _, span = by.budget.name.partition("_")
        self._metrics.refused.labels(
            *((f"budget_{span}", of) if span else ("credit", "plan"))
        ).inc()
        self._teller.tell(tenant.tenant_id, levels)
        raise refusal(by, wanted)

    async def _ask(self, tenant: TenantContext, budgets: Sequence[Budget], work: Work) -> Answer:
        try:
            await self._settle_queued()
            answer = await self._ask_redis(tenant, budgets, work)
        except RedisError as error:
            _log.warning(
                "Redis does not answer; this process checks budgets on its own", reason=str(error)
            )
            answer = await self._local.acquire(tenant, budgets, work, self._clock())
            self._metrics.budget_local_checks.labels(answer.what).inc()
            return answer
        self._local.learn(tenant.tenant_id, answer)
        return answer

    async def _ask_redis(
        self, tenant: TenantContext, budgets: Sequence[Budget], work: Work
    ) -> Answer:
        for _ in range(_SEEDS_MAX):
            answer = await self.store.acquire(tenant.tenant_id, tenant.lineage, budgets, work)
            if answer.what != "unknown":
                return answer
            unknown = tuple(each.budget.account for each in answer.levels if each.spent is None)
            tenant_id, now = tenant.tenant_id, self._clock()
            await self._seeding.run(
                (tenant_id, unknown),
                lambda of=tenant_id, unknown=unknown, now=now: self.seeder.seed(of, unknown, now),  # type: ignore[misc]
            )
        raise UnavailableError(
            "The server cannot check budgets right now. Please try again.",
            code="budgets_unavailable",
        )

    async def _settle(
        self, hold: BudgetHold, records: Sequence[UsageRecord], unused: Sequence[str]
    ) -> None:
        charges = []
        try:
            prices = await self._prices.lists() if records else Prices()
            used = await self._prices.used(hold.tenant.tenant_id)
            for record in records:
                charges.append(charge_of(record, prices, used, hold.tenant.lineage))
        except (BadRecordError, UnratableError, SQLAlchemyError) as error:
            # Held for a lease; the books say what it costs.
            _log.warning("request not settled", model=hold.model, reason=str(error))
        self._changed[hold.tenant.key_id] = hold.tenant
        if not charges and not unused:
            return
        try:
            await self.store.settle(hold.tenant.tenant_id, hold.model, charges, unused)
        except RedisError as error:
            self._local.queue(hold, charges, unused)
            _log.warning("request will be settled later", reason=str(error))

    async def _settle_queued(self) -> None:
        """In any order, and perhaps twice: each charge counts once."""
        while (first := self._local.first_queued()) is not None:
            await self.store.settle(first.tenant_id, first.model, first.charges, first.unused)
            self._local.was_told(first)
        self._metrics.budget_settles_queued.set(self._local.queued)

    async def _renew(self) -> None:
        """What was settled while this was under way stays settled; what had run out is held again,
        and given up if it ended meanwhile after all."""
        for tenant_id, ids in self._local.held_by_tenant().items():
            missing = await self.store.renew(tenant_id, ids)
            again = [
                (event_id, *held) for event_id in missing if (held := self._local.held(event_id))
            ]
            if not again:
                continue
            await self.store.retake(tenant_id, again)
            ended = [event_id for event_id, *_ in again if not self._local.held(event_id)]
            if ended:
                await self.store.settle(tenant_id, "", (), ended)

    async def _look(self) -> None:
        """At those who have spent since the last time."""
        changed, self._changed = list(self._changed.values()), {}
        for tenant in changed:
            if has_budget(tenant):
                every = await self._in_each_currency(tenant)
                budgets = [budget for each in every for budget in each]
                levels = await self.store.spent(tenant.tenant_id, budgets)
                self._teller.tell(tenant.tenant_id, levels)
