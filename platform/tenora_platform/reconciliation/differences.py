"""What a reconciliation can find, by name, with what to do about each; and the list of what it has
found. It knows no layer and no database."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

KEPT_MAX = 1000
"""Differences that a result names one by one; all are counted."""
KEPT_OF_A_KIND = 200


class Kind(StrEnum):
    """One difference between two layers, or within one."""

    EVENT_CHANGED = "event_changed"
    SERIES_CHANGED = "series_changed"
    SERIES_MISSING = "series_missing"
    AMOUNT_WRONG = "amount_wrong"
    PRICE_MISSING = "price_missing"
    PRICE_CHANGED = "price_changed"
    PRICE_NOT_IN_FORCE = "price_not_in_force"
    TIER_POSITION_WRONG = "tier_position_wrong"
    UNRATED_UNLISTED = "unrated_unlisted"
    UNRATED_STRAY = "unrated_stray"
    HOUR_WRONG = "hour_wrong"
    DAY_WRONG = "day_wrong"
    ENGINE_COUNTED_MORE = "engine_counted_more"
    ENGINE_COUNTED_LESS = "engine_counted_less"
    LETTER_CHANGED = "letter_changed"
    LEDGER_WRONG = "ledger_wrong"
    LEDGER_BEHIND = "ledger_behind"
    LEDGER_BROKEN = "ledger_broken"
    BALANCE_WRONG = "balance_wrong"
    INVOICE_CHANGED = "invoice_changed"
    INVOICE_NOT_POSTED = "invoice_not_posted"
    INVOICE_WRONG = "invoice_wrong"
    ARCHIVE_MISSING = "archive_missing"
    ARCHIVE_WRONG = "archive_wrong"


ADVICE: dict[Kind, str] = {
    Kind.EVENT_CHANGED: "The event's row is not as it was written, or was not written by Tenora: "
    "compare it with a backup and with the request's receipt, and restore it.",
    Kind.SERIES_CHANGED: "The row of usage_series is not what its key says: restore it from a "
    "backup; until then its events belong to somebody unknown.",
    Kind.SERIES_MISSING: "Events or sums name a row of usage_series that is not there: restore it.",
    Kind.AMOUNT_WRONG: "The event costs something else by the prices it was rated by: see which of "
    "the two was changed in a backup, and reverse what was charged wrongly.",
    Kind.PRICE_MISSING: "The event was rated by a price version, or for a meter, that is not "
    "there: restore the price list from the audit log's entry of its creation.",
    Kind.PRICE_CHANGED: "The price list is not the one that the audit log says was made: restore "
    "it.",
    Kind.PRICE_NOT_IN_FORCE: "Another price list held for this event when it ended: look for "
    "price lists whose dates or scope were changed by hand.",
    Kind.TIER_POSITION_WRONG: "Events of one month take the same place, or leave one out, in a "
    "volume tier: rate the month again by reversal, and look for a change by hand.",
    Kind.UNRATED_UNLISTED: "The event has no price and is not among those that wait for one, so "
    "nothing will rate it: add it to unrated_events.",
    Kind.UNRATED_STRAY: "unrated_events names an event that has a price, belongs to another "
    "tenant or does not exist: look for a deleted event, else delete the row.",
    Kind.HOUR_WRONG: "usage_hours is not the sum of the hour's events: an event of it was deleted "
    "or added by hand, or the sum was; if the events are right, `tenora usage rebuild` makes the "
    "month's sums anew.",
    Kind.DAY_WRONG: "usage_days is not the sum of the day's events: as for usage_hours.",
    Kind.ENGINE_COUNTED_MORE: "The engine counted usage that is no event: look into its outbox, "
    "the dead letters and the log; it is money that nobody is asked for.",
    Kind.ENGINE_COUNTED_LESS: "There are events that the engine did not count: either they were "
    "added by hand, or the engine's disk was lost and its counters with it.",
    Kind.LETTER_CHANGED: "The dead letter is not as it was written: restore it from a backup.",
    Kind.LEDGER_WRONG: "The ledger does not say what the day's sums say: look for a change by hand "
    "in either; the poster mends it once the sums are right and the day is due.",
    Kind.LEDGER_BEHIND: "The day's usage has waited for the ledger for too long: is a worker "
    "running, and does it fail at it?",
    Kind.LEDGER_BROKEN: "The chain of a tenant's ledger does not hold: restore it from a backup.",
    Kind.BALANCE_WRONG: "The balance is not the sum of the account's entries: if the ledger holds, "
    "make the balances anew.",
    Kind.INVOICE_CHANGED: "The invoice or its lines are not as they were made final: restore them.",
    Kind.INVOICE_NOT_POSTED: "The ledger has no transaction of this invoice, or one of another "
    "amount.",
    Kind.INVOICE_WRONG: "What was invoiced of the month is not what was used: the next invoice "
    "takes up late usage as adjustments, but this is none.",
    Kind.ARCHIVE_MISSING: "The archive of a month's events cannot be read: bring the object back.",
    Kind.ARCHIVE_WRONG: "The archive is not the one that was written: restore it from a copy.",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """`subject` is the event or row as one would look it up; `expected` is what the layer before
    says, `found` what stands there."""

    kind: Kind
    tenant_id: str | None
    day: date | None  # UTC
    subject: str
    expected: str = ""
    found: str = ""


@dataclass(slots=True)
class Differences:
    """All that was found: each kind counted, the first of each named, and every day of a tenant
    that something is wrong with."""

    counts: Counter[Kind] = field(default_factory=Counter)
    named: list[Difference] = field(default_factory=list)
    wrong: set[tuple[str, date]] = field(default_factory=set)

    def add(
        self,
        kind: Kind,
        tenant_id: str | None,
        day: date | None,
        subject: str,
        expected: object = "",
        found: object = "",
    ) -> None:
        self.counts[kind] += 1
        if tenant_id is not None and day is not None:
            self.wrong.add((tenant_id, day))
        if self.counts[kind] <= KEPT_OF_A_KIND and len(self.named) < KEPT_MAX:
            texts = str(expected), str(found)
            self.named.append(Difference(kind, tenant_id, day, subject, *texts))
