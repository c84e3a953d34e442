"""Where the brackets of JSON are in a text that is not complete yet. Each letter is read once."""

from __future__ import annotations

SPACE = " \t\r\n"
_OUTSIDE_STRINGS = frozenset(SPACE + ':,"+-.0123456789eEtrufalsn')


class JsonScan:
    """Reads on from `at`, inside `depth` brackets, which are only counted. What cannot be JSON
    there breaks it at once: it stays at that letter until it is told to pass over it."""

    def __init__(self, at: int = 0, depth: int = 0) -> None:
        self.at = at
        self.depth = depth
        self.broken = False
        self._in_string = False
        self._escaped = False

    def to_bracket(self, text: str) -> bool:
        """Reads behind the next bracket; False where `text` has none yet, or none before it
        breaks."""
        while self.at < len(text) and not self.broken:
            letter = text[self.at]
            if self._in_string:
                self._read_in_string(letter)
            elif letter in "[{":
                self.depth += 1
            elif letter in "]}":
                self.depth -= 1
            elif letter not in _OUTSIDE_STRINGS:
                self.broken = True
                return False
            else:
                self._in_string = letter == '"'
            self.at += 1
            if not self._in_string and letter in "[{]}":
                return True
        return False

    def pass_over(self) -> None:
        """Of the letter that broke it."""
        self.broken = False
        self.at += 1

    def _read_in_string(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            self._in_string = False
