"""Hints: parts of a JSON schema that help to find the end of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HINTS_MAX = 64
NODES_MAX = 20_000  # of a schema, that are looked at for hints


@dataclass(frozen=True)
class Hints:
    """Parts of a schema that help to find an end."""

    keys: tuple[bytes, ...] = ()  # that some object requires, without quotes
    values: tuple[bytes, ...] = ()  # that some place wants, as JSON
    depth: int = 0  # of the schema itself: no object of it that is named lies deeper


def hints_of(schema: Any) -> Hints:
    """Read the hints of a JSON schema."""
    keys: dict[bytes, None] = {}
    values: dict[bytes, None] = {}
    deepest, waiting = 0, [(schema, 1)]
    for _ in range(NODES_MAX):
        if not waiting:
            break
        node, depth = waiting.pop()
        inner = node.values() if isinstance(node, dict) else node
        if not isinstance(node, dict | list):
            continue
        deepest = max(deepest, depth)
        waiting += [(each, depth + 1) for each in inner]
        if isinstance(node, dict):
            keys.update(dict.fromkeys(_keys(node)))
            values.update(dict.fromkeys(_values(node)))
    shortest = sorted(values, key=len)[:HINTS_MAX]
    return Hints(tuple(keys)[:HINTS_MAX], tuple(shortest), deepest)


def _keys(node: dict[str, Any]) -> Iterator[bytes]:
    required = node.get("required")
    for key in required if isinstance(required, list) else ():
        if isinstance(key, str):
            yield _json(key)[1:-1]


def _values(node: dict[str, Any]) -> Iterator[bytes]:
    wanted = [node[name] for name in ("const", "minimum", "maximum", "default") if name in node]
    enum = node.get("enum")
    wanted += enum if isinstance(enum, list) else []
    for name, more in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
        number = node.get(name)
        if isinstance(number, int | float) and not isinstance(number, bool):
            wanted.append(number + more)
    for value in wanted[:HINTS_MAX]:
        yield _json(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"
    )
