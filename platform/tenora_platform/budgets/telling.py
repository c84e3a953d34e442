"""Keeps the events of budgets: `budget.soft` and `budget.hard`, when what has been spent reaches
the soft limit or the cap, once for each budget, period and cap. What is only held reaches nothing.
It does not deliver them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.budgets.accounts import money_of
from tenora_platform.budgets.news import most_told
from tenora_platform.budgets.store import Level
from tenora_platform.db import Database
from tenora_platform.events import repository

Kind = Literal["budget.soft", "budget.hard"]
_REMEMBERED_MAX = 100_000
_log = structlog.get_logger(__name__)


class Teller:
    """Works beside requests. What the database did not take is said again at the next occasion."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._told: set[tuple[str, str, str]] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def tell(self, tenant_id: str, levels: Sequence[Level]) -> None:
        """Of what has been reached."""
        for level in levels:
            if level.soft:
                self._tell("budget.soft", tenant_id, level)
            if level.reached:
                self._tell("budget.hard", tenant_id, level)

    async def finish(self, most_s: float) -> None:
        """Before the process ends: until all that was said is kept."""
        if self._telling:
            await asyncio.wait(self._telling, timeout=most_s)

    def _tell(self, kind: Kind, tenant_id: str, level: Level) -> None:
        once = f"{_period(level)} {level.cap} {level.budget.currency}"
        told = (kind, tenant_id, once)
        if told in self._told:
            return
        if len(self._told) >= _REMEMBERED_MAX:
            self._told.clear()
        self._told.add(told)
        task = asyncio.create_task(self._keep(kind, tenant_id, level, once))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _keep(self, kind: Kind, tenant_id: str, level: Level, once: str) -> None:
        budget = level.budget
        data = {
            "budget": budget.name,
            "api_key_id": budget.key_id,
            "currency": budget.currency,
            "cap": f"{money_of(level.cap or 0):f}",
            "spent": f"{money_of(level.spent or 0):f}",
            "held": f"{money_of(level.held):f}",
            "resets_at": None if budget.resets_at is None else budget.resets_at.isoformat(),
        }
        try:
            async with self._db.tenant_session(tenant_id) as session:
                told = await most_told(session, tenant_id, kind, _period(level), budget.currency)
                if told >= _reached_at(kind, level):
                    return  # under another cap
                await repository.add(session, tenant_id=tenant_id, type=kind, once=once, data=data)
        except (SQLAlchemyError, OSError) as error:
            self._told.discard((kind, tenant_id, once))
            _log.warning("budget event not stored", type=kind, tenant=tenant_id, reason=str(error))


def _period(level: Level) -> str:
    """Of the account, without its currency, which the event's data has."""
    account = level.budget.account.rpartition(":")[0]
    # The plan's month may have the same cap.
    return f"account {account}" if level.budget.name == "account_month" else account


def _reached_at(kind: Kind, level: Level) -> Decimal:
    cap = money_of(level.cap or 0)
    return cap if kind == "budget.hard" else cap * Decimal(str(level.budget.soft))
