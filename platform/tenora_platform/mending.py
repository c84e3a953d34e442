"""Texts on their way into the database, made such that PostgreSQL takes them: what work beside
requests stores comes from files, templates and models, and a row that is refused is refused for
ever. Requests' own sessions do not mend: what a client sends is refused with its name."""

from __future__ import annotations

import math
from typing import Any

import structlog
from psycopg.types.json import Json, Jsonb

REPLACEMENT = "\ufffd"
_log = structlog.get_logger(__name__)


def mended_parameters(statement: str, parameters: Any) -> Any:
    """Those of a statement that writes, mended; of one that only reads, as they are."""
    if statement.lstrip()[:6].upper() == "SELECT":
        return parameters
    made = mended(parameters)
    if made is not parameters:
        _log.warning("text mended before it was stored", statement=statement.strip()[:60])
    return made


def mended(value: Any) -> Any:
    """The value itself where all of it can be stored; else a copy in which U+FFFD takes the place
    of NUL and of lone surrogates, and null, within JSON, of numbers that are none."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Json | Jsonb):
        inner = _finite(mended(value.obj))
        return value if inner is value.obj else type(value)(inner, value.dumps)
    if isinstance(value, dict):
        made = {mended(key): mended(item) for key, item in value.items()}
        same = all(a is b for a, b in zip(made.values(), value.values(), strict=False))
        return value if same and made.keys() == value.keys() else made
    if isinstance(value, list | tuple):
        items = [mended(item) for item in value]
        same = all(a is b for a, b in zip(items, value, strict=True))
        return value if same else type(value)(items)
    return value


def _text(value: str) -> str:
    if value.isascii():
        return value.replace("\0", REPLACEMENT) if "\0" in value else value
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode(errors="replace").decode()
    return value.replace("\0", REPLACEMENT) if "\0" in value else value


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        items = {key: _finite(item) for key, item in value.items()}
        return value if all(items[key] is value[key] for key in value) else items
    if isinstance(value, list | tuple):
        made = [_finite(item) for item in value]
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    return value
