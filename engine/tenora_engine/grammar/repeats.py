"""Counts of a regular expression: each `{m,n}`, multiplied by those that stand within it."""

from __future__ import annotations

import re
from dataclasses import dataclass

COUNT = re.compile(r"\{\s*+(?:(\d{1,18}+)\s*+)?+(?:(,)\s*+(?:(\d{1,18}+)\s*+)?+)?+\}")
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]{0,64}\}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ENDS = "*+?"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A count with what it is multiplied by: the largest counts within it. Where there is no upper
    bound, `most` is as `least`."""

    text: str
    least: int
    most: int
    is_multiplied: bool  # there is another count within it
    is_nested: bool  # and it may vary
    is_wide: bool  # a character within it may have several bytes


@dataclass(frozen=True, slots=True)
class _Inner:
    """The largest counts within a part."""

    least: int = 1
    most: int = 1
    varies: bool = False
    is_wide: bool = False

    def beside(self, other: _Inner) -> _Inner:
        varies, is_wide = self.varies or other.varies, self.is_wide or other.is_wide
        return _Inner(max(self.least, other.least), max(self.most, other.most), varies, is_wide)


_ONE, _WIDE = _Inner(), _Inner(is_wide=True)
_WIDE_PART = re.compile(r"\.|\[\^|\\[pPwWdDsS]|[^\x00-\x7f]")
_WIDE_IN_CLASS = re.compile(r"\[\^|\\[pPwWdDsS]|[^\x00-\x7f]")


def count_at(text: str, place: int) -> tuple[int, int | None, int] | None:
    """(least, most, where it ends) of `{m}`, `{m,}`, `{,n}` or `{m,n}` that begins there."""
    found = COUNT.match(text, place)
    if found is None or found[1] is found[3] is None:
        return None
    least = int(found[1] or 0)
    most = least if found[2] is None else (int(found[3]) if found[3] else None)
    return least, most, found.end()


def repeats_of(pattern: str) -> list[Repeat]:
    """In the order in which they end. What is not well formed is read as far as it goes."""
    found: list[Repeat] = []
    groups = [_ONE]  # what is so far within each group that is open
    last, place = _ONE, 0  # within what stands just before
    while place < len(pattern):
        count = count_at(pattern, place) if pattern[place] == "{" else None
        if count is not None:
            least, upper, end = count
            most = max(least, 1) if upper is None else max(upper, 1)
            inner = _Inner(
                max(least, 1) * last.least, most * last.most, upper != least, last.is_wide
            )
            text, is_multiplied = pattern[place:end], last.most > 1
            found.append(
                Repeat(text, inner.least, inner.most, is_multiplied, last.varies, last.is_wide)
            )
            last, place = inner.beside(_Inner(varies=last.varies)), end
        else:
            place, last = _step(pattern, place, groups, last)
        groups[-1] = groups[-1].beside(last)
    return found


def _step(pattern: str, place: int, groups: list[_Inner], last: _Inner) -> tuple[int, _Inner]:
    """Past one part that is no count: (where it ends, what is within it)."""
    letter = pattern[place]
    if letter == "\\":
        escape = _ESCAPE.match(pattern, place)
        wide = _WIDE_PART.match(pattern, place)
        return (escape.end() if escape else place + 1), _WIDE if wide else _ONE
    if letter == "[":
        end = _class_end(pattern, place)
        return end, _WIDE if _WIDE_IN_CLASS.search(pattern, place, end) else _ONE
    if letter == "(":
        groups.append(_ONE)
        return place + 1, _ONE
    if letter == ")" and len(groups) > 1:
        return place + 1, groups.pop()
    if letter in _ENDS:
        return place + 1, last
    return place + 1, _WIDE if _WIDE_PART.match(pattern, place) else _ONE


def without_upper(pattern: str, longest: int) -> str:
    """An expression that is one class with a count and nothing else (`^.{1,5000}$`), without an
    upper bound beyond `longest`; any other as it is."""
    begin = pattern.startswith("^")
    place, _ = _step(pattern, begin, [_ONE], _ONE) if pattern[begin:] else (begin, _ONE)
    found = count_at(pattern, place) if pattern[begin : begin + 1] not in ("", "(", ")") else None
    if found is None or pattern[found[2] :] not in ("", "$"):
        return pattern
    least, most, end = found
    if most is None or most <= longest or least == most:
        return pattern
    return f"{pattern[:place]}{{{least},}}{pattern[end:]}"


def _class_end(pattern: str, place: int) -> int:
    """Behind the bracket that closes this one; classes may be within each other."""
    depth, first = 0, place
    while place < len(pattern):
        letter = pattern[place]
        if letter == "\\":
            place += 1
        elif letter == "[":
            depth += 1
            first = place + 1 + (pattern[place + 1 : place + 2] == "^")
        elif letter == "]" and place > first:
            depth -= 1
            if not depth:
                return place + 1
        place += 1
    return place
