"""What a URL in a setting has to be. It reads them as those will that connect, whose own errors
would repeat a part of what they cannot read: perhaps a password."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_ODD = re.compile(r"[^!-~]|[?#\\]")
"""What `urlsplit` leaves out, or browsers and servers read in different ways."""


def address_of(url: str) -> SplitResult | None:
    """The parts of an http address that has a host, perhaps a port and a path, and nothing else;
    None: it is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    host = f"[{host}]" if ":" in host else host
    is_whole = host and parts.netloc.lower() == (host if port is None else f"{host}:{port}")
    return (
        parts if is_whole and parts.scheme in ("http", "https") and not _ODD.search(url) else None
    )


def is_safe(url: str) -> bool:
    """Whether what is sent there is encrypted, or stays on this machine."""
    parts = address_of(url)
    if parts is None:
        return False
    return parts.scheme == "https" or parts.hostname in _THIS_MACHINE


def names_a_server(url: str, schemes: tuple[str, ...]) -> bool:
    """Whether a driver reads it as a server of one of these schemes, all of it."""
    # Imported late: a supervisor, which lives as long as the platform, has no use for them.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = urlsplit(url)
        if parts.scheme.partition("+")[0] not in schemes:
            return False
        if parts.scheme in ("redis", "rediss"):
            return (parts.port or 1) > 0 and "@" not in parts.path and not parts.fragment
        if parts.scheme != "unix":
            return "@" not in (make_url(url).host or "")
    except (ValueError, ArgumentError):
        return False
    return True
