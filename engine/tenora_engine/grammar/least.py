"""The least that the counts of a JSON schema demand of every answer. Pure; knows no library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tenora_engine.grammar.schemas import MAPS, VALUES, referred

ENTRIES_MAX = 1_000_000
"""Items and properties cost nothing, whatever their number; beyond it was never tried."""


@dataclass(frozen=True, slots=True)
class Least:
    """What the counts of a schema demand of every answer: so many bytes, and commas among them."""

    num_bytes: int = 0
    commas: int = 0

    def __add__(self, other: Least) -> Least:
        return Least(self.num_bytes + other.num_bytes, self.commas + other.commas)

    def __mul__(self, times: int) -> Least:
        return Least(self.num_bytes * times, self.commas * times)

    def __bool__(self) -> bool:
        return self.num_bytes > 0

    def tokens(self, longest: int, most_commas: int) -> int:
        """At least so many, of a vocabulary whose longest token has so many bytes, and of which
        none has more commas that can be in JSON one after the other."""
        by_bytes = -(-self.num_bytes // max(longest, 1))
        return max(by_bytes, -(-self.commas // max(most_commas, 1)))


NOTHING = Least()
_DEPTH_MAX = 64


def least_of(schema: Any) -> Least:
    """The least of a JSON schema; nothing where that does not follow from counts."""
    try:
        return _LeastOf(schema).of(schema, _DEPTH_MAX)
    except RecursionError:
        return NOTHING


class _LeastOf:
    """Each schema within a root is looked at once, however many refer to it."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, Least] = {}

    def of(self, node: Any, depth: int) -> Least:
        if not isinstance(node, dict) or not depth:
            return NOTHING
        if id(node) not in self._known:
            self._known[id(node)] = NOTHING  # where it refers to itself
            self._known[id(node)] = self._look_at(node, depth - 1)
        return self._known[id(node)]

    def _look_at(self, node: dict[str, Any], depth: int) -> Least:
        kind = node.get("type")
        found = [self.of(referred(node.get("$ref"), self._root), depth)]
        if kind == "string":
            length = _count(node, "minLength")
            found.append(Least(length + 2) if length else NOTHING)
        elif kind == "array":
            found.append(self._array(node, depth))
        elif kind == "object":
            found.append(self._object(node, depth))
        for name in ("anyOf", "oneOf"):
            if isinstance(ways := node.get(name), list) and ways:
                found.append(min((self.of(each, depth) for each in ways), key=_by_bytes))
        if isinstance(parts := node.get("allOf"), list):
            found += [self.of(each, depth) for each in parts]
        return max(found, key=_by_bytes)

    def _array(self, node: dict[str, Any], depth: int) -> Least:
        count = _count(node, "minItems")
        if not count:
            return NOTHING
        first = node.get("prefixItems")
        places = first[:count] if isinstance(first, list) else []
        ours = [self.of(each, depth) or Least(1) for each in places]
        others = (self.of(node.get("items"), depth) or Least(1)) * (count - len(ours))
        return sum(ours, others) + Least(count + 1, count - 1)  # brackets and commas

    def _object(self, node: dict[str, Any], depth: int) -> Least:
        named = node.get("properties")
        required = node.get("required")
        found = NOTHING
        if isinstance(named, dict) and isinstance(required, list):
            for name in {each for each in required if isinstance(each, str)}:
                found += self.of(named.get(name), depth)
        count = _count(node, "minProperties")
        entries = Least(5 * count + 1, count - 1) if count else NOTHING  # "":0 each
        return max(found, entries, key=_by_bytes)


def _count(node: dict[str, Any], name: str) -> int:
    count = node.get(name)
    return count if isinstance(count, int) and 0 < count <= ENTRIES_MAX else 0


def _by_bytes(least: Least) -> int:
    return least.num_bytes


def least_characters(schema: Any) -> int:
    """The sum of `minLength` over the different strings that one answer may have: of alternatives
    those with the largest, of definitions those that are referred to. 0 where it lies too deep."""
    try:
        return _sum(_Shapes(schema).of(schema))
    except RecursionError:
        return 0


Shapes = frozenset[tuple[int, int]]  # minLength and maxLength of strings
_NONE: Shapes = frozenset()


class _Shapes:
    """Each schema within a root is looked at once, however many refer to it."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, Shapes] = {}

    def of(self, node: Any) -> Shapes:
        if isinstance(node, list):
            return _NONE.union(*map(self.of, node))
        if not isinstance(node, dict):
            return _NONE
        if id(node) not in self._known:
            self._known[id(node)] = _NONE  # where it refers to itself
            self._known[id(node)] = self._look_at(node)
        return self._known[id(node)]

    def _look_at(self, node: dict[str, Any]) -> Shapes:
        length = _count(node, "minLength")
        own = frozenset({(length, _count(node, "maxLength"))}) if length else _NONE
        found = [own, self.of(referred(node.get("$ref"), self._root))]
        for name, each in node.items():
            if name in ("$defs", "definitions", *VALUES):
                continue
            if name in MAPS and isinstance(each, dict):
                found += map(self.of, each.values())
            elif name in ("anyOf", "oneOf") and isinstance(each, list):
                found.append(max(map(self.of, each), key=_sum, default=_NONE))
            else:
                found.append(self.of(each))
        return _NONE.union(*found)


def _sum(shapes: Shapes) -> int:
    return sum(length for length, _ in shapes)
