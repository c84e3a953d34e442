"""Prefixed, sortable identifiers: `<kind>_<time><random>`. They say what a thing is and when it was
made, and nothing about whose it is."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u


def _encode(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        value, digit = divmod(value, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def new_id(kind: str) -> str:
    """A new id such as `tenant_01k8...`: 48 bits of milliseconds, then 80 random bits, so that ids
    of one kind sort by time and cannot be guessed."""
    return f"{kind}_{_encode(time.time_ns() // 1_000_000, 10)}{_encode(secrets.randbits(80), 16)}"


def random_text(length: int) -> str:
    """`length` characters of 5 random bits each, safe in URLs and easy to read out."""
    return _encode(secrets.randbits(5 * length), length)
