"""Words that say when they were made, so that whoever reads one knows how long it was under way.
Processes of one machine share the clock; nothing is known of engines or HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

UNIT_NS = 100_000
"""What one word stands for; the words go round in some seconds, longer than any is under way."""

_WORD = re.compile(r" [A-Za-z0-9]+")


class Stamps:
    """`words` in the order of time: a space and letters or digits each, so that a text of several
    can be taken apart."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._places = {word: place for place, word in enumerate(words)}

    def place_at(self, now_ns: int) -> int:
        """The place among the words of the one that stands for `now_ns` of the monotonic clock."""
        return now_ns // UNIT_NS % len(self._words)

    def word_at(self, now_ns: int) -> str:
        return self._words[self.place_at(now_ns)]

    def ages_ms(self, text: str, now_ns: int) -> list[float]:
        """How long ago each word of `text` was made. Raises KeyError for one that is no stamp."""
        places = [self._places[word] for word in _WORD.findall(text)]
        turn = len(self._words)
        return [(now_ns / UNIT_NS - place) % turn * UNIT_NS / 1e6 for place in places]


def stamp_tokens(texts: Mapping[int, str]) -> dict[int, str]:
    """Of a vocabulary, token id -> text, the tokens that can be stamps, each text once, by id."""
    ids = {text: token for token, text in sorted(texts.items()) if _WORD.fullmatch(text)}
    return {token: text for text, token in ids.items()}
