"""Ids that sort by time and that nobody can guess: `<kind>_<26 characters of Crockford's base 32>`.
The same form as the platform's, which names requests."""

from __future__ import annotations

import secrets

from tenora_engine.clocks import wall_ms

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(kind: str) -> str:
    """48 bits of milliseconds, then 80 random bits."""
    value = (wall_ms() << 80) | secrets.randbits(80)
    return f"{kind}_{''.join(_ALPHABET[value >> shift & 31] for shift in range(125, -5, -5))}"
