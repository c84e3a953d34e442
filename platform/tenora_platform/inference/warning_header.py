"""What of a body has no effect, told in the header `x-tenora-warning`. It may repeat what clients
wrote, of which a header can hold visible ASCII alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tenora_platform.inference.session import InferenceSession

HEADER = "x-tenora-warning"
CHARACTERS_MAX = 2048
_NOT_VISIBLE = re.compile(r"[^\x20-\x7e]")


def warn(session: InferenceSession, words: Sequence[str]) -> None:
    """Beside what is said there already."""
    if words:
        said = session.headers.get(HEADER)
        text = "; ".join([*([said] if said else []), *words])
        session.headers[HEADER] = _NOT_VISIBLE.sub("?", text)[:CHARACTERS_MAX]
