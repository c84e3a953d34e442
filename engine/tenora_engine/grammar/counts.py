"""Counted repetition: what `minItems`, `maxLength`, `{m,n}` and their like may ask for. The library
bounds none of them, and what they cost is met late: states of a lexer by the characters that an
answer has, items of a parser by the product of what is nested. Pure; knows no library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from tenora_engine.grammar.lark_counts import rules_of
from tenora_engine.grammar.repeats import Repeat, repeats_of

CHARACTERS_MAX = 10_000
"""Of a string or an expression. Each takes up to nine states of a lexer, where tokens have one
character; the lexer of a schema without expressions has as many as that (`limits.PLAIN_STATES`)."""

CHARACTERS_LEAST_MAX = 2_000
"""Of those that must come where there are expressions, whose states may be larger: that lexer has
20,000."""

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
_LIMITS = {"minLength": CHARACTERS_MAX, **dict.fromkeys(_ENTRIES, ENTRIES_MAX)}
_EXPRESSIONS = frozenset({"pattern", "patternProperties", "format", "x-guidance"})
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_AS_THEY_ARE = ("const", "enum", "default", "examples", "required", "x-guidance")
_SHOWN_MAX = 80  # characters of a place
_JSON = re.compile(r"%json\s*(?=\{)")


def lowered(kind: str, text: str) -> str:
    """The same with each `maxLength` of a schema no larger than CHARACTERS_MAX: what keeps the
    lower one keeps the one that was asked for."""
    if kind == "json_schema":
        return _lowered(text)
    if kind != "grammar":
        return text
    parts, end = [], 0
    for begin, after, _ in _schemas_in(text):
        parts += [text[end:begin], _lowered(text[begin:after])]
        end = after
    return "".join([*parts, text[end:]])


def _lowered(text: str) -> str:
    """Of a schema, or `%json` and one."""
    begin = text.find("{")
    try:
        schema = json.loads(text[begin:])
    except (ValueError, RecursionError):
        return text
    large = [node for node, _ in _nodes(schema, "#") if _is_large(node.get("maxLength"))]
    for node in large:
        node["maxLength"] = CHARACTERS_MAX
    return text[:begin] + json.dumps(schema) if large else text


def _is_large(count: Any) -> bool:
    return isinstance(count, int | float) and count > CHARACTERS_MAX


def check_counts(kind: str, text: str) -> None:
    """Raises ValueError with what is too large, where it stands, and what to do. What cannot be
    read is left to the library to refuse; a `maxLength` is never too large (`lowered`)."""
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


def has_expressions(schema: str) -> bool:
    """Whether a JSON schema, given as text, may bring regular expressions of its own; so does one
    that cannot be read."""
    try:
        nodes = list(_nodes(json.loads(schema), "#"))
    except (ValueError, RecursionError):
        return True
    return any(_brings_expressions(node) for node, _ in nodes)


def _brings_expressions(node: dict[str, Any]) -> bool:
    return not _EXPRESSIONS.isdisjoint(node)


def _nodes(schema: Any, place: str) -> Iterator[tuple[dict[str, Any], str]]:
    """All schemas in a schema, each with its place: no values, and no objects whose keys are names
    that somebody chose."""
    waiting = [(schema, place, False)]
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
                if is_map or name not in _AS_THEY_ARE
            ]


def _check_schema(schema: Any, place: str, *, has_states: bool = True) -> None:
    """`has_states`: its lexer has as many states as long strings take."""
    nodes = list(_nodes(schema, place))
    is_plain = has_states and not any(_brings_expressions(node) for node, _ in nodes)
    limits = _LIMITS if is_plain else _LIMITS | {"minLength": CHARACTERS_LEAST_MAX}
    for node, place in nodes:
        for keyword, limit in limits.items():
            count = node.get(keyword)
            if isinstance(count, int | float) and count > limit:
                _refuse(f"{keyword} at {_shown(place)}", count, limit, _ADVICE[keyword])
        if isinstance(node.get("pattern"), str):
            _check_repeats(repeats_of(node["pattern"]), f"pattern at {_shown(place)}")
        for pattern in node.get("patternProperties") or ():
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
        _check_schema(schema, f"#{number}" if number > 1 else "#", has_states=False)
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
            return
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
        return _least(json.loads(schema), _DEPTH_MAX)
    except (ValueError, RecursionError):
        return NOTHING


def _least(node: Any, depth: int) -> Least:
    if not isinstance(node, dict) or not depth:
        return NOTHING
    kind = node.get("type")
    found = [NOTHING]
    if kind == "string":
        length = _count(node, "minLength")
        found.append(Least(length + 2) if length else NOTHING)
    elif kind == "array":
        found.append(_least_array(node, depth - 1))
    elif kind == "object":
        found.append(_least_object(node, depth - 1))
    for name in ("anyOf", "oneOf"):
        if isinstance(ways := node.get(name), list) and ways:
            found.append(min((_least(each, depth - 1) for each in ways), key=_by_bytes))
    return max(found, key=_by_bytes)


def _least_array(node: dict[str, Any], depth: int) -> Least:
    count = _count(node, "minItems")
    if not count:
        return NOTHING
    first = node.get("prefixItems")
    places = first[:count] if isinstance(first, list) else []
    ours = [_least(each, depth) or Least(1) for each in places]
    others = (_least(node.get("items"), depth) or Least(1)) * (count - len(ours))
    return sum(ours, others) + Least(count + 1, count - 1)  # brackets and commas


def _least_object(node: dict[str, Any], depth: int) -> Least:
    named = node.get("properties")
    required = node.get("required")
    found = NOTHING
    if isinstance(named, dict) and isinstance(required, list):
        for name in required:
            found += _least(named.get(name) if isinstance(name, str) else None, depth)
    count = _count(node, "minProperties")
    entries = Least(5 * count + 1, count - 1) if count else NOTHING  # "":0 each
    return max(found, entries, key=_by_bytes)


def _count(node: dict[str, Any], name: str) -> int:
    count = node.get(name)
    return count if isinstance(count, int) and 0 < count <= ENTRIES_MAX else 0


def _by_bytes(least: Least) -> int:
    return least.num_bytes
