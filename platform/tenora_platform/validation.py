"""What pydantic refuses, in plain words: what the value must be, and what was given. It knows
neither HTTP nor the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tenora_platform.plain_text import WORDS

SHOWN_CHARACTERS = 60
"""Of a value that is repeated in an error."""

_TYPES = {
    "string": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "list": "an array",
    "tuple": "an array",
    "dict": "an object",
    "model": "an object",
    "decimal": "a decimal number, such as 12.50",
    "datetime": "a date and time, such as 2026-11-01T00:00:00Z",
    "date": "a date, such as 2026-11-01",
    "bytes": "a string",
    "url": "a URL",
}
"""What a value must be, by the part of an error's type that names what was expected."""
_BY_TYPE = {
    "missing": "is required",
    "extra_forbidden": "is not a known field; check the spelling, or leave it out",
    "none_required": "must be null",
    "finite_number": "must be a finite number",
    "int_from_float": "must be an integer",
    "date_from_datetime_inexact": "must be a date, such as 2026-11-01",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be greater than or equal to {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be less than or equal to {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "bytes_too_long": "must have at most {max_length} bytes",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_unicode": "must be text in UTF-8",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_invalid": "must have a {discriminator} of {expected_tags}",
    "union_tag_not_found": "must have a {discriminator}",
    "decimal_max_digits": "must have at most {max_digits} digits",
    "decimal_max_places": "must have at most {decimal_places} decimal places",
    "decimal_whole_digits": "must have at most {whole_digits} digits before the decimal point",
}
_WITHOUT_VALUE = ("missing", "extra_forbidden", "string_unicode")


def in_words(problem: Mapping[str, Any]) -> str:
    """What is wrong with a value, to be read after its name: `must be an integer, not "ten"`. The
    words of our own validators are left as they are, and of a problem without its input, what was
    given is not said."""
    kind = str(problem["type"])
    own = str(problem["msg"]).removeprefix("Value error, ")
    given = problem.get("ctx") or {}
    words = WORDS.get(given.get("pattern", "")) or _BY_TYPE.get(kind) or _of_type(kind)
    if words is None:
        return own
    context = {
        name: f"{value:g}" if isinstance(value, float) else value for name, value in given.items()
    }
    try:
        said = words.format_map(context)
    except KeyError:  # raised by a validator of our own, which has other numbers
        return own
    for many, one in ((" 1 characters", " 1 character"), (" 1 entries", " 1 entry")):
        said = said.replace(many, one)
    if kind in _WITHOUT_VALUE or "input" not in problem:
        return said
    return f"{said}, not {_shown(problem.get('input'), is_length='too_' in kind)}"


def _of_type(kind: str) -> str | None:
    """Words for `int_type`, `float_parsing`, `datetime_from_date_parsing` and their like."""
    if not kind.endswith(("_type", "_parsing", "_size")) and not kind.startswith("date"):
        return None
    wanted = _TYPES.get(kind.split("_")[0])
    return wanted and f"must be {wanted}"


def _shown(value: object, *, is_length: bool) -> str:
    """A value as JSON, cut off where it is long; or how many characters or entries it has."""
    if is_length and isinstance(value, str | list | tuple | Mapping):
        return str(len(value))
    if isinstance(value, list | tuple):
        return "an array"
    if isinstance(value, Mapping):
        return "an object"
    if not (value is None or isinstance(value, str | bool | int | float)):
        return f"a {type(value).__name__}"
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}..."
