"""A history of a tenant's money acted out on both sides at once, the platform's and the model's."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from money_histories import (
    Announce,
    Give,
    GiveBack,
    History,
    Move,
    Pay,
    Run,
    Step,
    Use,
    Void,
    Who,
    Work,
    months_from,
    of,
    scoped,
)
from money_model import Invoice, TenantBooks, rounded
from money_platform import BEGINNING, MoneyPlatform, decimal
from money_prices_model import PriceList, PriceModel, begin_of, next_month

FIRST = "2031-01"
GENERAL = PriceList(
    "price_default",
    datetime(2020, 1, 1, tzinfo=UTC),
    {
        **{(meter, ""): ((0, Fraction(0)),) for meter in ("cold_load", "stored")},
        **{(f"{tier}_residency", ""): ((0, Fraction(0)),) for tier in ("device", "host")},
        ("uncached_prefill", ""): ((0, Fraction("0.1")),),
        ("cached_prefill", ""): ((0, Fraction("0.02")),),
        ("output", ""): ((0, Fraction("0.4")),),
    },
)
"""What a new installation has."""


@dataclass
class Played:
    """A history, acted out on both sides at once."""

    money: MoneyPlatform
    history: History
    who: Who
    books: TenantBooks

    @classmethod
    async def begin(cls, money: MoneyPlatform, history: History) -> Played:
        who = await money.new_tenant(history.tax_rate)
        prices = PriceModel([GENERAL])
        books = TenantBooks(
            who.tenant, prices, who.plan, history.currency, tax_rate=history.tax_rate
        )
        return cls(money, history, who, books)

    async def step(self, step: Step) -> None:
        match step:
            case Use():
                plans = [self.books.plan_at(each.at) for each in step.events]
                events = [of(self.who, *each) for each in zip(step.events, plans, strict=True)]
                await self.money.store(events)
                self.books.store(events)
            case Announce():
                await self.announce(scoped(self.who, step.prices))
            case Work():
                await self.money.work(self.who, step.now)
                self.books.post_usage()
                self.books.apply_credit(BEGINNING, step.now)
            case Give():
                await self.money.grant(self.who, step.grant, self.books.currency)
                self.books.grant(replace(step.grant))  # for it keeps what lapsed
            case Move():
                plan = self.who.other_plan if step.plan == "other" else self.who.plan
                if step.now not in [since for since, _ in self.books.plans]:
                    await self.money.move(self.who, plan, step.now)
                    self.books.plans.append((step.now, plan))
            case Run():
                await self.money.run(self.who, step.month, step.now)
                self.books.run(step.month, step.now)
                await self.check_invoices()
            case _:
                await self.act(step)

    async def announce(self, prices: PriceList) -> None:
        lists = self.books.prices.lists
        if any((each.scope, each.begins) == (prices.scope, prices.begins) for each in lists):
            assert await self.money.announce(prices) is False
            return
        earliest = self.books.prices.earliest(prices, list(self.books.charges.values()))
        assert await self.money.announce(prices) == (earliest or True)
        if earliest is None:
            lists.append(prices)
            self.books.rate_waiting()

    async def act(self, step: Step) -> None:
        """Void, payment or credit note to one of the invoices, if there is any that holds."""
        shown = await self.money.invoices(self.who)
        final = [
            (row, invoice)
            for row, invoice in zip(shown, self.books.invoices, strict=True)
            if not invoice.void
        ]
        if not final:
            return
        assert isinstance(step, Void | Pay | GiveBack)
        row, invoice = final[step.place % len(final)]
        invoice_id = row["id"]
        if isinstance(step, Void):
            allowed = await self.money.act("void", invoice_id, "test")
            assert allowed == self.books.void(invoice)
        elif isinstance(step, Pay):
            await self.pay(invoice_id, invoice, rounded(invoice.due * step.part, invoice.currency))
        else:
            place = step.line % len(invoice.lines)
            line = invoice.lines[place]
            amount = rounded(line.amount * step.part, invoice.currency)
            if amount > 0:
                no = row["lines"].index(_line(line)) + 1
                allowed = await self.money.act("credit", invoice_id, {no: decimal(amount)}, "test")
                assert allowed == self.books.note(invoice, place, amount)

    async def pay(self, invoice_id: str, invoice: Invoice, amount: Fraction) -> None:
        if amount > 0:
            reference = f"{invoice_id}:{len(self.books.invoices)}:{invoice.paid}"
            allowed = await self.money.act("pay", invoice_id, decimal(amount), reference, None)
            assert allowed == self.books.pay(invoice, amount)

    # What must agree

    async def check_invoices(self) -> None:
        shown = await self.money.invoices(self.who)
        expected = [
            {
                "month": invoice.month,
                "currency": invoice.currency,
                "status": "void" if invoice.void else "final",
                "total": invoice.total,
                "lines": in_order(_line(line) for line in invoice.lines),
            }
            for invoice in self.books.invoices
        ]
        for row in shown:
            del row["id"]
            row["lines"] = in_order(row["lines"])
        assert shown == expected

    async def check(self) -> None:
        last = self.history.steps[-1].now
        await self.money.work(self.who, last)
        self.books.post_usage()
        self.books.apply_credit(BEGINNING, last)
        await self.check_invoices()
        assert await self.money.balances(self.who) == self.books.ledger.shown()
        assert await self.money.problems(self.who) == []
        lapsed = {grant.name: grant.lapsed for grant in self.books.grants}
        assert await self.money.lapsed(self.who) == lapsed
        for line, requests in await self.money.behind(self.who):
            assert requests == line
        await self.check_costs()

    async def check_costs(self) -> None:
        months = months_from(self.history.first)
        begin = begin_of(months[0])
        end = next_month(months[-1]) + timedelta(days=1)  # what ended at midnight is of that day
        names = {id_: name for name, id_ in self.who.adapters.items()}
        expected: dict[tuple[Any, ...], Fraction] = defaultdict(Fraction)
        for charge, meter, _, amount in self.books.priced():
            event, prices = charge.event, charge.prices
            assert prices is not None
            of = (names[event.adapter], event.key, prices.currency, meter)
            expected[event.at.date(), *of] += amount
        found = await self.money.costs(self.who, begin, end)
        assert found == {key: amount for key, amount in expected.items() if amount}


def _line(line: Any) -> tuple[Any, ...]:
    key = (line.month, line.meter, line.class_, line.prices)
    return (line.kind, line.exact, line.amount, line.quantity, *key)


def in_order(lines: Any) -> list[tuple[Any, ...]]:
    """Kinds in the order in which they stand; within one it is a matter of taste."""
    kinds: dict[str, list[tuple[Any, ...]]] = {}
    for line in lines:
        kinds.setdefault(line[0], []).append(line)
    return [line for of_kind in kinds.values() for line in sorted(of_kind, key=repr)]


quarters = settings(
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
