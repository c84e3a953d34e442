"""Text that people give names and reasons in: without characters that hide, move a cursor or turn
the direction of what stands beside them. Joiners of letters stay, for some scripts and emoji need
them; a terminal of ours shows those as escapes."""

from __future__ import annotations

import re

_HIDDEN = (
    r"\x7f-\x9f"  # DEL and C1, which terminals obey as they do ESC
    r"\u00ad\u061c\u180e\u200b\u200e\u200f"
    r"\u2028-\u202e\u2060-\u206f"  # line ends, embeddings, overrides, isolates, invisible operators
    r"\ufeff\ufff9-\ufffb"
)
ONE_LINE = rf"^[^\x00-\x1f{_HIDDEN}]*$"
SEVERAL_LINES = rf"^[^\x00-\x09\x0b-\x1f{_HIDDEN}]*$"
WITHOUT_SPACES = rf"^[^\x00-\x20{_HIDDEN}]+$"
EMAIL = rf"^[^\s@\x00-\x20{_HIDDEN}]+@[^\s@\x00-\x20{_HIDDEN}]+$"

_BUT = "must not contain control characters, zero-width characters or marks of direction"
WORDS = {
    ONE_LINE: _BUT,
    SEVERAL_LINES: f"{_BUT}; newlines are allowed",
    WITHOUT_SPACES: f"{_BUT}, nor spaces, and must not be empty",
}
"""What each asks for."""
_ANY_HIDDEN = re.compile(rf"[\x00-\x1f{_HIDDEN}]")


def without_hidden(text: str) -> str:
    """What is left of a text that came from elsewhere."""
    return _ANY_HIDDEN.sub("", text)
