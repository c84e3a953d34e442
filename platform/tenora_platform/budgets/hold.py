"""What one request holds of its budgets until it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tenora_engine.events import UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_platform.auth import TenantContext
from tenora_platform.budgets.accounts import money_of
from tenora_platform.budgets.store import Level
from tenora_platform.usage.ids import event_of_run

if TYPE_CHECKING:
    from tenora_platform.budgets.service import Budgets


class Run(Protocol):
    """One engine request of a client's request."""

    request: GenerationRequest

    @property
    def usage(self) -> Sequence[UsageRecord]:
        """Of the sequences that have ended."""

    @property
    def begun(self) -> bool:
        """The engine has been asked and has not refused: it meters what it does."""


class BudgetHold:
    """`end` it when the request has ended, however it did. What has run and was not metered here is
    held until the books tell of it, one lease at most."""

    def __init__(
        self,
        budgets: Budgets,
        tenant: TenantContext,
        model: str,
        currency: str,
        amounts: dict[str, int],
        levels: Sequence[Level],
    ) -> None:
        self.tenant = tenant
        self.model = model
        self.currency = currency  # of its amounts
        self.amounts = amounts  # event id -> nanos
        self.levels = levels
        self._budgets = budgets

    @property
    def degraded(self) -> bool:
        """Beyond a soft cap that says so: served as flex."""
        return is_degraded(self.levels)

    @property
    def headers(self) -> dict[str, str]:
        return soft_header(self.levels)

    async def end(self, runs: Sequence[Run]) -> None:
        """Completes even if the caller is cancelled meanwhile."""
        records = [record for run in runs for record in run.usage]
        unused = [event_id for run in runs if not run.begun for event_id in event_ids(run.request)]
        await self._budgets.end(self, records, unused)


class NoHold(BudgetHold):
    """Of a request that is under no budget."""

    def __init__(self) -> None:
        self.levels = ()

    async def end(self, runs: Sequence[Run]) -> None:
        """Nothing was held."""


NO_HOLD = NoHold()


def event_ids(request: GenerationRequest) -> list[str]:
    """As the usage of its sequences will be called."""
    return [
        event_of_run(request.request_id, request.context, index).text
        for index in range(request.sampling.n)
    ]


def is_degraded(levels: Sequence[Level]) -> bool:
    return any(level.soft and level.budget.degrade for level in levels)


def soft_header(levels: Sequence[Level]) -> dict[str, str]:
    """`x-tenora-budget: soft;budget=plan_month;remaining="1.25";currency=USD`, a list of structured
    fields (RFC 9651), one of each budget beyond its soft cap; no header without."""
    told = [
        f'soft;budget={level.budget.name};remaining="{money_of(level.left):f}"'
        + (f";currency={level.budget.currency}" if level.budget.currency else "")
        for level in levels
        if level.soft
    ]
    return {"x-tenora-budget": ", ".join(told)} if told else {}
