"""Which grant pays for what, unit by unit and in plain Python: what credit is held against. Times
are whole hours, amounts whole units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Given:
    amount: int
    begins: int
    ends: int | None
    currency: str


Use = tuple[int, str, int]
"""When, in which currency, how many units."""


def modelled(given: Sequence[Given], uses: Sequence[Use]) -> list[int]:
    """Each unit of each use, in the order of time, is paid by the grant that expires first."""
    left = [each.amount for each in given]
    for at, currency, amount in sorted(uses):
        for _ in range(amount):
            holding = [
                (each.ends if each.ends is not None else 10**9, each.begins, number)
                for number, each in enumerate(given)
                if each.begins <= at
                and (each.ends is None or at < each.ends)
                and left[number]
                and each.currency == currency
            ]
            if holding:
                left[min(holding)[-1]] -= 1
    return [each.amount - rest for each, rest in zip(given, left, strict=True)]
