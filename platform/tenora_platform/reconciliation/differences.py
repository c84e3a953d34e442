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
    ACCOUNT_CHANGED = "account_changed"
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
    Kind.EVENT_CHANGED: "The event's row was modified, or was not written by Tenora. Compare it "
    "with a backup and with the request's receipt, and restore it.",
    Kind.SERIES_CHANGED: "The row of usage_series does not match its key. Restore it from a "
    "backup; until then the owner of its events is unknown.",
    Kind.SERIES_MISSING: (
        "Events or sums refer to a row of usage_series that is missing. Restore it from a backup."
    ),
    Kind.AMOUNT_WRONG: "The event's amount does not match the prices it was rated with. Check in "
    "a backup which of the two was changed, and reverse any wrong charge.",
    Kind.PRICE_MISSING: "The event was rated with a price version, or for a meter, that is "
    "missing. Restore the price list from the audit log entry of its creation.",
    Kind.PRICE_CHANGED: "The price list does not match the audit log entry of its creation. "
    "Restore it.",
    Kind.ACCOUNT_CHANGED: "The row of a tenant, plan, key or credit grant does not match the audit "
    "log's last entry about it. Restore it; charges and rights meanwhile followed the changed row.",
    Kind.PRICE_NOT_IN_FORCE: "Another price list was in force for this event when it ended. Look "
    "for price lists whose dates or scope were changed by hand.",
    Kind.TIER_POSITION_WRONG: "Events of one month have the same position in a volume tier, or "
    "skip one. Rate the month again by reversal, and look for a change "
    "by hand.",
    Kind.UNRATED_UNLISTED: "The event has no price and is not in unrated_events, so it will never "
    "be rated. Add it to unrated_events.",
    Kind.UNRATED_STRAY: "unrated_events names an event that has a price, belongs to another "
    "tenant or does not exist. Look for a deleted event; if there is none, "
    "delete the row.",
    Kind.HOUR_WRONG: "usage_hours does not match the sum of the hour's events: an event was "
    "deleted or added by hand, or the sum was changed. If the events are right, "
    "`tenora usage rebuild` recalculates the month's sums.",
    Kind.DAY_WRONG: "usage_days does not match the sum of the day's events. See hour_wrong.",
    Kind.ENGINE_COUNTED_MORE: "The engine counted usage that has no event. Check its outbox, the "
    "dead letters and the log; this usage is not billed.",
    Kind.ENGINE_COUNTED_LESS: "There are events that the engine did not count: they were added by "
    "hand, or the engine lost its disk and its counters with it.",
    Kind.LETTER_CHANGED: "The dead letter was modified. Restore it from a backup.",
    Kind.LEDGER_WRONG: "The ledger does not match the day's sums. Look for a change by hand in "
    "either; once the sums are right and the day is due, the ledger worker "
    "corrects the ledger.",
    Kind.LEDGER_BEHIND: "The day's usage has been waiting too long to be posted to the ledger. "
    "Check that a worker is running, and whether it logs errors.",
    Kind.LEDGER_BROKEN: (
        "The hash chain of a tenant's ledger is broken. Restore the ledger from a backup."
    ),
    Kind.BALANCE_WRONG: "The balance does not match the sum of the account's entries. If the "
    "ledger verifies, recalculate the balances.",
    Kind.INVOICE_CHANGED: (
        "The invoice or its lines were modified after it was made final. Restore them "
        "from a backup."
    ),
    Kind.INVOICE_NOT_POSTED: "The ledger has no transaction for this invoice, or one with another "
    "amount.",
    Kind.INVOICE_WRONG: "The amount invoiced for the month does not match its usage, and late "
    "usage does not explain it. (Late usage goes onto the next invoice as "
    "adjustments.)",
    Kind.ARCHIVE_MISSING: "The archive of a month's events cannot be read. Restore it from a copy.",
    Kind.ARCHIVE_WRONG: "The archive is not the one that was written. Restore it from a copy.",
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
