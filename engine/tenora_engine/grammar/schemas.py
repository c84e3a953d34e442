"""JSON schemas as they are written: each schema within a schema, with its place, and those within a
grammar. Each is looked at once, in time linear in the text. Pure; knows no library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

Place = tuple["Place", str | int] | tuple[()]
"""Where a schema stands: the place around it and a name or number there; nothing at the root."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
VALUES = ("const", "enum", "default", "examples", "required", "x-guidance")
_EXPRESSIONS = frozenset({"pattern", "patternProperties", "format", "x-guidance"})
_SHOWN_MAX = 80  # characters of a place
_JSON = re.compile(r"%json\s*(?=\{)")

Node = dict[str, Any]


def nodes_of(schema: Any) -> Iterator[tuple[Node, Place]]:
    """All schemas in a schema, each with its place: no values, unless a `$ref` leads to one, and
    no objects whose keys are names that somebody chose."""
    waiting: list[tuple[Any, Place, bool]] = [(schema, (), False)]
    seen: set[int] = set()
    while waiting:
        node, place, is_map = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, (place, number), False) for number, each in enumerate(node)]
        elif isinstance(node, dict) and (is_map or id(node) not in seen):
            if not is_map:
                seen.add(id(node))
                yield node, place
                waiting += _referred_by(node, schema)
            waiting += [
                (each, (place, name), not is_map and name in MAPS)
                for name, each in node.items()
                if is_map or name not in VALUES
            ]


def _referred_by(node: Node, root: Any) -> Iterator[tuple[Any, Place, bool]]:
    found = referred(node.get("$ref"), root)
    if isinstance(found, dict):
        place: Place = ()
        for name in _names(node["$ref"]):
            place = place, name
        yield found, place, False


def referred(ref: Any, root: Any) -> Any:
    """Return what a reference within a schema leads to; None where it leads nowhere."""
    if not isinstance(ref, str):
        return None
    own = root.get("$id") if isinstance(root, dict) else None
    if isinstance(own, str) and own:
        ref = ref.removeprefix(own.removesuffix("#"))
    if not ref.startswith("#"):
        return None
    node = root
    for name in _names(ref):
        if isinstance(node, list) and name.isdecimal() and len(name) < len("1000000"):
            node = node[int(name)] if int(name) < len(node) else None
        else:
            node = node.get(name) if isinstance(node, dict) else None
    return node


def _names(ref: str) -> Iterator[str]:
    """The names of a JSON pointer in a fragment (RFC 6901, section 6)."""
    for part in filter(None, ref.partition("#")[2].split("/")):
        yield unquote(part).replace("~1", "/").replace("~0", "~")


def has_expressions(schema: Any) -> bool:
    """Whether a JSON schema may bring regular expressions of its own."""
    return any(not _EXPRESSIONS.isdisjoint(node) for node, _ in nodes_of(schema))


def schemas_in(grammar: str) -> Iterator[tuple[int, int, Any]]:
    """Each schema of a grammar in Lark's form: (where it begins, where it ends, the schema)."""
    decoder, place = json.JSONDecoder(), 0
    while (found := _JSON.search(grammar, place)) is not None:
        try:
            schema, place = decoder.raw_decode(grammar, found.end())
        except (ValueError, RecursionError):
            place = found.end()  # it may stand in a string or a comment
            continue
        yield found.start(), place, schema


def shown(place: Place, root: str) -> str:
    """A place as a JSON pointer; of a long one its end."""
    names: list[str] = []
    while place and sum(map(len, names)) <= _SHOWN_MAX:
        place, name = place
        names.append(f"/{name}")
    text = "".join(reversed(names))
    text = text if place else root + text
    return text if len(text) <= _SHOWN_MAX else f"...{text[-_SHOWN_MAX:]}"
