"""Expressions that end a text where they first match: a small language, followed by a set of states
that goes on by a character at a time, so that no pattern and no text can make it slow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

PATTERN_CHARACTERS_MAX = 256
STATES_MAX = 128
KNOWN_MAX = 512
"""States of one pattern, of which a character takes some 0.1 us each, whatever the classes hold: a
class is searched by halves, and once for all states of it. And the pattern's steps that are
remembered, over all texts that are searched for it."""

_REPEAT_MAX = 100
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}

Test = Callable[[str], bool]
_Range = tuple[str, str]  # from the one character to the other
_KINDS: dict[str, Test] = {
    "d": str.isdecimal,
    "s": str.isspace,
    "w": lambda character: character.isalnum() or character == "_",
}


class PatternError(ValueError):
    """What a pattern has that is not supported."""


@dataclass
class _State:
    """One that goes on by a character that passes the test, or without one."""

    test: Test | None = None
    then: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Node:
    """A part of a pattern: a test of one character, others `in_turn`, one of `either`, or one that
    is repeated."""

    test: Test | None = None
    in_turn: tuple[_Node, ...] = ()
    either: tuple[_Node, ...] = ()
    repeated: _Node | None = None
    least: int = 1
    most: int | None = 1  # None: without end


class StopPattern:
    """A compiled pattern. Raises PatternError. It knows literals, classes, `.`, groups, `|`, `*`,
    `+`, `?`, `{m,n}` and a `$` at its end; what looks around, refers back or stands for another
    place is refused."""

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > PATTERN_CHARACTERS_MAX:
            raise PatternError(f"it must have 1 to {PATTERN_CHARACTERS_MAX} characters")
        self.pattern = pattern
        self._states: list[_State] = []
        self._end = self._add()
        self._beginning = self._closed([self._built(_Parser(pattern).parse(), self._end)])
        if self._end in self._beginning:
            raise PatternError("it matches a text without characters")
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def _add(self, test: Test | None = None, *then: int) -> int:
        if len(self._states) >= STATES_MAX:
            raise PatternError("it is too long, or repeats too much")
        self._states.append(_State(test, list(then)))
        return len(self._states) - 1

    def _built(self, node: _Node, to: int) -> int:
        """The first state of the node's, behind which it goes on at that one."""
        if node.test is not None:
            return self._add(node.test, to)
        if node.either:
            return self._add(None, *(self._built(each, to) for each in node.either))
        if node.repeated is not None:
            return self._repeated(node.repeated, node.least, node.most, to)
        for each in reversed(node.in_turn):
            to = self._built(each, to)
        return to

    def _repeated(self, node: _Node, least: int, most: int | None, to: int) -> int:
        behind = to
        if most is None:
            to = self._add(None, to)
            self._states[to].then.append(self._built(node, to))
        for _ in range((most or least) - least):
            to = self._add(None, self._built(node, to), behind)
        for _ in range(least):
            to = self._built(node, to)
        return to

    def begin(self) -> PatternSearch:
        """Search one text."""
        return PatternSearch(self)

    @property
    def beginning(self) -> frozenset[int]:
        return self._beginning

    def has_ended(self, states: frozenset[int]) -> bool:
        return self._end in states

    def after(self, states: frozenset[int], character: str) -> frozenset[int]:
        """Where the states are behind a character; a match may begin at any."""
        found = self._known.get((states, character))
        if found is None:
            passed: dict[Test | None, bool] = {None: False}  # states of a repetition share a test
            ahead: list[int] = []
            for state in map(self._states.__getitem__, states):
                if state.test not in passed:
                    passed[state.test] = state.test is not None and state.test(character)
                if passed[state.test]:
                    ahead += state.then
            found = self._closed(ahead) | self._beginning
            if len(self._known) < KNOWN_MAX:
                self._known[states, character] = found
        return found

    def _closed(self, numbers: Iterable[int]) -> frozenset[int]:
        """With all that are reached without a character."""
        found: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                if self._states[number].test is None:
                    waiting += self._states[number].then
        return frozenset(found)


