"""Epochs: random numbers in Redis that say up to when what is cached there is good. Knows neither
the caches nor their keys."""

from __future__ import annotations

import secrets

_LENGTH_MAX = 64


def new_epoch() -> str:
    """Unlike any before. Set, not counted up: whatever lies there is replaced."""
    return str(secrets.randbits(60))


def epoch_of(raw: bytes | str | None) -> bytes:
    """What Redis has under an epoch's key, whatever it is; the first where there is none."""
    found = raw.encode() if isinstance(raw, str) else raw
    return found[:_LENGTH_MAX] if found else b"0"
