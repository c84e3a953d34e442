"""Budgets as plain Python says they are: which events are counted, what is held, who may pass. It
knows no Redis, no database and no scripts; the tests drive it beside the real ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass
class Happened:
    """A sequence that has ended: what it costs, and when that was."""

    event_id: str
    key: str
    at: datetime
    nanos: int

    def accounts(self) -> set[tuple[str, str]]:
        """(day or month, key or "" for the whole tenant) that it is charged to."""
        periods = (f"{self.at:%Y-%m-%d}", f"{self.at:%Y-%m}")
        return {(period, key) for period in periods for key in ("", self.key)}


@dataclass
class Accepted:
    """The last request that passed under an account: what was held then."""

    cap: int
    counted: set[str]
    holds: dict[str, int]


@dataclass
class Model:
    caps: dict[tuple[str, bool], int]  # (day or month, of a key?) -> nanos
    happened: dict[str, Happened] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)  # event ids in the books
    counted: set[str] = field(default_factory=set)  # event ids that Redis knows of
    holds: dict[str, tuple[int, str]] = field(default_factory=dict)
    known: set[tuple[str, str]] = field(default_factory=set)
    accepted: dict[tuple[str, str], Accepted] = field(default_factory=dict)

    def budgets(self, key: str, now: datetime) -> list[tuple[tuple[str, str], int]]:
        """(account, cap) in the order in which they are asked."""
        day, month = f"{now:%Y-%m-%d}", f"{now:%Y-%m}"
        return [
            ((period, of), self.caps[span, bool(of)])
            for of in (key, "")
            for span, period in (("day", day), ("month", month))
        ]

    def spent(self, account: tuple[str, str]) -> int:
        return sum(
            self.happened[each].nanos
            for each in self.counted
            if account in self.happened[each].accounts()
        )

    def held(self, key: str) -> int:
        return sum(nanos for nanos, of in self.holds.values() if key in ("", of))

    def look(self, key: str, now: datetime) -> None:
        """Whoever asks for an account that is not known has the books read."""
        accounts = {account for account, _ in self.budgets(key, now)}
        if not accounts <= self.known:
            self.read_books()
            self.known |= accounts

    def read_books(self) -> None:
        for event_id in self.stored:
            self.count(event_id)

    def count(self, event_id: str) -> None:
        self.counted.add(event_id)
        self.holds.pop(event_id, None)

    def passes(self, key: str, now: datetime, wanted: int) -> bool:
        self.look(key, now)
        return all(
            self.spent(account) < cap
            and self.spent(account) + self.held(account[1]) + wanted <= cap
            for account, cap in self.budgets(key, now)
        )

    def accept(self, key: str, now: datetime, amounts: dict[str, int]) -> None:
        for event_id, nanos in amounts.items():
            self.holds[event_id] = (nanos, key)
        for account, cap in self.budgets(key, now):
            holds = {each: nanos for each, (nanos, _) in self.holds.items()}
            self.accepted[account] = Accepted(cap, set(self.counted), holds)

    def empty(self) -> None:
        """Redis has lost everything."""
        self.counted.clear()
        self.holds.clear()
        self.known.clear()

    def most(self, account: tuple[str, str]) -> int | None:
        """What an account may have in the end: its cap and the error of the holds of whatever was
        not counted yet when the last request passed. None if none did."""
        last = self.accepted.get(account)
        if last is None:
            return None
        late = [
            event
            for event in self.happened.values()
            if account in event.accounts() and event.event_id not in last.counted
        ]
        return last.cap + sum(
            max(0, event.nanos - last.holds.get(event.event_id, 0)) for event in late
        )
