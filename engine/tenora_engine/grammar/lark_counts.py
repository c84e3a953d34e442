"""Counts of a grammar in Lark's form or GBNF: each repetition of a rule, with the product of those
within it, through the names of other rules. It reads no more of the form than that takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tenora_engine.grammar.repeats import count_at

_DEFINES = "::="  # of GBNF
_LARK = re.compile(r"^[ \t]*(?:%llguidance\b|[?!]{0,2}start(?:\.\d+)?[ \t]*:(?!:))", re.MULTILINE)
_CLASS = (
    r"(?P<class>\[(?:\\.|[^\]\\\n])*+\]?) | "  # of letters; in Lark's own form it may be left out
)
_PARTS = r"""(?P<skip>[ \t\r\f]+|//[^\n]*|\#[^\n]*)
      | (?P<line>\n+)
      | (?P<text>"(?:\\.|[^"\\\n])*+(?:"i?)?)
      | (?P<regex>/(?!/)(?:\\.|[^/\\\n])++/?[imslux]*)
      | (?P<dots>~\s*(\d{1,18})(?:\s*\.\.\s*(\d{1,18}))?)
      | (?P<head>[!?]?[A-Za-z_][\w-]*+(?:\.-?\d+)?(?:\[[^\]\[\n]*+\])?\s*+(?::(?!:)|::=))
      | (?P<name>[A-Za-z_][\w-]*)
      | (?P<other>.)"""
"""Each part is read in time linear in its length, what is not closed as if it were."""
_TOKEN = re.compile(_PARTS, re.VERBOSE | re.DOTALL)
_TOKEN_OF_GBNF = re.compile(_CLASS + _PARTS, re.VERBOSE | re.DOTALL)
_STEPS_MAX = 200_000
_ANY = 2
"""As what `*`, `+` and `?` count within a count: a rule that may be there or not."""


@dataclass(frozen=True, slots=True)
class RuleRepeat:
    """`product`: its count times the largest product of what varies within it."""

    rule: str
    text: str
    least: int
    most: int | None
    product: int


@dataclass(frozen=True, slots=True)
class Rules:
    repeats: list[RuleRepeat]
    patterns: list[tuple[str, str]]  # (rule, regular expression)


@dataclass
class _Part:
    """Something that may be repeated: the names in it, each with what it is multiplied by, and the
    largest product in itself."""

    names: dict[str, int] = field(default_factory=dict)
    product: int = 1

    def add(self, other: _Part) -> None:
        self.product = max(self.product, other.product)
        for name, times in other.names.items():
            self.names[name] = max(self.names.get(name, 1), times)

    def multiply(self, times: int) -> None:
        self.product *= times
        self.names = {name: each * times for name, each in self.names.items()}


@dataclass(frozen=True)
class _Repeated:
    rule: str
    text: str
    least: int
    most: int | None
    what: _Part


def rules_of(text: str) -> Rules:
    """Everything that is counted in it."""
    reader = _Reader(has_terminals=not is_gbnf(text))
    for kind, token, end in _tokens(text, _TOKEN if reader.has_terminals else _TOKEN_OF_GBNF):
        reader.read(kind, token, text, end)
    return Rules([*_multiplied(reader)], reader.patterns)


def is_gbnf(text: str) -> bool:
    """Whether a grammar is GBNF; else it is in Lark's form, which has a rule named `start`."""
    return _DEFINES in text and _LARK.search(text) is None


def _tokens(text: str, token: re.Pattern[str]) -> Iterator[tuple[str, str, int]]:
    place = 0
    for _ in range(_STEPS_MAX):
        found = token.match(text, place)
        if found is None:
            return
        place = found.end()
        count = count_at(text, found.start()) if found[0] == "{" else None
        if count is not None:
            place = count[2]
            yield "count", text[found.start() : place], found.start()
        elif found.lastgroup not in (None, "skip"):
            yield found.lastgroup or "", found[0], place


class _Reader:
    def __init__(self, *, has_terminals: bool) -> None:
        self.has_terminals = has_terminals
        self.rule = ""
        self.wholes: dict[str, _Part] = {"": _Part()}
        self.repeated: list[_Repeated] = []
        self.patterns: list[tuple[str, str]] = []
        self._open = [self.wholes[""]]
        self._last = _Part()

    def is_terminal(self, name: str) -> bool:
        """It is the lexer's: what counts within it is counted there."""
        return self.has_terminals and name.isupper()

    def read(self, kind: str, token: str, text: str, place: int) -> None:
        if kind == "head":
            self.rule = re.split(r"[.\[:]", token.strip("!? \t"))[0].strip()
            self._open = [self.wholes.setdefault(self.rule, _Part())]
            self._last = _Part()
        elif kind == "count":
            least, most, _ = count_at(text, place) or (0, 0, 0)
            self._repeat(token, least, most)
        elif kind == "dots":
            low, _, high = token.removeprefix("~").partition("..")
            self._repeat(token, int(low), int(high or low))
        elif token in ("*", "+", "?"):
            self._last.product = max(self._last.product, _ANY)
            self._keep(self._last)
        elif token in ("(", "["):
            self._open.append(_Part())
        elif token in (")", "]") and len(self._open) > 1:
            self._keep(self._open.pop())
        elif kind in ("text", "regex", "name", "class"):
            if kind == "regex":
                self.patterns.append((self.rule, token[1 : token.rindex("/")]))
            self._keep(_Part({token: 1} if kind == "name" else {}))

    def _repeat(self, token: str, least: int, most: int | None) -> None:
        what = _Part(dict(self._last.names), self._last.product)
        self.repeated.append(_Repeated(self.rule, token, least, most, what))
        if least != most:
            times = most if most is not None else _ANY
            self._last.multiply(max(times, 1))
            self._keep(self._last)

    def _keep(self, part: _Part) -> None:
        self._last = part
        self._open[-1].add(part)


def _multiplied(reader: _Reader) -> Iterator[RuleRepeat]:
    known: dict[tuple[str, bool], int] = {}

    def within(part: _Part, open_: frozenset[str], rule: str) -> int:
        most = part.product
        for name, times in part.names.items():
            if name in open_ or name not in reader.wholes:
                continue
            if reader.is_terminal(name) and not reader.is_terminal(rule):
                continue
            key = name, reader.is_terminal(rule)
            if key not in known:
                known[key] = within(reader.wholes[name], open_ | {name}, rule)
            most = max(most, times * known[key])
        return most

    for each in reader.repeated:
        times = each.most if each.most is not None else max(each.least, _ANY)
        inner = within(each.what, frozenset({each.rule}), each.rule)
        product = times * inner if inner > 1 else 1  # alone it costs nothing
        yield RuleRepeat(each.rule, each.text, each.least, each.most, product)
