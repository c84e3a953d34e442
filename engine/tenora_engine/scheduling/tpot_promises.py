"""TpotPromises: which promised times between two tokens bind steps, and how many rows keep them.
FirstTokens: when somebody's promised first token comes before those. They plan nothing."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count, islice
from typing import NamedTuple
from weakref import ReferenceType, ref

from tenora_engine.scheduling.forecast import StepForecast, StepLoad
from tenora_engine.scheduling.running import Holder, holder_of
from tenora_engine.sequence import Sequence, SequenceState

MEMORY_S = 60.0
"""A promise counts so long at most after who was promised it has decoded."""

DECODED_PART = 10
"""It counts for so many times as long as they have decoded: who is promised it keeps no more from
others than in proportion to what it uses of it."""

MARGIN = 1.2
"""A step is expected to take this much longer than predicted (Niyama)."""

KEPT_MARGIN = 1.1
"""The same for rows that run already: less, so that none is stopped for what another's next token
adds."""

STEP_PART_MAX = 0.5
"""A promise binds where a step of few rows takes no more than this part of it: keeping a shorter
one would leave nothing to others."""

ROWS_PART, ROWS_ALONE_PART = 0.6, 0.9
"""Of what such a step leaves of a promised time, this part is for rows, the rest for prefills; the
other where nothing was prefilled for PREFILL_MEMORY_S."""

PREFILL_MEMORY_S = 10.0

FEW_ROWS = 4
"""Steps with no more rows and no prefill tell what a step itself takes."""

FLOOR_RATE, FLOOR_ERROR_MAX = 0.2, 1.0
"""Of what such a step took otherwise than before, at most as much again, so much is learnt."""

AT_RISK_PART, LOST_PARTS = 0.75, 2.0
"""Between these parts of its promised time to first token a request is at risk; then it is lost."""

ASKED_AGAIN_PART = 0.1
"""A holder of which none counts is asked again after this part of the time for which its first is
at risk."""

LOOKED_AT_MAX = 16
"""Holders in a step, and requests of each."""

FORGOTTEN_FROM = 64
"""Those of a holder that were answered are forgotten when so many are kept, or twice as many as
waited then."""


class TpotPromises:
    """As of those that decode now or lately did.

    Rows are as many as the forecast allows, and grow step by step while steps of so many take less
    than they may: at few rows the forecast cannot tell what a step costs from what a row does.
    """

    def __init__(self, forecast: StepForecast) -> None:
        self._forecast = forecast
        self._left_s: dict[float, float] = {}  # by promise: for how long it counts on
        self._decoding: frozenset[float] = frozenset()  # promises to those that decode
        self._seen: frozenset[float] = frozenset()  # those of the last step of everybody's
        self._seen_s = -math.inf  # when that was
        self._shortest_s = math.inf  # that binds
        self._measured_floor_s: float | None = None
        self._grown = self._grown_kept = 0
        self.binding_s = math.inf
        """The shortest of those that decode now which binds."""
        self.unkept: frozenset[float] = frozenset()
        """Those that are too short to bind."""
        self._rows_s = math.inf  # the shortest that lately decoded and binds
        self._prefilled_s = -math.inf  # when something last was

    @property
    def floor_s(self) -> float:
        """What a step of few rows takes."""
        measured = self._measured_floor_s
        return self._forecast.decode_s(1) if measured is None else measured

    @property
    def prefill_s(self) -> float:
        """The least that prefills have of a step where a promise binds."""
        return (1 - ROWS_PART) * self._headroom_s(self.binding_s, MARGIN)

    def begin_step(self, decoding: Collection[float], *, is_alone: bool) -> None:
        """`decoding`: what is promised to those that decode. A tenant that is alone keeps nothing
        from others."""
        self._decoding = frozenset(decoding)
        self._shortest_s = math.inf if is_alone else self.floor_s / STEP_PART_MAX
        self.unkept = frozenset()
        if not is_alone:
            self.unkept = frozenset(each for each in self._decoding if each < self._shortest_s)
        self.binding_s = min(
            (each for each in self._decoding if each >= self._shortest_s), default=math.inf
        )

    def most_rows(self, now_s: float) -> tuple[int | None, int | None]:
        """How many rows may decode in the step of everybody's that was begun, for new ones to start
        and for those that run to go on. None where no promise is in the way."""
        self._remember(now_s)
        lately = (each for each in self._left_s if each >= self._shortest_s)
        self._rows_s = min(lately, default=math.inf)
        if self._rows_s == math.inf:
            self._grown = self._grown_kept = 0
            return None, None
        row_s = max(self._forecast.decode_s(1) - self._forecast.decode_s(0), 1e-9)
        admitted, kept = (
            max(int(self._rows_may_take_s(margin) / row_s), 1) for margin in (MARGIN, KEPT_MARGIN)
        )
        return max(admitted, self._grown), max(kept, self._grown, self._grown_kept)

    def _remember(self, now_s: float) -> None:
        passed_s = max(now_s - self._seen_s, 0.0)
        self._seen_s = now_s
        left = {tpot_s: left_s - passed_s for tpot_s, left_s in self._left_s.items()}
        for tpot_s in self._seen.intersection(self._decoding):
            left_s = max(self._left_s[tpot_s], 0.0) + DECODED_PART * passed_s
            left[tpot_s] = min(left_s, MEMORY_S)
        self._seen = self._decoding
        left |= dict.fromkeys(self._seen - left.keys(), 0.0)
        self._left_s = {
            tpot_s: left_s for tpot_s, left_s in left.items() if left_s > 0 or tpot_s in self._seen
        }

    def observe(self, load: StepLoad, step_s: float) -> None:
        """A step with this load took so long."""
        if load.tokens:
            self._prefilled_s = self._seen_s
        if not load.rows:
            return
        if load.rows <= FEW_ROWS and not load.tokens:
            floor_s = self.floor_s
            error_s = min(step_s - floor_s, FLOOR_ERROR_MAX * floor_s)
            self._measured_floor_s = floor_s + FLOOR_RATE * error_s
        rows_s = step_s - self._forecast.work_s(load) - self.floor_s
        if self._rows_s < math.inf:
            self._learn_rows(int(load.rows), max(rows_s, 1e-9))

    def _learn_rows(self, rows: int, rows_s: float) -> None:
        may_take_s = self._rows_may_take_s(MARGIN)
        if rows_s > may_take_s:
            self._grown = min(self._grown, int(rows * may_take_s / rows_s))
        elif rows >= self._grown:
            self._grown = rows + max(rows // 16, 1)
        may_keep_s = self._rows_may_take_s(KEPT_MARGIN)
        self._grown_kept = int(rows * min(may_keep_s / rows_s, 1.0))

    def _rows_may_take_s(self, margin: float) -> float:
        was_prefilled = self._seen_s - self._prefilled_s < PREFILL_MEMORY_S
        part = ROWS_PART if was_prefilled else ROWS_ALONE_PART
        return part * self._headroom_s(self._rows_s, margin)

    def _headroom_s(self, tpot_s: float, margin: float) -> float:
        return max(tpot_s / margin - self.floor_s, 0.0)


class _Promised(NamedTuple):
    at_risk_s: float
    lost_s: float
    sequence: ReferenceType[Sequence]  # one that has ended is not kept

    @property
    def waits(self) -> bool:
        sequence = self.sequence()
        if sequence is None or sequence.state is SequenceState.FINISHED:
            return False
        return sequence.usage.first_token_s is None


@dataclass
class _Line:
    """Those of one holder, in the order in which they came."""

    promised: deque[_Promised] = field(default_factory=deque)
    full: int = FORGOTTEN_FROM

    def add(self, promised: _Promised) -> None:
        if len(self.promised) >= self.full:
            self.promised = deque(each for each in self.promised if each.waits)
            self.full = max(2 * len(self.promised), FORGOTTEN_FROM)
        self.promised.append(promised)

    def first(self, now_s: float) -> _Promised | None:
        """Return the first that waits and is not lost."""
        while self.promised:
            first = self.promised[0]
            if first.waits and first.lost_s > now_s:
                return first
            self.promised.popleft()
        return None


class FirstTokens:
    """Requests that were promised a time to first token and have none yet, by holder (a tenant in a
    class), so that the many of one do not hide another's."""

    def __init__(self) -> None:
        self._lines: dict[Holder, _Line] = {}
        self._heap: list[tuple[float, int, Holder]] = []
        """When the first of each line may be at risk."""
        self._numbers = count()

    def __len__(self) -> int:
        return sum(len(line.promised) for line in self._lines.values())

    def add(self, sequence: Sequence, ttft_s: float) -> None:
        came_s, holder = sequence.arrival_s, holder_of(sequence)
        at_risk_s, lost_s = came_s + AT_RISK_PART * ttft_s, came_s + LOST_PARTS * ttft_s
        line = self._lines.get(holder)
        if line is None:
            line = self._lines[holder] = _Line()
            heapq.heappush(self._heap, (at_risk_s, next(self._numbers), holder))
        line.add(_Promised(at_risk_s, lost_s, ref(sequence)))

    def is_any_at_risk(
        self,
        now_s: float,
        keeps_share: Callable[[Sequence], bool],
        is_helped: Callable[[Sequence], bool],
    ) -> bool:
        """Whether one is that a prefill would help, of a holder that keeps its share. A holder of
        which none counts is asked again later."""
        for _ in range(LOOKED_AT_MAX):
            if not self._heap or self._heap[0][0] > now_s:
                return False
            _, number, holder = self._heap[0]
            line = self._lines[holder]
            first = line.first(now_s)
            if first is None:
                heapq.heappop(self._heap)
                del self._lines[holder]
            elif first.at_risk_s > now_s:
                heapq.heapreplace(self._heap, (first.at_risk_s, number, holder))
            elif _is_one_helped(line, now_s, keeps_share, is_helped):
                return True
            else:
                later_s = now_s + ASKED_AGAIN_PART * (first.lost_s - first.at_risk_s)
                heapq.heapreplace(self._heap, (later_s, number, holder))
        return False


def _is_one_helped(
    line: _Line,
    now_s: float,
    keeps_share: Callable[[Sequence], bool],
    is_helped: Callable[[Sequence], bool],
) -> bool:
    for promised in islice(line.promised, LOOKED_AT_MAX):
        sequence = promised.sequence()
        if promised.at_risk_s > now_s:
            return False
        if sequence is not None and promised.waits and is_helped(sequence):
            return keeps_share(sequence)
    return False
