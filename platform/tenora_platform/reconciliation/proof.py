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
from dataclasses import replace
from datetime import date, timedelta

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
from tenora_platform.reconciliation.days import OPEN_DAYS, Digests, read_digests, windows_of
from tenora_platform.reconciliation.differences import Differences, Kind
from tenora_platform.reconciliation.events import EventBook, compare_places
from tenora_platform.reconciliation.letters import Letter, compare_letters, counted_letters
from tenora_platform.reconciliation.lists import compare_lists
from tenora_platform.reconciliation.postings import compare_postings
from tenora_platform.reconciliation.reading import Bounds, Lists, Snapshot
from tenora_platform.reconciliation.sums import compare_sums, days_of
from tenora_platform.reconciliation.task import Looked, Result, Scope, Settled, Task, Waiting
from tenora_platform.secret import ServerSecret
from tenora_platform.usage.seal import Seals


class UnknownTenantError(ValueError):
    """The scope names a tenant that does not exist."""


def prove(task: Task) -> Result:
    """One run. Raises psycopg.Error, and UnknownTenantError."""
    began_s = time.monotonic()
    secret = ServerSecret(task.secret)
    with psycopg.connect(task.database_url) as link:
        run = Run(Snapshot(link), secret, task)
        run.compare()
    if task.scope.mode == "full":
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
        wrong=run.wrong(),
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
        self._task = task
        self._secret = secret
        self._seals = Seals(secret)
        self._lists: Lists = snapshot.lists(self._seals)
        self._digests: Digests = read_digests(snapshot, secret)
        self._first_open = snapshot.at.date() - timedelta(days=OPEN_DAYS - 1)
        self._all = self._bounds(task.scope)
        self._looked_at = self._chosen(task.scope)
        self._book = EventBook(self._lists.series, self._lists.tariffs, self._seals, self.found)
        self._archives = Archives(snapshot, task.object_store, self.found)
        self._letters: list[Letter] = snapshot.letters()
        self._counted: dict[str, int] = {}
        self._waits: dict[str, int] = {}

    def compare(self) -> None:
        self._compare_series()
        compare_lists(*self.snapshot.price_rows(), self.snapshot.price_entries(), self.found)
        if self._task.scope.mode == "full" and self._all.everything:
            self._compare_accounts()
        self._compare_events()
        self._compare_ledger()
        self._compare_engine()
        self._compare_invoices()

    def _bounds(self, scope: Scope) -> Bounds:
        numbers = {tenant_id: no for no, tenant_id in self._lists.tenants.items()}
        if scope.tenant_id is not None and scope.tenant_id not in numbers:
            raise UnknownTenantError(f"There is no tenant with the id {scope.tenant_id!r}.")
        tenant_no = numbers[scope.tenant_id] if scope.tenant_id is not None else None
        return Bounds(tenant_no, scope.tenant_id, scope.first, scope.last)

    def _chosen(self, scope: Scope) -> Bounds:
        """What events are looked at of: all that is in bounds, or the days that have moved."""
        if scope.mode == "full":
            return self._all
        days = [day for day in self._digests.moved(self._first_open) if self._within(*day)]
        return Bounds(windows=windows_of(days, self._lists.tenants))

    def _within(self, tenant_no: int, day: date) -> bool:
        bounds = self._all
        return (
            bounds.tenant_no in (None, tenant_no)
            and (bounds.first is None or day >= bounds.first)
            and (bounds.last is None or day <= bounds.last)
        )

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
        volumes = self.snapshot.volumes() if self._looked_at.everything else {}
        for part in self._looked_at.by_month(self.snapshot.months()):
            self._compare_part(part)
            if self._looked_at.everything:
                own = {of: volumes.pop(of) for of in list(volumes) if part.holds(of.month)}
                compare_places(self._book.places, own, self.found)
            self._book.places.clear()
        self._compare_waiting()

    def _compare_part(self, bounds: Bounds) -> None:
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
        snapshot, bounds = self.snapshot, self._all
        used, posted = snapshot.used(bounds), snapshot.posted(bounds)
        self._counted["ledger_amounts"] = len(posted)
        self._waits["ledger_days"] = books.compare_ledger(
            used, posted, snapshot.due(), snapshot.at, self.found
        )
        compare_postings(snapshot, self.found)

    def _compare_engine(self) -> None:
        snapshot, bounds = self.snapshot, self._all
        tallies, stored = snapshot.tallies(bounds), snapshot.stored(bounds)
        letters = self._letters_now()
        self._waits["dead_letters"] = compare_letters(letters, self.found)
        for place, counted in counted_letters(letters).items():
            if self._within_id(*place):
                stored[place] = books.added(stored.get(place, books.NOTHING), counted)
        if not self._looked_at.everything:
            unsure = counted_letters(self._of_archives()).keys()
            tallies = [each for each in tallies if (each.tenant_id, each.day) not in unsure]
            stored = {place: each for place, each in stored.items() if place not in unsure}
        self._counted["engine_days"] = len(tallies)
        self._waits["engine_sequences"] = books.compare_engine(
            tallies, stored, snapshot.at, self.found
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
        bills = snapshot.bills(digests=self._task.scope.mode == "full")
        self._counted["invoices"] = compare_bills(
            bills, snapshot.payments(), snapshot.bill_entries(), self.found
        )
        compare_taken(snapshot.taken_too_much(), self.found)

    def _within_id(self, tenant_id: str, day: date) -> bool:
        mine = self._all.tenant_id in (None, tenant_id)
        return mine and self._within(self._all.tenant_no or 0, day)

    def looked(self) -> Looked:
        days = [day for day in self._digests.now if self._within(*day)]
        return Looked(
            events=self._book.events - self._archives.events,
            archived_events=self._archives.events,
            occupancy_events=self._book.occupancy_events,
            days=len(days),
            days_kept=len(days) - len(self._days_looked_at()),
            **self._counted,
        )

    def waiting(self) -> Waiting:
        return Waiting(**self._waits)

    def settled(self) -> list[Settled]:
        """Days that are over, were looked at, and nothing is wrong with."""
        wrong = set(self.wrong())
        return [
            Settled(tenant_no=day[0], day=day[1], digest=self._digests.now[day])
            for day in self._days_looked_at()
            if day[1] < self._first_open and day not in wrong
        ]

    def wrong(self) -> list[tuple[int, date]]:
        numbers = {tenant_id: no for no, tenant_id in self._lists.tenants.items()}
        return sorted(
            (numbers[tenant_id], day) for tenant_id, day in self.found.wrong if tenant_id in numbers
        )

    def _days_looked_at(self) -> set[tuple[int, date]]:
        there = {day for day in self._digests.now if self._within(*day)}
        if self._looked_at.windows is None:
            return there
        return there & self._digests.moved(self._first_open)


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
