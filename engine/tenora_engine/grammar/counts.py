"""Counted repetition: what `minItems`, `maxLength`, `{m,n}` and their like may ask for. The library
bounds none of them, and what they cost is met late: states of a lexer by the characters that an
answer has, items of a parser by the product of what is nested. Pure; knows no library."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from tenora_engine.grammar.lark_counts import rules_of
from tenora_engine.grammar.repeats import Repeat, repeats_of

CHARACTERS_MAX = 10_000
"""That an expression may have. Each takes up to nine states of a lexer, where tokens have one
character, and a lexer has `limits.PARSER_LIMITS`."""

CHARACTERS_LEAST_MAX = 2_000
"""That must come, in an expression or in all strings of a schema together; and the longest
`maxLength` that is kept: of a longer one the lexer would come to its end in the middle of an
answer, while a string without one takes no states."""

CACHED_CHARACTERS_MAX = 1_000
"""The states of a grammar with more that are counted are not kept behind its answers."""

NESTED_CHARACTERS_MAX = 500
"""Product of counts of which an inner one may vary: an answer may then be in many places of the
expression at once, and the lexer follows all of them."""

ENTRIES_MAX = 1_000_000
"""Items and properties cost nothing, whatever their number; beyond it was never tried."""

RULE_MAX = 4_000
"""Of one rule or terminal in a row: a mask of `"a"{4000}` takes 0.8 ms, more of them 16 kB each."""

NESTED_RULES_MAX = 200
"""Product of counts within counts of rules: where the parser cannot tell which of them goes on, a
mask at 200 takes 2 ms, at 2,500 it took 200 ms."""

_ENTRIES = ("minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains")
_LIMITS = {"minLength": CHARACTERS_LEAST_MAX, **dict.fromkeys(_ENTRIES, ENTRIES_MAX)}
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_AS_THEY_ARE = ("const", "enum", "default", "examples", "required", "x-guidance")
_SHOWN_MAX = 80  # characters of a place
_JSON = re.compile(r"%json\s*(?=\{)")


def followed(kind: str, text: str) -> str:
    """The same without what is not followed: a `maxLength` of a schema that is beyond
    CHARACTERS_LEAST_MAX."""
    if kind == "json_schema":
        return _without_large(text)
    if kind != "grammar":
        return text
    parts, end = [], 0
    for begin, after, _ in _schemas_in(text):
        parts += [text[end:begin], _without_large(text[begin:after])]
        end = after
    return "".join([*parts, text[end:]])


def _without_large(text: str) -> str:
    """Of a schema, or `%json` and one."""
    begin = text.find("{")
    try:
        schema = json.loads(text[begin:])
    except (ValueError, RecursionError):
        return text
    large = [node for node, _ in _nodes(schema, "#") if _is_large(node.get("maxLength"))]
    for node in large:
        del node["maxLength"]
    return text[:begin] + json.dumps(schema) if large else text


def _is_large(count: Any) -> bool:
    return isinstance(count, int | float) and count > CHARACTERS_LEAST_MAX


@lru_cache(maxsize=256)
def counted_characters(kind: str, text: str) -> int:
    """How many characters a grammar counts in all, where it is followed as far as it can be."""
    if kind == "regex":
        return max((each.most for each in repeats_of(text)), default=0)
    schemas: list[Any] = []
    if kind == "json_schema":
        with contextlib.suppress(ValueError, RecursionError):
            schemas = [json.loads(text)]
    elif kind == "grammar":
        schemas = [schema for _, _, schema in _schemas_in(text)]
    total = 0
    for schema in schemas:
        for node, _ in _nodes(schema, "#"):
            total += max(_kept(node.get("minLength")), _kept(node.get("maxLength")))
            if isinstance(node.get("pattern"), str):
                counts = (each.most for each in repeats_of(node["pattern"]))
                total += max(counts, default=0)
    return total


def _kept(count: Any) -> int:
    """The count as it is followed; 0 where it is none, or too large to be."""
    is_count = isinstance(count, int | float) and 0 < count <= CHARACTERS_LEAST_MAX
    return int(count) if is_count else 0


def check_counts(kind: str, text: str) -> None:
    """Raises ValueError with what is too large, where it stands, and what to do. What cannot be
    read is left to the library to refuse; a `maxLength` is never too large (`followed`)."""
    if kind == "json_schema":
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError):
            return
        _check_schema(schema, "#")
    elif kind == "regex":
        _check_repeats(repeats_of(text), "the expression")
    elif kind == "grammar":
        _check_grammar(text)


_EXPRESSIONS = frozenset({"pattern", "patternProperties", "format", "x-guidance"})


def has_expressions(schema: str) -> bool:
    """Whether a JSON schema, given as text, may bring regular expressions of its own; so does one
    that cannot be read."""
    try:
        nodes = list(_nodes(json.loads(schema), "#"))
    except (ValueError, RecursionError):
        return True
    return any(not _EXPRESSIONS.isdisjoint(node) for node, _ in nodes)


def _nodes(schema: Any, place: str) -> Iterator[tuple[dict[str, Any], str]]:
    """All schemas in a schema, each with its place: no values, unless a `$ref` leads into some, and
    no objects whose keys are names that somebody chose."""
    waiting = [(schema, place, False)]
    values = () if _refers_to_values(schema) else _AS_THEY_ARE
    while waiting:
        node, place, is_map = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, f"{place}/{number}", False) for number, each in enumerate(node)]
        elif isinstance(node, dict):
            if not is_map:
                yield node, place
            waiting += [
                (each, f"{place}/{name}", not is_map and name in _MAPS)
                for name, each in node.items()
                if is_map or name not in values
            ]


def _refers_to_values(schema: Any) -> bool:
    """Whether a `$ref` names a place within what is no schema."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            ref = node.get("$ref")
            if isinstance(ref, str) and not set(_AS_THEY_ARE).isdisjoint(ref.split("/")):
                return True
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return False


