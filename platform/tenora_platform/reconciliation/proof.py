"""Compares every layer with the one before it, in one snapshot of the database: events with their
seals and prices, the sums with the events, the ledger, the engine and the invoices with the sums.
Run as `python -m`, with a Task on standard input; answers with a Result."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import TypeVar

import msgspec
import psycopg
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from tenora_engine.printable import hide_secrets, printable
from tenora_platform.ledger.chain import Chain
from tenora_platform.ledger.verify import problems
from tenora_platform.reconciliation import books
from tenora_platform.reconciliation.accounts import (
    ACCOUNTS,
    TAXES,
    TENANTS,
    compare_accounts,
    compare_plans,
    compare_taxes,
)
from tenora_platform.reconciliation.archives import Archives
from tenora_platform.reconciliation.bills import compare_bills, compare_taken
from tenora_platform.reconciliation.bounds import Bounds
from tenora_platform.reconciliation.days import OPEN_DAYS, read_moved
from tenora_platform.reconciliation.differences import Differences, Kind
from tenora_platform.reconciliation.events import EventBook, compare_places
from tenora_platform.reconciliation.letters import Letter, compare_letters, counted_letters
from tenora_platform.reconciliation.lists import compare_lists
from tenora_platform.reconciliation.postings import compare_postings
from tenora_platform.reconciliation.reading import Snapshot
from tenora_platform.reconciliation.sums import compare_sums, days_of
from tenora_platform.reconciliation.task import Looked, Result, Settled, Task, Waiting
from tenora_platform.secret import ServerSecret
from tenora_platform.usage.seal import Seals

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class UnknownTenantError(ValueError):
    """The scope names a tenant that does not exist."""


def prove(task: Task) -> Result:
    """One run. Raises psycopg.Error, and UnknownTenantError."""
    began_s = time.monotonic()
    secret = ServerSecret(task.secret)
    with psycopg.connect(task.database_url) as link:
        run = Run(Snapshot(link), secret, task)
        run.compare()
    if run.is_full:
        asyncio.run(walk_ledger(task, run.found))
    found = run.found
    return Result(
        at=run.snapshot.at,
        took_s=round(time.monotonic() - began_s, 3),
        looked=run.looked(),
        waiting=run.waiting(),
        differences={kind.value: count for kind, count in found.counts.items()},
        named=found.named,
        settled=run.settled(),
    )


async def walk_ledger(task: Task, found: Differences) -> None:
    """Its chains and balances, as `tenora audit verify` does."""
    url = make_url(task.database_url).set(drivername="postgresql+psycopg")
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with AsyncSession(engine) as session:
            chain = Chain(ServerSecret(task.secret))
            async for problem in problems(session, chain, task.scope.tenant_id):
                balance = problem.startswith("the balance")
                kind = Kind.BALANCE_WRONG if balance else Kind.LEDGER_BROKEN
                found.add(kind, task.scope.tenant_id, None, problem)
    finally:
        await engine.dispose()


class Run:
    """One snapshot, looked at layer by layer."""

    def __init__(self, snapshot: Snapshot, secret: ServerSecret, task: Task) -> None:
        self.snapshot = snapshot
        self.found = Differences()
        scope = task.scope
        self.is_full = scope.mode == "full"
        self._seals = Seals(secret)
        self._numbers = snapshot.tenants()
        if scope.tenant_id is not None and scope.tenant_id not in self._numbers:
            raise UnknownTenantError(f"There is no tenant with the id {scope.tenant_id!r}.")
        number = None if scope.tenant_id is None else self._numbers[scope.tenant_id]
        self._all = Bounds(number, scope.tenant_id, scope.first, scope.last)
        self._moved = read_moved(snapshot)
        self._parts = [self._all]
        if not self.is_full:
            self._parts = self._moved.parts(self._all, self._numbers)
        self._everything = any(part.everything for part in self._parts)
        self._lists = snapshot.lists(self._seals, self._numbers, self._parts)
        self._book = EventBook(self._lists.series, self._lists.tariffs, self._seals, self.found)
        self._archives = Archives(snapshot, task.object_store, self.found)
        self._letters: list[Letter] = snapshot.letters()
        self._counted: dict[str, int] = {}
        self._waits: dict[str, int] = {}

    def compare(self) -> None:
        self._compare_series()
        self._compare_events()
        self._compare_ledger()
        self._compare_engine()
        if self.is_full:
            self._compare_what_is_no_usage()

    def _compare_what_is_no_usage(self) -> None:
        snapshot, found = self.snapshot, self.found
        compare_lists(*snapshot.price_rows(), snapshot.price_entries(), found)
        if self._all.everything:
            self._compare_accounts()
        compare_postings(snapshot, found)
        self._compare_invoices()

    def _compare_series(self) -> None:
        for tenant_id, series_id in self._lists.wrong_series:
            self.found.add(Kind.SERIES_CHANGED, tenant_id, None, f"series {series_id}")

    def _compare_accounts(self) -> None:
        snapshot = self.snapshot
        for each in ACCOUNTS:
            compare_accounts(
                each, snapshot.account_rows(each), snapshot.account_entries(each), self.found
            )
        compare_plans(snapshot.plan_histories(), snapshot.account_entries(TENANTS), self.found)
        compare_taxes(snapshot.tax_histories(), snapshot.account_entries(TAXES), self.found)

    def _compare_events(self) -> None:
        """Month by month, so that not all of them are in memory at once."""
        self._archives.wanted = {each.key for each in self._of_archives()}
        self._counted |= {"hour_rows": 0, "day_rows": 0}
        volumes = self.snapshot.volumes() if self._everything else {}
        for part in self._parts:
            for month in part.by_month(self.snapshot.months(part)):
                self._compare_month(month)
                if self._everything:
                    own = {of: volumes.pop(of) for of in list(volumes) if month.holds(of.month)}
                    compare_places(self._book.places, own, self.found)
                self._book.places.clear()
        self._compare_waiting()

    def _compare_month(self, bounds: Bounds) -> None:
        """Events with their seals and prices; then hours and days with what they add up to."""
        snapshot, book = self.snapshot, self._book
        book.add_events(snapshot.events(bounds))
        book.add_events(self._archives.rows(bounds))
        book.add_occupancy(snapshot.occupancy_events(bounds))
        owners = {each.id: each.tenant_id for each in self._lists.series.values()}
        days = days_of(book.cells)
        self._counted["hour_rows"] += compare_sums(
            book.cells, snapshot.hours(bounds), owners, self.found, Kind.HOUR_WRONG
        )
        self._counted["day_rows"] += compare_sums(
            days, snapshot.days(bounds), owners, self.found, Kind.DAY_WRONG
        )
        book.cells.clear()

    def _compare_waiting(self) -> None:
        """Events without a price are those that are listed as waiting for one."""
        marks, listed = self.snapshot.unrated(self._all), set()
        self._waits["unrated_events"] = len(marks)
        for tenant_id, key, of, waits in marks:
            listed.add(key)
            if of != tenant_id or not waits:
                there = f"{'one without' if waits else 'one with'} a price, of {of or 'nobody'}"
                name = f"mark of {key[0]}:{key[1]}"
                self.found.add(
                    Kind.UNRATED_STRAY, tenant_id, None, name, f"an event of {tenant_id}", there
                )
        for key in self._book.unrated.keys() - listed:
            self.found.add(Kind.UNRATED_UNLISTED, *self._book.unrated[key])

    def _compare_ledger(self) -> None:
        snapshot = self.snapshot
        used, posted = self._of_parts(snapshot.used), self._of_parts(snapshot.posted)
        self._counted["ledger_amounts"] = len(posted)
        self._waits["ledger_days"] = books.compare_ledger(
            used, posted, snapshot.due(), snapshot.at, self.found
        )

    def _compare_engine(self) -> None:
        snapshot = self.snapshot
        tallies = [each for part in self._parts for each in snapshot.tallies(part)]
        stored = self._of_parts(snapshot.stored)
        self._counted["days"] = len(stored)
        letters = self._letters_now()
        self._waits["dead_letters"] = compare_letters(letters, self.found)
        for place, counted in counted_letters(letters).items():
            if any(part.has(*place) for part in self._parts):
                stored[place] = books.added(stored.get(place, books.NOTHING), counted)
        if not self._everything:
            unsure = counted_letters(self._of_archives()).keys()
            tallies = [each for each in tallies if (each.tenant_id, each.day) not in unsure]
            stored = {place: each for place, each in stored.items() if place not in unsure}
        self._counted["engine_days"] = len(tallies)
        since = date.min if self.is_full else snapshot.engines_whole_since()
        self._waits["engine_sequences"] = books.compare_engine(
            tallies, stored, snapshot.at, self.found, since
        )

    def _of_archives(self) -> list[Letter]:
        """Letters of months that only files have: these say whether they are events as well."""
        return [
            each
            for each in self._letters
            if each.is_open and each.request is not None and self._archives.hold(each.request)
        ]

    def _letters_now(self) -> list[Letter]:
        met = self._archives.met
        return [
            replace(each, is_open=each.is_open and each.key not in met) for each in self._letters
        ]

    def _compare_invoices(self) -> None:
        snapshot = self.snapshot
        self._counted["invoices"] = compare_bills(
            snapshot.bills(), snapshot.payments(), snapshot.bill_entries(), self.found
        )
        compare_taken(snapshot.taken_too_much(), self.found)

    def _of_parts(self, read: Callable[[Bounds], dict[_Key, _Value]]) -> dict[_Key, _Value]:
        """Of all parts, of which no two have a day in common."""
        found: dict[_Key, _Value] = {}
        for part in self._parts:
            found |= read(part)
        return found

    def looked(self) -> Looked:
        return Looked(
            events=self._book.events - self._archives.events,
            archived_events=self._archives.events,
            occupancy_events=self._book.occupancy_events,
            **self._counted,
        )

    def waiting(self) -> Waiting:
        return Waiting(**self._waits)

    def settled(self) -> Settled:
        wrong = self.found.wrong
        through = self.snapshot.at.date() - timedelta(days=OPEN_DAYS)
        return Settled(
            through=through if self._all.everything else None,
            marks=self._moved.seen(self._all, wrong),
            wrong=sorted(wrong),
        )


def _end_with_owner() -> None:
    """Our input ends when whoever asked is gone."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    gc.disable()  # millions of small objects and no circles: walking them is a third of the time
    try:
        answer = msgspec.json.encode(prove(task))
    except (psycopg.Error, UnknownTenantError) as error:
        print(printable(hide_secrets(str(error).strip().replace("\n", " "))), file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.buffer.write(answer)
    sys.stdout.flush()
    os._exit(0)  # the thread still reads


if __name__ == "__main__":
    main()
