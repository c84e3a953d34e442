"""JsonText: how far a text is in being JSON, byte by byte: what is open, and what may be written
next. It knows no schema; what it is fed is JSON's beginning."""

from __future__ import annotations

import re
from enum import Enum

_PLAIN_END = re.compile(rb'["\\]')
_SPACE = b" \t\n\r"
STRING_KEPT_MAX = 256  # bytes, of its beginning


class Place(Enum):
    """Where in the text the next byte stands."""

    VALUE = "value"  # one must come
    FIRST_ITEM = "first item"  # or the end of its array
    FIRST_KEY = "first key"  # or the end of its object
    KEY = "key"
    IN_KEY = "in key"
    COLON = "colon"
    IN_STRING = "in string"
    IN_SCALAR = "in scalar"  # a number or a literal, which may be whole
    AFTER_VALUE = "after value"


class JsonText:
    """A text of which only the end is kept: `opened` brackets, the `string` that is being written,
    how many members, items and brackets have `begun`, and how many brackets were open at the
    `deepest` of what was fed last."""

    def __init__(self) -> None:
        self.place = Place.VALUE
        self.opened = bytearray()
        self.string = bytearray()
        self.begun = 0
        self.deepest = 0
        self._escapes = False

    def copy(self) -> JsonText:
        other = JsonText()
        other.place, other.begun, other._escapes = self.place, self.begun, self._escapes
        other.opened, other.string = self.opened.copy(), self.string.copy()
        return other

    @property
    def depth(self) -> int:
        return len(self.opened)

    @property
    def is_whole(self) -> bool:
        return self.place is Place.AFTER_VALUE and not self.opened

    @property
    def closer(self) -> bytes:
        """The bracket that ends what was opened last; nothing where all are closed."""
        if not self.opened:
            return b""
        return b"}" if self.opened[-1] == ord("{") else b"]"

    def feed(self, text: bytes) -> None:
        """Go on by these bytes."""
        at, self.deepest = 0, len(self.opened)
        while at < len(text):
            if self.place in (Place.IN_STRING, Place.IN_KEY):
                at = self._in_string(text, at)
            else:
                self._outside(text[at])
                at += 1

    def _in_string(self, text: bytes, at: int) -> int:
        """Up to the end of the string, or to what escapes the next byte; returns where that is."""
        if self._escapes:
            self._escapes = False
            self._keep(text[at : at + 1])
            return at + 1
        found = _PLAIN_END.search(text, at)
        if found is None:
            self._keep(text[at:])
            return len(text)
        end = found.end()
        self._keep(text[at : end - 1])
        if text[end - 1] == ord("\\"):
            self._escapes = True
            self._keep(b"\\")
        else:
            self.place = Place.COLON if self.place is Place.IN_KEY else Place.AFTER_VALUE
        return end

    def _keep(self, written: bytes) -> None:
        self.string += written[: STRING_KEPT_MAX - len(self.string)]

    def _outside(self, byte: int) -> None:
        if byte in _SPACE:
            if self.place is Place.IN_SCALAR:
                self.place = Place.AFTER_VALUE
        elif byte in b"{[":
            self.opened.append(byte)
            self.deepest = max(self.deepest, len(self.opened))
            self.begun += 1
            self.place = Place.FIRST_KEY if byte == ord("{") else Place.FIRST_ITEM
        elif byte in b"}]":
            del self.opened[-1:]
            self.place = Place.AFTER_VALUE
        elif byte == ord(","):
            self.begun += 1
            self.place = Place.KEY if self.closer == b"}" else Place.VALUE
        elif byte == ord(":"):
            self.place = Place.VALUE
        elif byte == ord('"'):
            self._open_string()
        else:
            self.place = Place.IN_SCALAR

    def _open_string(self) -> None:
        self.string = bytearray()
        if self.place in (Place.KEY, Place.FIRST_KEY):
            self.begun += 1
            self.place = Place.IN_KEY
        else:
            self.place = Place.IN_STRING
