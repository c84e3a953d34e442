"""Regular expressions that come from a tenant: compiled only when matching a module path cannot
take long. Knows no adapter format."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

from tenora_engine.printable import brief

MAX_PATTERN_CHARS = 4096
_PATH_CHARS = 48  # longer than any module path of a supported model
_MAX_WAYS = 2 * _PATH_CHARS**4
"""Ways a backtracking matcher may try on one path, over all patterns of one adapter: two patterns
with four free `.*` pass (fine-tuning tools write such), a fifth `.*` and `(a+)+` do not. Python's
matcher cannot be interrupted; at this bound a 32-layer model takes it about two seconds."""

_parser: Any = importlib.import_module("re._parser")
_Nodes = Iterable[tuple[Any, Any]]


class PatternError(ValueError):
    """The pattern is not valid or could take too long."""


class PatternCompiler:
    """Compiles the patterns of one adapter, which share one bound."""

    def __init__(self) -> None:
        self._ways = 0

    def compile(self, pattern: str, wrap: str = "{}") -> re.Pattern[str]:
        """Compile `pattern` in place of `{}` in `wrap`. Raises PatternError for an invalid pattern
        and when matching could take too long."""
        if len(pattern) > MAX_PATTERN_CHARS:
            raise PatternError(f"is longer than {MAX_PATTERN_CHARS} characters")
        wrapped = wrap.replace("{}", pattern)
        try:
            _parser.parse(pattern)  # alone: it must not close the wrap's brackets
            ways = _ways(_parser.parse(wrapped))
            compiled = re.compile(wrapped)
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(f"is not a valid regular expression: {brief(error)}") from error
        self._ways += ways
        if self._ways > _MAX_WAYS:
            raise PatternError("could take too long to match; use fewer or simpler repetitions")
        return compiled


def _ways(nodes: _Nodes) -> int:
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
        return _branch_ways(argument[1])
    if op.startswith("GROUPREF"):
        raise PatternError("uses a back-reference, which is not supported")
    return 1


def _branch_ways(branches: list[_Nodes]) -> int:
    """Plain words exclude one another unless one begins another; of others, all may match."""
    words = [_word(branch) for branch in branches]
    plain = [word for word in words if word is not None]
    if len(plain) < len(words):
        return sum(_ways(branch) for branch in branches)
    return max(sum(word[: len(other)] == other for other in plain) for word in plain)


def _word(nodes: _Nodes) -> tuple[int, ...] | None:
    """The characters of a plain word; None for anything else."""
    items = [(str(op), argument) for op, argument in nodes]
    if any(op != "LITERAL" for op, _ in items):
        return None
    return tuple(argument for _, argument in items)


def _repeat_ways(least: int, most: int, body: _Nodes) -> int:
    inner = _ways(body)
    if int(most) <= 1:
        return inner + (1 - least)
    if inner > 1:
        raise PatternError("repeats a part that can match in several ways")
    if int(least) > _PATH_CHARS:
        raise PatternError(f"repeats more than {_PATH_CHARS} times")
    return min(int(most), _PATH_CHARS) - int(least) + 1
