"""Counted repetition: what `minItems`, `maxLength`, `{m,n}` and their like may ask for. The library
bounds none of them, and what they cost is met late: states of a lexer by the characters that an
answer has, items of a parser by the product of what is nested. Pure; knows no library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from tenora_engine.grammar.lark_counts import is_gbnf, rules_of
from tenora_engine.grammar.least import ENTRIES_MAX, least_characters
from tenora_engine.grammar.repeats import repeats_of
from tenora_engine.grammar.schemas import Node, nodes_of, referred, schemas_in, shown

CHARACTERS_MAX = 10_000
"""That an expression may have. Each takes up to nine states of a lexer, where tokens have one
character, and a lexer has `limits.PARSER_LIMITS`."""

CHARACTERS_LEAST_MAX = 2_000
"""That must come, in an expression or in all different strings of a schema; and the longest
`maxLength` that is kept: of a longer one the lexer would come to its end in the middle of an
answer, while a string without one takes no states."""

CHARACTERS_WIDE_MAX = 2_000
"""Where they may have several bytes (`.`, `[^<>]`, `\\w`): `.{1,5000}` came to the end of its lexer
after 1,079 tokens of English."""

NESTED_CHARACTERS_MAX = 500
"""Product of counts of which an inner one may vary: an answer may then be in many places of the
expression at once, and the lexer follows all of them."""

RULE_MAX = 4_000
"""Of one rule or terminal in a row: a mask of `"a"{4000}` takes 0.8 ms, more of them 16 kB each."""

NESTED_RULES_MAX = 200
"""Product of counts within counts of rules: where the parser cannot tell which of them goes on, a
mask at 200 takes 2 ms, at 2,500 it took 200 ms."""

_ENTRIES = ("minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains")
LIMITS = {"minLength": CHARACTERS_LEAST_MAX, **dict.fromkeys(_ENTRIES, ENTRIES_MAX)}


def read(text: str) -> Any:
    """The JSON of a text; None where it is none, which is the library's to refuse."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def counted_characters(kind: str, text: str) -> int:
    """How many characters a grammar counts in all, where it is followed as far as it can be. Of a
    schema equal strings count once: a lexer has one set of states for all of them."""
    if kind == "regex":
        return _counted(text)
    if kind == "json_schema":
        return _counted_in_schema(read(text))
    if kind != "grammar":
        return 0
    schemas, rest = _parted(text)
    rules = rules_of(rest)
    own = sum(_counted(pattern) for _, pattern in rules.patterns)
    own += sum(max(each.most or 0, each.least) for each in rules.repeats)
    return own + sum(map(_counted_in_schema, schemas))


def _counted_in_schema(schema: Any) -> int:
    strings: set[tuple[int, int]] = set()
    patterns: set[str] = set()
    for node, _ in nodes_of(schema):
        strings.add((_kept(node.get("minLength")), _kept(node.get("maxLength"))))
        patterns.update(_patterns_of(node))
    return sum(max(each) for each in strings) + sum(map(_counted, patterns))


def _counted(pattern: str) -> int:
    return sum(each.most for each in repeats_of(pattern))


def _patterns_of(node: Node) -> Iterator[str]:
    if isinstance(node.get("pattern"), str):
        yield node["pattern"]
    if isinstance(node.get("patternProperties"), dict):
        yield from node["patternProperties"]


def _kept(count: Any) -> int:
    """The count as it is followed; 0 where it is none, or too large to be."""
    is_count = isinstance(count, int | float) and 0 < count <= CHARACTERS_LEAST_MAX
    return int(count) if is_count else 0


def check_counts(kind: str, text: str) -> None:
    """Raises ValueError with what is too large, where it stands, and what to do. What cannot be
    read is left to the library to refuse; a `maxLength` is never too large (`followed.py`)."""
    if kind == "json_schema":
        check_schema(read(text))
    elif kind == "regex":
        check_repeats(text, "the expression")
    elif kind == "grammar":
        _check_grammar(text)


def check_schema(schema: Any, root: str = "#") -> None:
    """See `check_counts`; `root` is what the place of the schema is called."""
    for node, place in nodes_of(schema):
        ref = node.get("$ref")
        if isinstance(ref, str) and "#/" in ref and referred(ref, schema) is None:
            raise ValueError(
                f"the $ref at {shown(place, root)} leads to nothing in the schema: refer to a part "
                "of it, such as #/$defs/name"
            )
        for keyword, limit in LIMITS.items():
            count = node.get(keyword)
            if isinstance(count, int | float) and count > limit:
                _refuse(f"{keyword} at {shown(place, root)}", count, limit, _ADVICE[keyword])
        if isinstance(node.get("pattern"), str):
            check_repeats(node["pattern"], f"pattern at {shown(place, root)}")
        patterns = node.get("patternProperties")
        for pattern in patterns if isinstance(patterns, dict) else ():
            check_repeats(pattern, f"patternProperties at {shown(place, root)}")
    least = least_characters(schema)
    if least > CHARACTERS_LEAST_MAX:
        what = f"minLength of the different strings that an answer to {root} may have, added up,"
        _refuse(what, least, CHARACTERS_LEAST_MAX, "use smaller ones, or fewer different ones")


def check_repeats(pattern: str, where: str) -> None:
    """Raises ValueError for what an expression there counts too much of."""
    for each in repeats_of(pattern):
        within = ", multiplied by those within it," if each.is_multiplied else ""
        what, advice = f"the count {each.text} in {where}{within}", "use a smaller one, or * or +"
        if each.is_nested and each.most > NESTED_CHARACTERS_MAX:
            _refuse(what, each.most, NESTED_CHARACTERS_MAX, advice)
        if each.least > CHARACTERS_LEAST_MAX:
            _refuse(what, each.least, CHARACTERS_LEAST_MAX, advice)
        most = CHARACTERS_WIDE_MAX if each.is_wide else CHARACTERS_MAX
        if each.most > most:
            _refuse(what, each.most, most, advice)


def _check_grammar(text: str) -> None:
    schemas, rest = _parted(text)
    for number, schema in enumerate(schemas, 1):
        check_schema(schema, f"#{number}" if number > 1 else "#")
    rules = rules_of(rest)
    for name, pattern in rules.patterns:
        check_repeats(pattern, f"an expression of {name}")
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
                f"use smaller counts, or * or +{'' if is_gbnf(text) else _TERMINAL}",
            )


def _parted(text: str) -> tuple[list[Any], str]:
    """The schemas of a grammar, and the grammar with an empty text in the place of each."""
    schemas, rest, end = [], [], 0
    for begin, after, schema in schemas_in(text):
        schemas.append(schema)
        rest.append(text[end:begin])
        end = after
    return schemas, ' "" '.join([*rest, text[end:]])


_TERMINAL = ", or write what is within as a terminal, a name in capitals"
_LEAVE_OUT = "leave it out or use a smaller one: an answer never has more than max_tokens"
_ADVICE = {
    **dict.fromkeys(LIMITS, _LEAVE_OUT),
    "minLength": "use a smaller one",
    **dict.fromkeys(("minItems", "minProperties", "minContains"), "use a smaller one"),
}


def _refuse(what: str, count: float | None, limit: int, advice: str) -> NoReturn:
    raise ValueError(f"{what} is {count}; the maximum is {limit}: {advice}")
