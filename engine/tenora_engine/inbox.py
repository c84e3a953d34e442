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
"""Commands that may wait between two steps. A sender has at most as many as there is room for then
(Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998), so
that who floods it leaves room to others."""

NOBODY = ""
"""Sends what no tenant sends, in a line of its own."""


class Command(NamedTuple):
    """What is carried out, and where its result goes."""

    carry_out: Callable[[Engine], Any]
    future: Future[Any]
    number: int
    sender: str
    namespace: str | None  # the submit of a request of it


class Inbox:
    """A line for each sender, whose commands stay in order; the lines take turns (round robin), so
    that one sender's flood takes another's next command one turn. All is O(1). Not safe for
    threads."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, OrderedDict[int, Command]] = OrderedDict()  # by turn
        self._submits: dict[str, OrderedDict[int, None]] = {}  # their numbers, by namespace
        self._later: dict[str, deque[Command]] = {}  # what waits for those
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
        namespace: str | None = None,
        is_bounded: bool = True,
    ) -> Command:
        """`namespace`: of the request that this submits. Raises QueueFullError, and nothing
        changed, if it `is_bounded` and its sender has as many here as there is room for."""
        if is_bounded:
            self._check_room(sender)
        command = self._made(carry_out, future, sender, namespace)
        if namespace is not None:
            self._submits.setdefault(namespace, OrderedDict())[command.number] = None
        self._line_up(command)
        return command

    def hold(self, namespace: str) -> int:
        """Keep back what is pushed after this for the namespace until `release`: a request of it is
        on its way. Returns what to release."""
        self._number += 1
        self._submits.setdefault(namespace, OrderedDict())[self._number] = None
        return self._number

    def release(self, namespace: str, number: int) -> None:
        self._taken_out(namespace, number)

    def push_after(
        self, namespace: str, carry_out: Callable[[Engine], Any], future: Future[Any]
    ) -> None:
        """Have it wait until every submit of the namespace that is here has been taken out, and
        every `hold` released, then for a turn of its own. It is never refused."""
        command = self._made(carry_out, future, f"\0{namespace}", None)
        if namespace in self._submits:
            self._later.setdefault(namespace, deque()).append(command)
        else:
            self._line_up(command)

    def replace(self, command: Command, carry_out: Callable[[Engine], Any]) -> bool:
        """Carry out something else in a command's stead, before all else of its sender. False, and
        nothing done, when it has been taken out."""
        line = self._lines.get(command.sender)
        if line is None or command.number not in line:
            return False
        line[command.number] = command._replace(carry_out=carry_out)
        line.move_to_end(command.number, last=False)
        return True

    def pop(self) -> Command:
        """The next in turn. Raises KeyError when there is none."""
        sender, line = self._lines.popitem(last=False)
        number, command = line.popitem(last=False)
        self._size -= 1
        if line:
            self._lines[sender] = line
        if command.namespace is not None:
            self._taken_out(command.namespace, number)
        return command

    def _check_room(self, sender: str) -> None:
        own = len(self._lines.get(sender, ()))
        if own >= INBOX_LIMIT - self._size:
            raise QueueFullError(
                f"{own} commands of this sender wait for the engine, and {self._size} in all, of "
                f"{INBOX_LIMIT} that may wait; try again later"
            )

    def _made(
        self,
        carry_out: Callable[[Engine], Any],
        future: Future[Any],
        sender: str,
        namespace: str | None,
    ) -> Command:
        self._number += 1
        self._size += 1
        return Command(carry_out, future, self._number, sender, namespace)

    def _line_up(self, command: Command) -> None:
        self._lines.setdefault(command.sender, OrderedDict())[command.number] = command

    def _taken_out(self, namespace: str, number: int) -> None:
        submits, later = self._submits[namespace], self._later.get(namespace)
        del submits[number]
        if not submits:
            del self._submits[namespace]
        while later and (not submits or later[0].number < next(iter(submits))):
            self._line_up(later.popleft())
        if later is not None and not later:
            del self._later[namespace]
