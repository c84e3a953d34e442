"""What an invoice, its payments and its credit notes are in the ledger: entries by account name,
debit above 0. Pure; who posts them is the service's matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from tenora_platform.invoices.currency import exact_sum, negated
from tenora_platform.invoices.lines import USED, Bill

Entries = Mapping[str, Decimal]


def of_invoice(bill: Bill) -> Entries:
    """What was used and not invoiced becomes receivable, with tax and terms; the difference that
    rounding made is `rounding`."""
    paid = exact_sum(line.exact for line in bill.lines if line.kind in (*USED, "credit"))
    return _balanced(
        [
            ("receivable", bill.total),
            ("unbilled", negated(paid)),
            ("revenue:included", negated(bill.sum_of("included"))),
            ("revenue:minimum", negated(bill.sum_of("minimum"))),
            ("tax", negated(bill.tax)),
            ("rounding", bill.residue),
        ]
    )


def of_payment(amount: Decimal) -> Entries:
    return _balanced([("cash", amount), ("receivable", negated(amount))])


def of_credit_note(revenue: Iterable[tuple[str, Decimal]], tax: Decimal) -> Entries:
    """`revenue`: (account, amount) of what is given back."""
    given = list(revenue)
    total = exact_sum([tax, *(amount for _, amount in given)])
    return _balanced([*given, ("tax", tax), ("receivable", negated(total))])


def _balanced(entries: Iterable[tuple[str, Decimal]]) -> Entries:
    """By account, without those that come to nothing. Raises ArithmeticError unless they add up to
    0: the ledger would refuse them later."""
    sums: dict[str, Decimal] = {}
    for account, amount in entries:
        sums[account] = exact_sum((sums.get(account, Decimal(0)), amount))
    if total := exact_sum(sums.values()):
        raise ArithmeticError(f"the entries of an invoice add up to {total}, not 0: {sums}")
    return {account: amount for account, amount in sums.items() if amount}
