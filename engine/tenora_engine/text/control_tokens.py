"""Control tokens that a user has written out ("<|im_end|>") and that shall stay text, although the
chat template writes the same ones and means them. Knows strings, no tokenizer and no template."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class ControlTokens:
    """The written forms of one model's control tokens."""

    def __init__(self, names: Sequence[str]) -> None:
        longest_first = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def occur_in(self, value: Any) -> bool:
        """Whether any text in a JSON value, keys included, holds one."""
        return any(self._pattern.search(text) for text in _texts(value))

    def shield(self) -> Shield:
        return Shield(self._pattern)


class Shield:
    """Hides what users wrote from a template: `hide`, render, then `split`. A mark is made of ASCII
    that no template changes, with a number that nobody can guess."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._nonce = secrets.randbelow(10**18)
        self._mark = re.compile(rf"\(#{self._nonce}\.(\d+)#\)")
        self._hidden: list[str] = []

    def hide(self, value: Any) -> Any:
        """The same JSON value with a mark for each control token in its texts."""
        if isinstance(value, str):
            return self._pattern.sub(self._put_by, value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def split(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The rendered text in pieces: those between two control tokens of the template's in which
        something was hidden, with it put back (False), and all the rest (True)."""
        end = 0
        for start, stop in self._between_controls(rendered):
            if self._mark.search(rendered, start, stop):
                yield rendered[end:start], True
                yield self._put_back(rendered[start:stop]), False
                end = stop
        yield rendered[end:], True

    def _between_controls(self, rendered: str) -> Iterator[tuple[int, int]]:
        start = 0
        for match in self._pattern.finditer(rendered):
            yield start, match.start()
            start = match.end()
        yield start, len(rendered)

    def _put_by(self, match: re.Match[str]) -> str:
        self._hidden.append(match.group())
        return f"(#{self._nonce}.{len(self._hidden) - 1}#)"

    def _put_back(self, text: str) -> str:
        return self._mark.sub(lambda match: self._hidden[int(match.group(1))], text)


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
