"""JSON that ends: where the tokens that are left are just enough to close what is open, they are
used for that; and nothing is opened below the deepest level. A token of the model's that would
leave too few, or goes too deep, is exchanged for the next one of the shortest way to an end that
was found. Where none was found, the schema having more to ask, the text is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tenora_engine.grammar.hints import Hints
from tenora_engine.grammar.json_text import JsonText, Place

if TYPE_CHECKING:
    from tenora_engine.grammar.guide import Guide, Vocabulary

WAY_MAX = 512
"""Tokens of the longest way to an end that is looked for."""

MARGIN = 8
"""Tokens that may be left beyond a way that is known, when it is looked for again: what may be
written within a string or a number adds less."""

EFFORT_MAX, EFFORT_TOKENS = 1024, 16
"""Limit of all searches for one answer, in units of so many tokens (a unit takes some 0.1 ms)."""

MASKS_MAX = 4
"""Limit of one search where no usual token may come: each try takes 0.2 ms."""

NEAR_LEAST, NEAR_KEY = 64, 16
"""The last tokens of an answer, in which an end is looked for: so many, and more for each key that
its schema requires."""

_VALUES = (b"null", b"0", b'"', b"{", b"[", b"true", b"false")
_FILLERS = (b"0", b"a", b"A", b"-", b'"', b"n", b"e")


class JsonAnswer:
    """Closing of one sequence's JSON answer, kept beside its guide."""

    def __init__(self, guide: Guide, hints: Hints, *, closes: bool, max_depth: int) -> None:
        self._guide = guide
        self._hints = hints
        self._closes = closes
        self._max_depth = max(max_depth, hints.depth)
        self._near = min(NEAR_LEAST + NEAR_KEY * len(hints.keys), WAY_MAX)
        self._text = JsonText()
        self._way: list[int] | None = None  # to an end, from where the text is
        self._is_stale = True  # the way is of some place shortly before
        self._effort = EFFORT_MAX

    def kept(self, token_id: int, room: int) -> int:
        """The token that is to come where the model has chosen this one and `room` tokens are left,
        this one among them. The guide has not been advanced by it yet, but is to be."""
        if self._way and not self._is_stale and self._way[0] == token_id:
            return self._follow(self._way)
        after = self._text.copy()
        after.feed(self._guide.vocabulary.bytes_of(token_id))
        begins = after.begun > self._text.begun
        is_deep = begins and after.deepest > self._max_depth  # also within the token
        if not is_deep and not self._is_near(room, begins or self._chooses):
            self._text, self._is_stale = after, True
            return token_id
        later = self._search(after, token_id)
        if is_deep or later is None or len(later) >= room:
            way = self._search(self._text) if self._is_stale else self._way
            if way and (is_deep or len(way) <= room < len(way) + MARGIN or later is not None):
                return self._follow(way)
        self._text, self._way, self._is_stale = after, later, False
        return token_id

    @property
    def _chooses(self) -> bool:
        """Whether what is written may decide what else the schema asks for."""
        place = self._text.place
        is_key = place in (Place.IN_KEY, Place.KEY, Place.FIRST_KEY)
        return is_key or (place is Place.IN_STRING and bool(self._hints.values))

    def _is_near(self, room: int, may_jump: bool) -> bool:
        """Whether there may be too few tokens left for an end."""
        if not self._closes or room > self._near or self._effort <= 0:
            return False
        return may_jump or self._way is None or room <= len(self._way) + MARGIN

    def _follow(self, way: list[int]) -> int:
        self._text.feed(self._guide.vocabulary.bytes_of(way[0]))
        self._way, self._is_stale = way[1:], False
        return way[0]

    def _search(self, text: JsonText, *ahead: int) -> list[int] | None:
        """The way to an end from there, after these tokens."""
        way = self._guide.way(partial(find_way, text.copy(), self._hints), ahead)
        self._effort -= 1 + (WAY_MAX if way is None else len(way)) // EFFORT_TOKENS
        return way


def find_way(
    text: JsonText, hints: Hints, matcher: Any, vocabulary: Vocabulary
) -> list[int] | None:
    """Tokens after which the text is JSON and may end. Text and matcher are advanced by them."""
    way: list[int] = []
    masks = MASKS_MAX
    while not matcher.is_accepting():
        if matcher.is_error() or len(way) > WAY_MAX:
            return None
        tokens = _next_piece(text, hints, matcher, vocabulary)
        if not tokens and masks:
            tokens, masks = _any_token(matcher), masks - 1
        if not tokens or not matcher.consume_tokens(tokens):
            return None
        way += tokens
        text.feed(b"".join(map(vocabulary.bytes_of, tokens)))
    return way


def _next_piece(
    text: JsonText, hints: Hints, matcher: Any, vocabulary: Vocabulary
) -> list[int] | None:
    """Return the tokens of the piece that ends the answer soonest; None where no piece may come."""
    forced = list(matcher.compute_ff_tokens())
    if forced:
        return forced
    for piece in (*_pieces(text, hints), *_FILLERS):
        tokens = vocabulary.tokens_of(piece)
        if tokens and matcher.validate_tokens(tokens) == len(tokens):
            return tokens
    return None


def _any_token(matcher: Any) -> list[int]:
    """The first that may come; none where none may."""
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return [int(token) for token in np.flatnonzero(np.unpackbits(bits, bitorder="little"))[:1]]


def _pieces(text: JsonText, hints: Hints) -> Iterable[bytes]:
    """Return the pieces to try, the best first."""
    place, closer = text.place, text.closer
    if place is Place.IN_STRING:
        return b'"', *_rests(text.string, (each[1:] for each in hints.values if each[:1] == b'"'))
    if place is Place.IN_KEY:
        return *_rests(text.string, (key + b'":' for key in hints.keys)), b'"'
    if place is Place.COLON:
        return (b":",)
    if place is Place.KEY:
        return (b'"',)
    if place is Place.FIRST_KEY:
        return b"}", b'"'
    if place is Place.FIRST_ITEM:
        return b"]", *_VALUES, *hints.values
    if place is Place.VALUE:
        return *_VALUES, *hints.values
    return (closer, b",") if closer else ()


def _rests(written: bytearray, whole: Iterable[bytes]) -> Iterator[bytes]:
    """What is missing of those that have begun so."""
    return (each[len(written) :] for each in whole if each.startswith(written))
