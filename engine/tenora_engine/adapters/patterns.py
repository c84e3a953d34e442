"""Regular expressions that come from a tenant: compiled only when matching a module path cannot
take long. Knows no adapter format."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

MAX_PATTERN_CHARS = 4096
_PATH_CHARS = 48  # longer than any module path of a supported model
_MAX_WAYS = 3 * _PATH_CHARS**4
"""Ways a backtracking matcher may split one path: four free `.*` in a few alternatives pass (PEFT's
own tools write such), `(a+)+` and a fifth `.*` do not. Python's matcher cannot be interrupted."""

_parser: Any = importlib.import_module("re._parser")


class PatternError(ValueError):
    """The pattern is not valid or could take too long."""


def compile_bounded(pattern: str, *, wrap: str = "{}") -> re.Pattern[str]:
    """Compile `pattern` in place of `{}` in `wrap`. Raises PatternError for an invalid pattern and
    for one that could backtrack for long."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"is longer than {MAX_PATTERN_CHARS} characters")
    try:
        ways = _ways(_parser.parse(pattern))
        compiled = re.compile(wrap.replace("{}", pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"is not a valid regular expression: {error}") from error
    if ways > _MAX_WAYS:
        raise PatternError("could take too long to match; use fewer or simpler repeats")
    return compiled


def _ways(nodes: Iterable[tuple[Any, Any]]) -> int:
    """An upper bound on the ways to match one path: a product over what follows one another."""
    ways = 1
    for op, argument in nodes:
        ways = min(ways * _node_ways(str(op), argument), _MAX_WAYS + 1)
    return ways


def _node_ways(op: str, argument: Any) -> int:
    if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return _repeat_ways(*argument)
    if op == "SUBPATTERN":
        return _ways(argument[3])
    if op == "ATOMIC_GROUP":
        return _ways(argument)
    if op in ("ASSERT", "ASSERT_NOT"):
        return _ways(argument[1])
    if op == "BRANCH":
        return sum(_ways(branch) for branch in argument[1])
    if op in ("GROUPREF", "GROUPREF_EXISTS", "GROUPREF_IGNORE"):
        raise PatternError("uses a back-reference, which is not supported")
    return 1


def _repeat_ways(least: int, most: int, body: Iterable[tuple[Any, Any]]) -> int:
    inner = _ways(body)
    if int(most) <= 1:
        return inner + (1 - least)
    if inner > 1:
        raise PatternError("repeats something that itself has several ways to match")
    if int(least) > _PATH_CHARS:
        raise PatternError(f"repeats more than {_PATH_CHARS} times")
    return min(int(most), _PATH_CHARS) - int(least) + 1
