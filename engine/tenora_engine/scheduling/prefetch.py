"""Prefetch: brings up what the next waiting sequences need before their turn: adapters to the host,
cached KV from there to the device. It starts nothing and knows no costs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from tenora_engine.memory.manager import MemoryManager
from tenora_engine.scheduling.requests import RequestBook
from tenora_engine.sequence import Sequence, SequenceState

LOOK_AHEAD = 32
"""Waiting sequences whose turn is near."""

PERIOD_S = 0.02
"""At most so often: looking along the queue takes longer than a small model's step should wait."""


class Prefetch:
    """What is on its way for a sequence whose turn is not near any more makes room: a fetch of KV
    at once, for it holds pages; an adapter that is not loading yet when a nearer one needs its
    place."""

    def __init__(self, book: RequestBook, memory: MemoryManager) -> None:
        self._book = book
        self._memory = memory
        self._seen: tuple[int, int] | None = None
        self._looked_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether anything has changed since the last look ahead, some time ago."""
        return not 0 <= now_s - self._looked_s < PERIOD_S and self._state() != self._seen

    def look_ahead(
        self, sequences: Iterable[Sequence], memory_is_short: bool, now_s: float
    ) -> None:
        """`sequences` wait, in the order in which their turns are expected. Where one of them lacks
        pages, none are taken for those behind it. O(LOOK_AHEAD), and nothing unless it is due."""
        memory, loads = self._memory, self._book.loads
        if not self.is_due(now_s):
            return
        self._seen, self._looked_s = self._state(), now_s
        near: set[Sequence] = set()
        digests: set[str] = set()
        for sequence in islice(sequences, LOOK_AHEAD):
            if sequence.state is not SequenceState.WAITING:
                continue
            near.add(sequence)
            request = sequence.request
            if request.adapter is not None and self._memory.resident(request) is None:
                digests.add(request.adapter.digest)
                loads.request(request.adapter, request.tenant.key, digests)
            if not memory_is_short:
                memory.request_fetch(sequence, ahead=True)
        memory.cancel_other_fetches(near)

    def _state(self) -> tuple[int, int]:
        return self._book.changes, self._memory.fetches.num_ended
