"""Words that are not ours (a template's, a library's, a driver's), made fit to be shown and kept:
short, in one line, and nothing in them steers a terminal, a database or a page."""

from __future__ import annotations

FOREIGN_MAX = 300
"""Characters of somebody else's words in a message of ours."""
MESSAGE_MAX = 500
"""Characters of a whole message."""


def printable(words: object, most: int = FOREIGN_MAX) -> str:
    """Return at most `most` characters of it, each of which can be printed: a space takes the place
    of line ends, NUL, ESC, lone surrogates and marks of direction."""
    text = str(words)
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else " " for each in shown)
    return shown if len(text) <= most else f"{shown[: most - 3]}..."
