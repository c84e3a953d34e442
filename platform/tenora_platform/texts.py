"""Whether a JSON value's texts can be written down at all: a lone surrogate, half of a character,
passes every JSON parser and then fails wherever the text is encoded. Knows JSON, not what it means.
"""

from __future__ import annotations

import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def lone_surrogate(value: Any) -> str | None:
    """Where the first text with a lone surrogate is, as `messages[0].content`, or None. "" is the
    value itself."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, each = waiting.pop()
        if isinstance(each, str):
            if _SURROGATE.search(each):
                return path
        elif isinstance(each, list):
            waiting += [(f"{path}[{place}]", item) for place, item in enumerate(each)][::-1]
        elif isinstance(each, dict):
            for key in each:
                if _SURROGATE.search(key):
                    return _member(path, key)
            waiting += [(_member(path, key), item) for key, item in each.items()][::-1]
    return None


def _member(path: str, key: str) -> str:
    shown = key.encode("utf-8", "backslashreplace").decode()
    return f"{path}.{shown}" if path else shown
