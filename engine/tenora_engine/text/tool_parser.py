"""Calls of tools in what a model writes, as it comes: each piece of text gives the content and the
calls that are certain by then. It gives the same however the text is cut."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tenora_engine.text.tool_formats import ToolFormat

_SPACE = " \t\r\n"
_OUTSIDE_STRINGS = frozenset(_SPACE + '{}[]:,"+-.0123456789eEtrufalsn')


class ToolCallText(msgspec.Struct, frozen=True):
    """One call. `arguments` is a JSON object, character by character as the model wrote it."""

    name: str
    arguments: str


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class ToolParser:
    """For one answer. A call is given when its JSON is complete and names one of the tools with an
    object of arguments; whatever else looks like one is content, and none of it is lost. Space
    around calls is no content: it is given with the text that follows it, if any does. Where calls
    are not `parallel`, nothing is read behind the first."""

    def __init__(self, form: ToolFormat, tools: Collection[str], parallel: bool = True) -> None:
        self._form = form
        self._tools = tools
        self._parallel = parallel
        self._rest = ""  # not read yet, or from a call's opening on
        self._call: _JsonEnd | None = None  # where `_rest` is a call
        self._space = ""  # given with the text behind it
        self._said = False  # any text
        self._behind_call = False  # nothing but space since
        self._may_close = False
        self._ended = False

    def push(self, text: str) -> list[str | ToolCallText]:
        """Content and calls in order."""
        made: list[str | ToolCallText] = []
        if not self._ended:
            self._rest += text
            while self._read(made, final=False):
                continue
        return made

    def finish(self) -> list[str | ToolCallText]:
        """The answer has ended: what was held back. A call that is not complete is content."""
        made: list[str | ToolCallText] = []
        if self._ended:
            return made
        while self._read(made, final=True):
            continue
        if self._space and not self._behind_call:
            made.append(self._space)
        return made

    def _read(self, made: list[str | ToolCallText], *, final: bool) -> bool:
        """One thing off the front; False if more text is needed for the next."""
        if self._call is not None:
            return self._read_call(self._call, made, final)
        if self._may_close:
            return self._read_closing(final)
        start, mark = self._find_opening()
        if mark is None:
            keep = 0 if final else self._possible_opening()
            end = len(self._rest) - keep
            self._say(self._rest[:end], made)
            self._rest = self._rest[end:]
            return False
        self._say(self._rest[:start], made)
        self._rest = self._rest[start:]
        self._call = _JsonEnd(len(mark))
        return True

    def _find_opening(self) -> tuple[int, str | None]:
        """Where the next call may begin, and the mark that says so; None for no mark there."""
        if self._form.bare and not self._said:
            begins = self._rest.lstrip(self._filler)
            if begins.startswith("{"):
                return len(self._rest) - len(begins), ""
        start = self._rest.find(self._form.opening)
        return start, None if start < 0 else self._form.opening

    def _possible_opening(self) -> int:
        """Length of the longest end of `_rest` that could begin an opening."""
        opening = self._form.opening
        for length in range(min(len(opening) - 1, len(self._rest)), 0, -1):
            if opening.startswith(self._rest[-length:]):
                return length
        return 0

    @property
    def _filler(self) -> str:
        return _SPACE + self._form.separator if self._behind_call else _SPACE

    def _say(self, text: str, made: list[str | ToolCallText]) -> None:
        text = self._space + text
        shown = text.rstrip(_SPACE)
        if self._behind_call and not shown.strip(self._filler):
            shown = ""
        self._space = text[len(shown) :]
        if shown:
            self._said, self._behind_call = True, False
            made.append(shown)

    def _read_call(self, end: _JsonEnd, made: list[str | ToolCallText], final: bool) -> bool:
        stop = end.find(self._rest)
        if stop is None and not end.broken and not final:
            return False
        calls = None if stop is None else self._calls_in(self._rest[end.start : stop])
        self._call = None
        if calls is None or stop is None:  # its opening is text, and what follows is read as such
            broken = max(end.start, 1)
            self._say(self._rest[:broken], made)
            self._rest = self._rest[broken:]
            return True
        self._rest = self._rest[stop:]
        self._behind_call = True
        self._may_close = bool(self._form.closing)
        self._ended = bool(calls) and not self._parallel
        made += calls if self._parallel else calls[:1]
        return not self._ended

    def _calls_in(self, written: str) -> list[ToolCallText] | None:
        """None where it is anything but calls of these tools."""
        try:
            read = msgspec.json.decode(written, type=list[_Written] | _Written)
            calls = [self._call_of(each) for each in (read if isinstance(read, list) else [read])]
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None
        return None if None in calls else [call for call in calls if call is not None]

    def _call_of(self, written: _Written) -> ToolCallText | None:
        given = [
            bytes(raw)
            for raw in (written.arguments, written.parameters)
            if isinstance(raw, msgspec.Raw)
        ]
        if written.name not in self._tools or len(given) != 1:
            return None
        msgspec.json.decode(given[0], type=dict[str, object])
        return ToolCallText(written.name, given[0].decode().strip(_SPACE))

    def _read_closing(self, final: bool) -> bool:
        behind = self._rest.lstrip(_SPACE)
        closing = self._form.closing
        if behind.startswith(closing):
            self._rest = behind[len(closing) :]
        elif closing.startswith(behind) and not final:
            return False
        self._may_close = False
        return True


class _JsonEnd:
    """Finds where the JSON object or list ends that begins at `start`, behind space. What cannot be
    JSON breaks it at once, so that no text is read by more than three of them."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.broken = False
        self._at = start
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """The end, once `text` holds it."""
        while self._at < len(text) and not self.broken:
            letter = text[self._at]
            self._at += 1
            if self._in_string:
                self._read_in_string(letter)
            elif letter in "]}":
                self._depth -= 1
                if self._depth <= 0:
                    self.broken = self._depth < 0
                    return None if self.broken else self._at
            elif letter in "[{":
                self._depth += 1
            else:
                self._in_string = letter == '"'
                allowed = _OUTSIDE_STRINGS if self._depth else _SPACE
                self.broken = letter not in allowed
        return None

    def _read_in_string(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            self._in_string = False
