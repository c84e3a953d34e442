"""Takes out of a schema, before the library reads it, what its answers are not held to. Of any
schema that is what says nothing, and what the lexer could not follow to its end; of one that is
`lenient`, as tools are that are not strict, all that cannot be followed. Knows no library:
`compiles` says whether it takes a schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tenora_engine.grammar.counts import (
    CHARACTERS_LEAST_MAX,
    LIMITS,
    check_repeats,
    check_schema,
    read,
)
from tenora_engine.grammar.repeats import without_upper
from tenora_engine.grammar.schemas import Node, nodes_of, schemas_in

_OF_TIME = ("date", "date-time", "duration", "time")
_OF_HOSTS = ("email", "hostname", "ipv4", "ipv6", "uri")
FORMATS = frozenset([*_OF_TIME, *_OF_HOSTS, "unknown", "uuid"])
"""That the library knows. Any other is an annotation, as JSON Schema has it."""

_MAY_BE_NULL = frozenset({"const", "default", "enum", "example", "examples"})
_ANY_NAMES: tuple[Any, ...] = (True, {}, {"type": "string"})
_LENIENT = "lenient"
Compiles = Callable[[Any], bool]


def followed(kind: str, text: str, compiles: Compiles) -> str:
    """The same grammar without what is not followed."""
    if kind == "json_schema":
        schema = read(text)
        return json.dumps(schema) if _pass_over(schema) else text
    if kind != "grammar":
        return text
    parts, end = [], 0
    for begin, after, schema in schemas_in(text):
        own = schema
        is_changed = _pass_over(schema)
        if _is_lenient(schema) and not _is_followed(schema, compiles):
            own, is_changed = _loosened(schema, compiles), True
        parts += [text[end:begin], f"%json {json.dumps(own)}" if is_changed else text[begin:after]]
        end = after
    return "".join([*parts, text[end:]])


def _pass_over(schema: Any) -> bool:
    """Take out of a schema what is not followed in any; whether there was anything."""
    changes = False
    for node, _ in nodes_of(schema):
        for name in [each for each in node if _says_nothing(each, node[each])]:
            del node[name]
            changes = True
        pattern = node.get("pattern")
        if isinstance(pattern, str):
            node["pattern"] = without_upper(pattern, CHARACTERS_LEAST_MAX)
            changes = changes or node["pattern"] != pattern
    return changes


def _says_nothing(name: str, value: Any) -> bool:
    if value is None:
        return name not in _MAY_BE_NULL
    if name == "maxLength":
        return isinstance(value, int | float) and value > CHARACTERS_LEAST_MAX
    if name == "format":
        return isinstance(value, str) and value not in FORMATS
    if name == "uniqueItems":
        return value is False
    return name == "propertyNames" and value in _ANY_NAMES


def _is_lenient(schema: Any) -> bool:
    options = schema.get("x-guidance") if isinstance(schema, dict) else None
    return isinstance(options, dict) and options.get(_LENIENT) is True


def _is_followed(schema: Any, compiles: Compiles) -> bool:
    try:
        check_schema(schema)
    except ValueError:
        return False
    return compiles(schema)


def _loosened(schema: Node, compiles: Compiles) -> Node:
    """The schema without the expressions and counts that cannot be followed; where that is not
    enough any object."""
    known: dict[str, bool] = {}

    def is_right(pattern: str) -> bool:
        if pattern not in known:
            known[pattern] = _is_right(pattern, compiles)
        return known[pattern]

    nodes = [node for node, _ in nodes_of(schema)]
    for node in nodes:
        _loosen(node, is_right)
    if _is_followed(schema, compiles):
        return schema
    for node in nodes:
        node.pop("minLength", None)
    if _is_followed(schema, compiles):
        return schema
    return {"type": "object", "x-guidance": schema["x-guidance"]}


def _loosen(node: Node, is_right: Callable[[str], bool]) -> None:
    """Take out of one schema its expressions that are not right and its counts beyond limits."""
    if isinstance(node.get("pattern"), str) and not is_right(node["pattern"]):
        del node["pattern"]
    named = node.get("patternProperties")
    if isinstance(named, dict):
        node["patternProperties"] = {key: named[key] for key in named if is_right(key)}
    for keyword, limit in LIMITS.items():
        count = node.get(keyword)
        if isinstance(count, int | float) and count > limit:
            del node[keyword]


def _is_right(pattern: str, compiles: Compiles) -> bool:
    try:
        check_repeats(pattern, "")
    except ValueError:
        return False
    return compiles({"type": "string", "pattern": pattern})
