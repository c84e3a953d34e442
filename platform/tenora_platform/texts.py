"""Whether a JSON value can be written down at all. A lone surrogate, half of a character, passes
every JSON parser and then fails wherever the text is encoded; so does an integer of more than 64
bits, and a number that is none. Knows JSON, not what it means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_NUL = "\0"
_WHITESPACE = b" \t\n\r"
_INTEGERS = range(-(2**63), 2**64)
"""Those that every form takes in which a value is sent on."""
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MAY_BE_ODD = (b"0" * 19, b"e000", b"E000", b"e+000", b"E+000", b"NaN", b"Infinity")
"""How what may be too large, or none, looks where all digits are zeros."""


@dataclass(frozen=True, slots=True)
class Odd:
    """What in a value cannot be sent on: `place` as `messages[0].content`, "" for the value itself;
    `reason` is to be read after it."""

    place: str
    reason: str


def odd_numbers_in(text: bytes) -> bool:
    """Whether a JSON text may have a number that `odd_in` names; a look at its bytes, of which a
    megabyte takes some milliseconds."""
    plain = text.translate(_DIGITS)
    return any(each in plain for each in _MAY_BE_ODD)


def keys_in(text: bytes, enough: int) -> int:
    """How many keys the objects of a JSON text have, counted in its bytes and never too few; where
    that is no more than `enough`, colons in its texts count too."""
    count = text.count(b":")
    if count <= enough or b"\0" in text:  # UTF-16
        return count
    plain = text.translate(None, _WHITESPACE)
    # Before a key's colon a text ends, by a quote. One with a backslash before it is within a text,
    # as in JSON that is kept as a text, unless that backslash is itself one of a pair.
    count = plain.count(b'":')
    if count <= enough:
        return count
    return count - plain.count(b'\\":') + plain.count(b'\\\\":')


def has_odd_number(value: Any) -> bool:
    """Whether `odd_in` names a number in what a JSON parser made, without saying where: ten times
    as quick."""
    left: list[Any] = [[value]]
    while left:
        each = left.pop()
        members = list(each.values()) if isinstance(each, dict) else each
        kinds = set(map(type, members))
        if kinds & {dict, list}:
            left += [member for member in members if isinstance(member, dict | list)]
        if int in kinds:
            numbers = [member for member in members if type(member) is int]
            if min(numbers) not in _INTEGERS or max(numbers) not in _INTEGERS:
                return True
        if float in kinds:
            floats = [member for member in members if type(member) is float]
            if not all(map(math.isfinite, floats)):
                return True
    return False


def odd_in(value: Any, *, nul: bool = False) -> Odd | None:
    """The first part of a JSON value that cannot be written down. `nul`: a NUL in a text is one."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, each = waiting.pop()
        reason = _why_odd(each, nul)
        if reason is not None:
            return Odd(path, reason)
        if isinstance(each, list):
            waiting += [(f"{path}[{place}]", item) for place, item in enumerate(each)][::-1]
        elif isinstance(each, dict):
            for key in each:
                reason = _why_odd(key, nul)
                if reason is not None:
                    return Odd(_member(path, key), reason)
            waiting += [(_member(path, key), item) for key, item in each.items()][::-1]
    return None


def _why_odd(value: Any, nul: bool) -> str | None:
    if isinstance(value, str):
        if not value.isascii() and _is_half(value):
            return "contains a lone surrogate (half of a character); send whole characters"
        return "contains a NUL character; leave it out" if nul and _NUL in value else None
    if isinstance(value, int) and value not in _INTEGERS:
        return "is an integer of more than 64 bits; send a smaller one, or a string"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number, or is too large; send a smaller one, or a string"
    return None


def _is_half(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def _member(path: str, key: str) -> str:
    shown = key.encode("utf-8", "backslashreplace").decode()
    return f"{path}.{shown}" if path else shown