def _check_schema(schema: Any, root: str) -> None:
    least = 0
    for node, place in _nodes(schema, root):
        for keyword, limit in _LIMITS.items():
            count = node.get(keyword)
            if isinstance(count, int | float) and count > limit:
                _refuse(f"{keyword} at {_shown(place)}", count, limit, _ADVICE[keyword])
        least += _kept(node.get("minLength"))
        if least > CHARACTERS_LEAST_MAX:
            what = f"minLength at {_shown(place)}, with those before it,"
            _refuse(what, least, CHARACTERS_LEAST_MAX, _ADVICE["minLength"])
        if isinstance(node.get("pattern"), str):
            _check_repeats(repeats_of(node["pattern"]), f"pattern at {_shown(place)}")
        patterns = node.get("patternProperties")
        for pattern in patterns if isinstance(patterns, dict) else ():
            _check_repeats(repeats_of(pattern), f"patternProperties at {_shown(place)}")


def _check_repeats(repeats: list[Repeat], where: str) -> None:
    for each in repeats:
        within = ", multiplied by those within it," if each.is_multiplied else ""
        what, advice = f"the count {each.text} in {where}{within}", "use a smaller one, or * or +"
        if each.is_nested and each.most > NESTED_CHARACTERS_MAX:
            _refuse(what, each.most, NESTED_CHARACTERS_MAX, advice)
        if each.least > CHARACTERS_LEAST_MAX:
            _refuse(what, each.least, CHARACTERS_LEAST_MAX, advice)
        if each.most > CHARACTERS_MAX:
            _refuse(what, each.most, CHARACTERS_MAX, advice)


def _check_grammar(text: str) -> None:
    rest = []
    end = 0
    for number, (begin, after, schema) in enumerate(_schemas_in(text), 1):
        _check_schema(schema, f"#{number}" if number > 1 else "#")
        rest.append(text[end:begin])
        end = after
    rules = rules_of(' "" '.join([*rest, text[end:]]))
    for name, pattern in rules.patterns:
        _check_repeats(repeats_of(pattern), f"an expression of {name}")
    for each in rules.repeats:
        where = f"the count {each.text} in {each.rule}"
        advice = "use a smaller one, or * or +"
        if max(each.most or 0, each.least) > RULE_MAX:
            _refuse(where, max(each.most or 0, each.least), RULE_MAX, advice)
        if each.product > NESTED_RULES_MAX:
            _refuse(
                f"{where}, multiplied by those within it,",
                each.product,
                NESTED_RULES_MAX,
                "write what is within as a terminal, a name in capitals, or use * or +",
            )


def _schemas_in(text: str) -> Iterator[tuple[int, int, Any]]:
    """(where it begins, where it ends, the schema)"""
    decoder, place = json.JSONDecoder(), 0
    while (found := _JSON.search(text, place)) is not None:
        try:
            schema, place = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            place = found.end()  # it may stand in a string or a comment
            continue
        yield found.start(), place, schema


_LEAVE_OUT = "leave it out or use a smaller one: an answer never has more than max_tokens"
_ADVICE = {
    **dict.fromkeys(_LIMITS, _LEAVE_OUT),
    "minLength": "use a smaller one",
    **dict.fromkeys(("minItems", "minProperties", "minContains"), "use a smaller one"),
}


def _refuse(what: str, count: float | None, limit: int, advice: str) -> NoReturn:
    raise ValueError(f"{what} is {count}; the maximum is {limit}: {advice}")


def _shown(place: str) -> str:
    return place if len(place) <= _SHOWN_MAX else f"...{place[-_SHOWN_MAX:]}"


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


def least_of(schema: str) -> Least:
    """Of a JSON schema given as text; nothing where that does not follow from counts."""
    try:
        root = json.loads(schema)
        return _LeastOf(root).of(root, _DEPTH_MAX)
    except (ValueError, RecursionError):
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
        found = [self.of(self._referred(node.get("$ref")), depth)]
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

    def _referred(self, ref: Any) -> Any:
        """What a reference within the schema leads to; None where it leads nowhere."""
        if not isinstance(ref, str) or not ref.startswith("#"):
            return None
        node = self._root
        for part in filter(None, ref[1:].split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, dict) else None
        return node

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
