"""UsageKeeper: a UsageOutbox on a thread of its own, so that nobody but those whose records are
being written waits for the disk. Knows no events and no clients."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TypeVar

from tenora_engine.errors import EngineUnavailableError
from tenora_engine.events import EngineTotals, Metered
from tenora_engine.transport.outbox import GIVEN_MAX, UsageOutbox

T = TypeVar("T")

JOBS_MAX = 16_384
"""What may wait for the disk; whoever asks for more waits until some of it is done."""

RECOVERY_S = 1.0
"""How often a disk in trouble is tried."""


class UsageKeeper:
    """Does to the outbox what it is asked, in the order asked. Appends that have come while the
    disk was busy are written together (group commit). Futures are set on the keeper's thread."""

    def __init__(self, outbox: UsageOutbox) -> None:
        self._outbox = outbox
        self._appends: list[tuple[Sequence[Metered], Future[None]]] = []
        self._others: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._tried_s = 0.0
        self._thread = threading.Thread(target=self._run, name="tenora-usage-keeper", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Why no work should be begun (see UsageOutbox). From any thread."""
        return self._outbox.trouble

    def append(self, records: Sequence[Metered]) -> Future[None]:
        """Done when the records are on the disk, and all given before them; see
        `UsageOutbox.append`. Raises EngineUnavailableError once closed, as all of these."""
        future: Future[None] = Future()
        with self._changed:
            self._wait_for_room()
            self._appends.append((records, future))
            self._changed.notify_all()
        return future

    def oldest(
        self, limit: int = GIVEN_MAX, without: Collection[str] = frozenset()
    ) -> Future[list[Metered]]:
        return self._ask(lambda: self._outbox.oldest(limit, without))

    def totals(self, since: str) -> Future[EngineTotals]:
        return self._ask(lambda: self._outbox.totals(since))

    def acknowledge(self, event_ids: Sequence[str]) -> Future[None]:
        return self._ask(lambda: self._outbox.acknowledge(event_ids))

    def close(self, timeout_s: float | None = None) -> None:
        """Do what has been asked, then close the outbox; a disk that takes longer is left to it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _ask(self, question: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            self._wait_for_room()
            self._others.append(lambda: _answer(future, question))
            self._changed.notify_all()
        return future

    def _wait_for_room(self) -> None:
        self._changed.wait_for(
            lambda: self._closing or len(self._appends) + len(self._others) < JOBS_MAX
        )
        if self._closing:
            raise EngineUnavailableError("the usage outbox has been closed")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._appends or self._others,
                    None if self._outbox.trouble is None else RECOVERY_S,
                )
                is_closing = self._closing
                appends, self._appends = self._appends, []
                others, self._others = self._others, deque()
                self._changed.notify_all()
            self._commit(appends)
            for other in others:
                other()
            self._recover()
            if is_closing and not appends and not others:
                self._outbox.close()
                return

    def _recover(self) -> None:
        now_s = time.monotonic()
        if self._outbox.trouble is not None and now_s - self._tried_s >= RECOVERY_S:
            self._tried_s = now_s
            self._outbox.recover()

    def _commit(self, appends: list[tuple[Sequence[Metered], Future[None]]]) -> None:
        """All of them in one write."""
        if not appends:
            return
        written: Future[None] = Future()
        records = [record for given, _ in appends for record in given]
        _answer(written, lambda: self._outbox.append(records))
        error = written.exception()
        for _, future in appends:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def _answer(future: Future[T], question: Callable[[], T]) -> None:
    try:
        answer = question()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(answer)