class PatternSearch:
    """How far a text is in a pattern."""

    def __init__(self, pattern: StopPattern) -> None:
        self._pattern = pattern
        self._states = pattern.beginning

    @property
    def text(self) -> str:
        """The pattern's."""
        return self._pattern.pattern

    def end(self, text: str) -> int | None:
        """Go on by this text: how many of its characters it is up to the first match's end."""
        pattern, states, found = self._pattern, self._states, None
        for place, character in enumerate(text, 1):
            states = pattern.after(states, character)
            if found is None and pattern.has_ended(states):
                found = place
        self._states = states
        return found


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        whole = self._either()
        if self._at < len(self._pattern):
            raise PatternError("it has a ) without its (")
        return whole

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _either(self) -> _Node:
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        return ways[0] if len(ways) == 1 else _Node(either=tuple(ways))

    def _sequence(self) -> _Node:
        found: list[_Node] = []
        while self._next() not in ("", "|", ")") and not self._is_end():
            found.append(self._repeated())
        return _Node(in_turn=tuple(found))

    def _is_end(self) -> bool:
        """Whether a $ is next that ends a way of the whole pattern: the end of the text so far,
        where a match ends anyway."""
        behind = self._pattern[self._at + 1 : self._at + 2]
        return not self._depth and behind in ("", "|") and self._take("$")

    def _repeated(self) -> _Node:
        atom = self._atom()
        least, most = self._counts()
        if (least, most) == (1, 1):
            return atom
        self._take("?")  # of a lazy one: a match ends as early as it can anyway
        if self._next() and self._next() in "*+{":
            raise PatternError("it repeats a repetition")
        return _Node(repeated=atom, least=least, most=most)

    def _counts(self) -> tuple[int, int | None]:
        """How often what stands before may come; None: without end."""
        for mark, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return counts
        if not self._take("{"):
            return 1, 1
        inside, _, rest = self._pattern[self._at :].partition("}")
        low, comma, high = inside.partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()) or len(inside) > 7:
            raise PatternError("it has a { that repeats nothing; write \\{ for the character")
        self._at = len(self._pattern) - len(rest)
        least = int(low)
        most = int(high) if high else (None if comma else least)
        if max(least, most or 0) > _REPEAT_MAX or (most is not None and most < max(least, 1)):
            raise PatternError(f"it may repeat 1 to {_REPEAT_MAX} times, the fewer first")
        return least, most

    def _atom(self) -> _Node:
        character = self._next()
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            return _Node(test=self._class())
        if character == ".":
            return _Node(test=lambda each: each != "\n")
        if character == "\\":
            return _Node(test=self._escape())
        if character in "^$":
            raise PatternError(f"{character} stands for a place, which is not supported")
        if character in "*+?{":
            raise PatternError(f"it has a {character} that repeats nothing")
        return _Node(test=character.__eq__)

    def _group(self) -> _Node:
        if self._next() == "?" and not self._take("?:"):
            raise PatternError("groups of the form (?...) are not supported, but for (?:...)")
        self._depth += 1
        if self._depth > 32:
            raise PatternError("its groups are nested too deeply")
        piece = self._either()
        if not self._take(")"):
            raise PatternError("it has a ( without its )")
        self._depth -= 1
        return piece

    def _escape(self) -> Test:
        character = self._next()
        self._at += 1
        if character.lower() in _KINDS and character:
            return _kind(character)
        if character in _CONTROLS:
            return _CONTROLS[character].__eq__
        if not character or character.isalnum():
            raise PatternError(f"\\{character} is not supported")
        return character.__eq__

    def _class(self) -> Test:
        is_negative = self._take("^")
        members: list[_Range | str] = []
        while not members or not self._take("]"):  # as the first of them it is a character
            if not self._next():
                raise PatternError("it has a [ without its ]")
            members.append(self._member())
        ranges = _apart(each for each in members if not isinstance(each, str))
        kinds = tuple({_kind(each) for each in members if isinstance(each, str)})
        lows, highs = [low for low, _ in ranges], [high for _, high in ranges]

        def test(character: str) -> bool:
            place = bisect_right(lows, character) - 1
            within = place >= 0 and character <= highs[place]
            return (within or any(kind(character) for kind in kinds)) != is_negative

        return test

    def _member(self) -> _Range | str:
        """Return one member of a class: a character, a range, or the letter of \\d, \\s or \\w."""
        begin = self._at
        if self._take("\\"):
            self._escape()
            low = self._pattern[begin + 1]
            if low.lower() in _KINDS:
                return low
            low = _CONTROLS.get(low, low)
        else:
            low = self._next()
            self._at += 1
        if self._next() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("", "]"):
            return low, low
        self._at += 1
        high = self._pattern[self._at]
        if high == "\\":
            raise PatternError("a range of a class ends with a character")
        self._at += 1
        if high < low:
            raise PatternError(f"the range {low}-{high} is empty")
        return low, high


@cache
def _kind(letter: str) -> Test:
    """That of \\d, \\s or \\w, or with a capital letter its opposite."""
    kind = _KINDS[letter.lower()]
    return kind if letter.islower() else lambda each: not kind(each)


def _apart(ranges: Iterable[_Range]) -> list[_Range]:
    """The same characters in order, by ranges of which no two share one."""
    found: list[_Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1]:
            low, high = found[-1][0], max(found.pop()[1], high)
        found.append((low, high))
    return found
