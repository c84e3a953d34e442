"""Server-sent events as bytes: names, ids, and what keeps a connection open. It knows no topic."""

from __future__ import annotations

import time

import msgspec

RETRY_MS = 2000
"""After which a browser connects again by itself."""
PING_S = 5.0


def event(name: str, payload: object) -> bytes:
    """One event, whose id is the time in milliseconds. msgspec's JSON has no raw newlines, so one
    line is enough."""
    data = msgspec.json.encode(payload)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (time.time() * 1000, name.encode(), data)


def hello() -> bytes:
    """The first of a connection: the clock here, and how often something is sent at least."""
    return b"retry: %d\n" % RETRY_MS + event("hello", {"at": time.time(), "interval": PING_S})


def ping() -> bytes:
    return event("ping", {"at": time.time()})


def change(topics: set[str]) -> bytes:
    """What a client that shows any of it asks for again."""
    return event("change", {"at": time.time(), "topics": sorted(topics)})


def end(code: str, message: str) -> bytes:
    """The last: why the server ends it."""
    return event("end", {"code": code, "message": message})
