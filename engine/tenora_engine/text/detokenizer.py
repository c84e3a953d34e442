"""Text from token ids as they come: whole characters only, and nothing of a stop string. Knows
bytes and strings; neither models nor requests."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec

from tenora_engine.text.stop_patterns import StopPattern


class TextDelta(msgspec.Struct, frozen=True):
    """What one `push` or `flush` adds to the text.

    `stopped` is the stop string that was met, or the pattern (the text has all that it matched);
    nothing may be pushed after it.
    `consumed_tokens` counts all tokens pushed so far, up to and with the one that completed the
    stop string: what the caller passes to `EngineClient.abort(output_tokens=...)`. `offsets`, where
    they are wanted, say where in the text each token of this `push` begins, in characters: one that
    is part of a character where that will stand. Of what a stop string takes away they lie beyond
    the text's end.
    """

    text: str
    stopped: str | None
    consumed_tokens: int
    offsets: tuple[int, ...] = ()


class TokenOffsets:
    """Where each token of one sequence begins in its text, in characters. Tokens that share a
    character all begin where it stands. O(1) per token."""

    def __init__(self, token_bytes: Callable[[int], bytes], length: int = 0) -> None:
        """`length`: characters that stand before the first of them."""
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._length = length

    def place(self, token_id: int) -> int:
        """Of the next token."""
        offset = self._length
        self._length += len(self._decoder.decode(self._token_bytes(token_id)))
        return offset

    def end(self) -> int:
        """The length of the text, in which an unfinished character is U+FFFD."""
        self._length += len(self._decoder.decode(b"", final=True))
        return self._length


class _Beginning:
    """How long a beginning of one stop string a text ends with, in steps that grow with the text
    alone: by the borders of the stop string (Knuth, Morris and Pratt), found as far as they are
    needed."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._borders = [0, 0]  # of its first 0, 1, ... characters
        self._length = 0

    def after(self, new: str) -> int:
        """Go on by this text; the length is less than that of the whole stop string."""
        stop, length, at = self._stop, self._length, 0
        while at < len(new):
            if not length:  # nearly always, and there may be many stop strings
                at = new.find(stop[0], at)
                if at < 0:
                    break
            length, at = self._longer(length, new[at]), at + 1
            if length == len(stop):  # one that does not count: the text has too few tokens
                length = self._border(length)
        self._length = length
        return length

    def _longer(self, length: int, character: str) -> int:
        while length and self._stop[length] != character:
            length = self._border(length)
        return length + (self._stop[length] == character)

    def _border(self, length: int) -> int:
        """The longest beginning of the first characters that is their end, too, and shorter."""
        borders = self._borders
        for known in range(len(borders), length + 1):
            borders.append(self._longer(borders[known - 1], self._stop[known - 1]))
        return borders[length]


class IncrementalDetokenizer:
    """Made by `TextProcessor.detokenizer`. One for each sequence; O(1) per token. A stop string
    that is complete within the first `min_tokens` tokens does not count."""

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        offsets: bool = False,
        patterns: Sequence[StopPattern] = (),
    ) -> None:
        if any(not text for text in stop):
            raise ValueError("a stop string must not be empty")
        self._token_bytes = token_bytes
        self._stop = tuple(stop)
        self._beginnings = [_Beginning(text) for text in self._stop]
        self._searches = [pattern.begin() for pattern in patterns]
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # decoded, but it could be the beginning of a stop string
        self._consumed = 0
        self._tells_offsets = offsets
        self._length = 0  # characters decoded
        self._stopped: str | None = None

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Add tokens in order. What comes after a stop string is not consumed."""
        if (
            not self._stop and not self._searches and not self._tells_offsets
        ):  # nothing is held back, and all of them are one text
            self._consumed += len(token_ids)
            new = b"".join(map(self._token_bytes, token_ids))
            return TextDelta(self._decoded(new), None, self._consumed)
        out: list[str] = []
        offsets: list[int] = []
        for token_id in token_ids:
            if self._has_stopped():
                break
            self._consumed += 1
            new = self._token_bytes(token_id)
            if self._tells_offsets:
                offsets.append(self._offset(new))
            decoded = self._decoded(new)
            self._length += len(decoded)
            out.append(self._release(decoded))
        return TextDelta("".join(out), self._stopped, self._consumed, tuple(offsets))

    def flush(self) -> TextDelta:
        """The sequence has ended: give what was held back. An unfinished character becomes U+FFFD,
        as it does in `TextProcessor.decode`."""
        if self._has_stopped():
            return TextDelta("", self._stopped, self._consumed)
        text = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return TextDelta(text, self._stopped, self._consumed)

    def _decoded(self, new: bytes) -> str:
        if new.isascii() and not self._decoder.buffer:  # nearly always, and three times as fast
            return new.decode("ascii")
        return self._decoder.decode(new)

    def _offset(self, new: bytes) -> int:
        """Where the text of these bytes begins: behind U+FFFD where they do not go on with the
        unfinished character before them."""
        before = self._decoder.buffer
        if before and new:
            try:
                codecs.getincrementaldecoder("utf-8")().decode(before + new[:1])
            except UnicodeDecodeError:
                return self._length + 1
        return self._length

    def _has_stopped(self) -> bool:
        return self._stopped is not None

    def _release(self, new: str) -> str:
        matched = self._first_match(new) if self._searches else None
        if matched is not None:
            new = new[: matched[0]]
        if not self._stop and matched is None:
            return new
        text = self._held + new
        found = None
        if self._consumed > self._min_tokens:
            found = self._first_stop(text, len(self._held))
        if found is not None:
            start, stop = found
            self._stopped = stop
            self._held = ""
            return text[: start + len(stop)] if self._include_stop else text[:start]
        if matched is not None:
            self._stopped, self._held = matched[1], ""
            return text
        keep = max(beginning.after(new) for beginning in self._beginnings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _first_match(self, new: str) -> tuple[int, str] | None:
        """Up to where, and of which pattern; of several ending there, the first."""
        ends = [(search.end(new), search.text) for search in self._searches]
        if self._consumed <= self._min_tokens:
            return None
        found = [(end, text) for end, text in ends if end is not None]
        return min(found, key=itemgetter(0), default=None)

    def _first_stop(self, text: str, known: int) -> tuple[int, str] | None:
        """The stop string that is complete first; of several ending there, the longest. One that
        lies in the first `known` characters came too early to count."""
        hits = [
            (position + len(stop), position, stop)
            for stop in self._stop
            if (position := text.find(stop, max(known - len(stop) + 1, 0))) >= 0
        ]
        if not hits:
            return None
        _, position, stop = min(hits)
        return position, stop
