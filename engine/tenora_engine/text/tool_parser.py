"""Calls of tools in what a model writes, as it comes: each piece of text gives the content and the
parts of calls that are certain by then. Put together they are the same however the text is cut."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Literal

import msgspec

from tenora_engine.text.json_scan import SPACE, JsonScan
from tenora_engine.text.tool_formats import ToolFormat

Waiting = Generator[None]
"""Goes on when there is more text, or when it is known that there will be none."""


class ToolCallStart(msgspec.Struct, frozen=True):
    """A call of this tool begins; its arguments follow."""

    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """More of the latest call's arguments, character by character as the model wrote them. A call
    whose last piece does not come was cut off."""

    text: str
    is_last: bool


Said = str | ToolCallStart | ToolCallArguments


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class ToolParser:
    """For one answer. A call is one as soon as it has named one of the tools and begun an object of
    arguments; these are given as they come, and end where their brackets do. In arguments that are
    no JSON, the form's closing mark or the end of the answer may be what ends them. Whatever else
    looks like a call is content, and none of it is lost. Space around calls is no content: it is
    given with the text that follows it, if any does. Where calls are not `parallel`, nothing is
    read behind the first. Where one is `forced`, what is cut off before its arguments is no
    content either: nothing, as at OpenAI."""

    def __init__(
        self,
        form: ToolFormat,
        tools: Collection[str],
        parallel: bool = True,
        forced: bool = False,
    ) -> None:
        self._form = form
        self._tools = tools
        self._parallel = parallel
        self._forced = forced
        self._rest = ""  # not given yet
        self._final = False  # `_rest` is the answer's end
        self._made: list[Said] = []
        self._space = ""  # given with the text behind it
        self._said = False  # any text
        self._called = False
        self._behind_call = False  # nothing but space since
        self._ended = False
        self._reading = self._read()

    def push(self, text: str) -> list[Said]:
        """Content and calls in order."""
        if not self._ended:
            self._rest += text
            next(self._reading, None)
        made, self._made = self._made, []
        return made

    def finish(self) -> list[Said]:
        """The answer has ended: what was held back."""
        self._final = True
        made = self.push("")
        if self._space and not self._behind_call:
            made.append(self._space)
        return made

    def _read(self) -> Waiting:
        while not self._ended:
            start, mark = self._find_opening()
            if mark is not None:
                self._say(start)
                yield from self._read_calls(len(mark))
                continue
            keep = self._possible_opening()
            self._say(len(self._rest) - keep)
            if self._final:
                self._end_early() if keep and self._forced else self._say(keep)
                return
            yield

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
        return SPACE + self._form.separator if self._behind_call else SPACE

    def _say(self, length: int) -> None:
        """So much of what is not given yet is content."""
        text = self._space + self._taken(length)
        shown = text.rstrip(SPACE)
        if self._behind_call and not shown.strip(self._filler):
            shown = ""
        self._space = text[len(shown) :]
        if shown:
            self._said, self._behind_call = True, False
            self._made.append(shown)

    def _taken(self, length: int) -> str:
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def _read_calls(self, mark: int) -> Waiting:
        """Off the front: an object, or a list of them, behind a mark of this length. If no call
        begins there, the mark is text, and what follows is read as such."""
        at = yield from self._past_space(mark)
        is_list = self._rest.startswith("[", at)
        if is_list:
            at = yield from self._past_space(at + 1)
            if self._rest.startswith("]", at):  # of no calls
                self._taken(at + 1)
                self._behind_call = True
                yield from self._read_closing()
                return
        found = yield from self._read_call(at)
        if found == "text":
            self._say(max(mark, 1))
        elif found == "cut":
            self._end_early() if self._forced else self._say(max(mark, 1))
        while found == "call" and is_list and not self._ended:
            at = yield from self._past_space(0)
            if not self._rest.startswith(",", at):
                self._taken(at + 1 if self._rest.startswith("]", at) else 0)
                break
            at = yield from self._past_space(at + 1)
            found = yield from self._read_call(at)
            if found == "cut" and self._forced:
                self._end_early()
        if self._behind_call and not self._ended:
            yield from self._read_closing()

    def _read_call(self, at: int) -> Generator[None, None, Literal["call", "text", "cut"]]:
        """The object at `at`, if it is a call. One that has its name first is given as it comes."""
        if not self._rest.startswith("{", at):
            return "cut" if at == len(self._rest) else "text"
        scan, brackets = JsonScan(at), 0
        while not brackets or scan.depth:
            if scan.to_bracket(self._rest):
                brackets += 1
                if brackets == 2 and self._rest[scan.at - 1] == "{":
                    begun = self._call_of(self._rest[at : scan.at - 1] + "{}}")
                    if begun is not None and begun[1] == "{}":
                        self._start(begun[0])
                        self._taken(scan.at - 1)
                        yield from self._read_arguments()
                        return "call"
            elif scan.broken or self._final:
                return "text" if scan.broken else "cut"
            else:
                yield
        call = self._call_of(self._rest[at : scan.at])
        if call is None:
            return "text"
        self._taken(scan.at)
        self._start(call[0])
        self._give(call[1], is_last=True)
        return "call"

    def _call_of(self, written: str) -> tuple[str, str] | None:
        """The name and the arguments; None where it is anything but a call of these tools."""
        try:
            read = msgspec.json.decode(written, type=_Written)
            given = [
                bytes(raw)
                for raw in (read.arguments, read.parameters)
                if isinstance(raw, msgspec.Raw)
            ]
            if read.name not in self._tools or len(given) != 1:
                return None
            msgspec.json.decode(given[0], type=dict[str, object])
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None
        return read.name, given[0].decode().strip(SPACE)

    def _start(self, name: str) -> None:
        self._called = self._behind_call = True
        self._made.append(ToolCallStart(name))

    def _give(self, text: str, *, is_last: bool) -> None:
        if text or is_last:
            self._made.append(ToolCallArguments(text, is_last))
        self._ended = is_last and not self._parallel

    def _read_arguments(self) -> Waiting:
        """Those off the front, and the rest of their call."""
        scan, closing = JsonScan(), self._form.closing
        while True:
            bracket = scan.to_bracket(self._rest)
            behind = self._rest[scan.at : scan.at + len(closing)] if scan.broken else ""
            if (bracket and not scan.depth) or (behind and behind == closing):
                break
            if bracket:
                continue
            if scan.broken and (self._final or not behind or not closing.startswith(behind)):
                scan.pass_over()
                continue
            self._give(self._taken(scan.at), is_last=False)
            scan.at = 0
            if self._final:
                return
            yield
        self._give(self._taken(scan.at), is_last=True)
        if not scan.depth and not self._ended:
            yield from self._read_to_end_of_call()

    def _read_to_end_of_call(self) -> Waiting:
        """What it has behind its arguments is left out; if it does not end, that is text."""
        at = yield from self._past_space(0)
        scan = JsonScan(at, depth=1)
        while scan.depth and self._rest.startswith((",", "}"), at):
            if scan.to_bracket(self._rest):
                continue
            if scan.broken or self._final:
                return
            yield
        if not scan.depth:
            self._taken(scan.at)

    def _read_closing(self) -> Waiting:
        at, closing = (yield from self._past_space(0)), self._form.closing
        while len(behind := self._rest[at : at + len(closing)]) < len(closing):
            if self._final or not closing.startswith(behind):
                return
            yield
        if behind == closing:
            self._taken(at + len(closing))

    def _past_space(self, at: int) -> Generator[None, None, int]:
        """Where the first letter behind `at` is; the end if there will be none."""
        while True:
            at = len(self._rest) - len(self._rest[at:].lstrip(SPACE))
            if at < len(self._rest) or self._final:
                return at
            yield

    def _end_early(self) -> None:
        """A forced call was cut off before its arguments."""
        self._rest = ""
