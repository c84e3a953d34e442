"""Inbox: commands that wait for the engine's thread, in turns of those who sent them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from tenora_engine.errors import QueueFullError

if TYPE_CHECKING:
    from tenora_engine.engine import Engine

INBOX_LIMIT = 65_536
"""Commands that may wait between two steps. Each sender has a fair part of them: when it is full,
who has more than this over the number of senders is refused."""

NOBODY = ""
"""Sends what no tenant sends, in a line of its own."""

ORDERED = "\0ordered"
"""The line of what comes after everything that came before it. It waits without keeping the others
from their turns."""


class Command(NamedTuple):
    """What is carried out, and where its result goes."""

    carry_out: Callable[[Engine], Any]
    future: Future[Any]
    number: int


class Inbox:
    """A line for each sender, whose commands stay in order; the lines take turns (round robin), so
    that one sender's flood takes another's next command one turn. Not safe for threads."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Command]] = OrderedDict()  # by turn
        self._size = 0
        self._number = 0

    def __len__(self) -> int:
        return self._size

    def push(
        self,
        carry_out: Callable[[Engine], Any],
        future: Future[Any],
        sender: str = NOBODY,
        *,
        is_ordered: bool = False,
    ) -> None:
        """`is_ordered`: only after everything that came before it, whoever sent that. Raises
        QueueFullError, and nothing changed."""
        if is_ordered:
            sender = ORDERED
        line = self._lines.get(sender)
        if self._size >= INBOX_LIMIT:
            senders = len(self._lines) + (line is None)
            if line is not None and len(line) >= INBOX_LIMIT // senders:
                raise QueueFullError(
                    f"{len(line)} commands of this sender wait for the engine, of {INBOX_LIMIT} "
                    "that may wait in all; try again later"
                )
        if line is None:
            line = self._lines[sender] = deque()
        self._number += 1
        line.append(Command(carry_out, future, self._number))
        self._size += 1

    def pop(self) -> Command:
        """The next in turn. Raises KeyError when there is none. O(1); O(senders) while something
        that is ordered waits."""
        turns = iter(self._lines)
        sender = next(turns, None)
        if sender == ORDERED and not self._is_oldest(ORDERED):
            sender = next(turns)  # whose first is older, or another's
        if sender is None:
            raise KeyError("the inbox is empty")
        line = self._lines.pop(sender)
        command = line.popleft()
        self._size -= 1
        if line:
            self._lines[sender] = line
        return command

    def _is_oldest(self, sender: str) -> bool:
        number = self._lines[sender][0].number
        return all(line[0].number >= number for line in self._lines.values())
