"""How measures of one time are put together: numbers and lists added, largest kept, counts added by
name. It knows the measures' names, no rows' keys."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any


def merge(row: object, measures: Mapping[str, Any]) -> None:
    """Add measures to a row of `tables`, by their names."""
    for name, more in measures.items():
        setattr(row, name, merged(name, getattr(row, name), more))


def merged(name: str, own: Any, more: Any) -> Any:
    """Values are replaced and never changed in place: so the session sees it."""
    if own is None:
        return more
    if name.endswith("_max"):
        return max(own, more)
    if isinstance(own, dict):
        return {key: own.get(key, 0) + more.get(key, 0) for key in own | more}
    if isinstance(own, list):
        return [left + right for left, right in zip_longest(own, more, fillvalue=0)]
    return own + more
