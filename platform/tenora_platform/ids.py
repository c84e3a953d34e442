"""Prefixed, sortable identifiers: `<kind>_<time><random>`. They say what a thing is and when it was
made, and nothing about whose it is."""

from __future__ import annotations

import re
import secrets
import time
from datetime import datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_ID = re.compile(f"([a-z][a-z0-9]*)_([0-7][{_ALPHABET}]{{25}})")
_DIGITS = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")  # as `int` reads base 32


def _encode(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        value, digit = divmod(value, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def new_id(kind: str) -> str:
    """A new id such as `tenant_01k8...`: 48 bits of milliseconds, then 80 random bits, so that ids
    of one kind sort by time and cannot be guessed."""
    return f"{kind}_{new_ulid()}"


def new_ulid() -> str:
    """An id without its kind."""
    return _encode(time.time_ns() // 1_000_000, 10) + _encode(secrets.randbits(80), 16)


def first_id(kind: str, at: datetime) -> str:
    """What sorts before every id of this kind that is made from `at` on, and after those before."""
    return f"{kind}_{_encode(int(at.timestamp() * 1000), 10)}{'0' * 16}"


def ulid_text(number: int) -> str:
    """The 26 characters of 128 bits."""
    return _encode(number, 26)


def split_id(text: str) -> tuple[str, int] | None:
    """(kind, the 128 bits) of what `new_id` made; None for any other text."""
    match = _ID.fullmatch(text)
    return None if match is None else (match[1], int(match[2].translate(_DIGITS), 32))


def random_text(length: int) -> str:
    """`length` characters of 5 random bits each, safe in URLs and easy to read out."""
    return _encode(secrets.randbits(5 * length), length)
