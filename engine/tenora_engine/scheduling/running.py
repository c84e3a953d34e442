"""Running: the sequences that hold pages. What a step needs to know of them is kept from one step
to the next, since only few of them change in between. Standings: how many each tenant has in each
class, waiting and running, and what its fair share of the places would be. They plan nothing and
free nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tenora_engine.memory.pool import IntegrityError
from tenora_engine.scheduling.class_queue import CLASS_WEIGHTS
from tenora_engine.scheduling.plan import ScheduledSequence
from tenora_engine.scheduling.wait_accounts import WaitNames
from tenora_engine.sequence import Sequence, SequenceState

Holder = tuple[str, str]
"""Of places: a service class and the key of a tenant in it."""

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_CLASSES = {name: number for number, name in enumerate(CLASS_WEIGHTS)}
_CLASS_WEIGHTS = np.array(list(CLASS_WEIGHTS.values()))


def holder_of(sequence: Sequence) -> Holder:
    return sequence.service.class_name, sequence.request.tenant.key


class Standings:
    """A row for each holder that has any; rows of those that have none any more are used again."""

    def __init__(self, names: WaitNames | None = None) -> None:
        """`names` has the numbers of tenants by which `tenants_running` counts."""
        self.changes = 0
        self.entries = 0  # rows that were given to a holder
        self._rows: dict[Holder, int] = {}
        self._holders: list[Holder] = []  # by row
        self._unused: list[int] = []
        self._waiting = np.zeros(16, np.int64)
        self._running = np.zeros(16, np.int64)
        self._weights = np.ones(16)
        self._classes = np.zeros(16, np.int64)
        self._numbers = [0] * 16  # of the tenants
        self._names = names
        self.tenants_running: Int64s = np.zeros(16, np.int64)  # by number

    def wait(self, sequence: Sequence, more: int) -> None:
        """So many more (or fewer) of the sequence's holder wait."""
        self._add(self._waiting, sequence, more)

    def run(self, sequence: Sequence, more: int) -> None:
        """So many more (or fewer) of the sequence's holder run."""
        self._add(self._running, sequence, more)

    def holder(self, row: int) -> Holder:
        return self._holders[row]

    def row(self, holder: Holder) -> int | None:
        return self._rows.get(holder)

    def running_by_holder(self) -> dict[Holder, int]:
        """Of those that have any."""
        counts = {holder: int(self._running[row]) for holder, row in self._rows.items()}
        return {holder: count for holder, count in counts.items() if count}

    @property
    def waiting(self) -> Int64s:  # [num_rows]
        return self._waiting[: len(self._holders)]

    @property
    def running(self) -> Int64s:  # [num_rows]
        return self._running[: len(self._holders)]

    @property
    def weights(self) -> Float64s:  # [num_rows], of the tenants
        return self._weights[: len(self._holders)]

    @property
    def classes(self) -> Int64s:  # [num_rows], in the order of CLASS_WEIGHTS
        return self._classes[: len(self._holders)]

    def _add(self, counts: Int64s, sequence: Sequence, more: int) -> None:
        self.changes += 1
        holder = holder_of(sequence)
        row = self._rows.get(holder)
        if row is None:
            is_running = counts is self._running
            row = self._enter(holder)
            counts = self._running if is_running else self._waiting
        counts[row] += more
        if counts is self._running:
            self.tenants_running[self._numbers[row]] += more
        self._weights[row] = sequence.request.tenant.weight
        if not self._waiting[row] and not self._running[row]:
            del self._rows[holder]
            self._unused.append(row)

    def _enter(self, holder: Holder) -> int:
        if self._unused:
            row = self._unused.pop()
            self._holders[row] = holder
        else:
            row = len(self._holders)
            self._holders.append(holder)
            if row == len(self._waiting):
                self._grow()
        self.entries += 1
        self._rows[holder] = row
        self._classes[row] = _CLASSES[holder[0]]
        number = 0 if self._names is None else self._names.number_of(holder[1])
        self._numbers[row] = number
        if number >= len(self.tenants_running):
            more = np.zeros(number, np.int64)
            self.tenants_running = np.concatenate([self.tenants_running, more])
        return row

    def _grow(self) -> None:
        size = len(self._waiting)
        for name in ("_waiting", "_running", "_weights", "_classes"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(size, column.dtype)]))
        self._numbers += [0] * size


def fair_shares(
    capacity: float,
    demand: Int64s | Float64s,  # [num_rows] sequences
    weights: Float64s,  # [num_rows], positive
    classes: Int64s,  # [num_rows]
) -> Float64s:  # [num_rows]
    """Max-min fair parts of `capacity`: of the classes by their weights, of the tenants in a class
    by theirs. Nobody has more than it asks for, and what one leaves the others have. O(n log n)."""
    asked = demand.astype(np.float64)
    totals = np.bincount(classes, asked, len(_CLASS_WEIGHTS)).astype(np.float64, copy=False)
    parts = np.array(_class_parts(capacity, totals.tolist()))
    return _filled(parts, totals, asked, weights, classes)


def class_weights(classes: Int64s) -> Float64s:
    weights: Float64s = _CLASS_WEIGHTS[classes]
    return weights


def _class_parts(capacity: float, demand: list[float]) -> list[float]:
    """As `_filled` of a single group: of three numbers numpy takes five times as long."""
    asked = sorted(zip(demand, CLASS_WEIGHTS.values(), strict=True), key=lambda d: d[0] / d[1])
    before, weight_left, level = 0.0, sum(CLASS_WEIGHTS.values()), math.inf
    for each, weight in asked:
        level = (capacity - before) / weight_left
        if each > level * weight:
            break
        before += each
        weight_left -= weight
    else:
        return demand
    return [min(d, level * w) for d, w in zip(demand, CLASS_WEIGHTS.values(), strict=True)]


def _filled(
    capacities: Float64s,  # [num_groups]
    totals: Float64s,  # [num_groups], of `demand`
    demand: Float64s,  # [num_rows]
    weights: Float64s,  # [num_rows], positive
    groups: Int64s,  # [num_rows]
) -> Float64s:  # [num_rows]
    """Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2) of each group: the
    level, over the weights, at which who asks for less has it all and the others share what is
    left. Of all groups at once: sums within one are those over all rows less those of the groups
    before it."""
    order = np.lexsort((demand / weights, groups))
    group, asked, weight = groups[order], demand[order], weights[order]
    before = asked.cumsum() - asked - (totals.cumsum() - totals)[group]
    all_weights = np.bincount(groups, weights, len(capacities)).cumsum()
    levels = (capacities[group] - before) / (all_weights[group] - weight.cumsum() + weight)
    short = (asked > levels * weight).nonzero()[0][::-1]
    level = np.full(len(capacities), np.inf)
    level[group[short]] = levels[short]  # of several in a group the last to be written is its first
    return np.minimum(demand, level[groups] * weights)


_NOBODY: dict[Sequence, None] = {}

URGENT_LOOKED_AT = 32
"""Those that decode for long are due about when the first of them is."""


class Running(Collection[Sequence]):
    """In order of admission. A sequence *decodes* when only its last token is not computed, and has
    the same row in every step then; else it prefills."""

    def __init__(self, block_tokens: int, standings: Standings) -> None:
        self._block_tokens = block_tokens
        self._standings = standings
        self._sequences: dict[Sequence, None] = {}
        self._prefilling: dict[Sequence, None] = {}
        self._held: dict[Holder, dict[Sequence, None]] = {}
        # Those that decode: their rows by adapter slot, and who was promised a TPOT by what it is.
        self._rows: dict[int, dict[Sequence, ScheduledSequence]] = {}
        self._promised: dict[float, dict[Sequence, None]] = {}
        self._short: list[Sequence] = []  # of pages for all their tokens, and some that have ended

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._sequences

    @property
    def num_decoding(self) -> int:
        """As of the last `prefilling`."""
        return len(self._sequences) - len(self._prefilling)

    @property
    def held(self) -> Mapping[Holder, Collection[Sequence]]:
        """Those of each tenant in each class."""
        return self._held

    def of(self, holder: Holder) -> Collection[Sequence]:
        """Those of one tenant in one class. Its size may be asked for from any thread."""
        return self._held.get(holder, _NOBODY)

    def start(self, sequence: Sequence) -> None:
        """It has been given its pages and its adapter slot, which it keeps."""
        self._sequences[sequence] = None
        self._prefilling[sequence] = None
        self._held.setdefault(holder_of(sequence), {})[sequence] = None
        self._standings.run(sequence, 1)

    def stop(self, sequence: Sequence) -> None:
        """It is to give them back."""
        del self._sequences[sequence]
        _take_out(self._held, holder_of(sequence), sequence)
        self._standings.run(sequence, -1)
        if sequence in self._prefilling:
            del self._prefilling[sequence]
        else:
            self._stop_decoding(sequence)

    def advanced(self, sequence: Sequence) -> None:
        """To be called when a step has computed tokens of a running sequence or added some to it,
        unless it was one of its uneventful tokens."""
        length = len(sequence.token_ids)
        if len(sequence.block_table) * self._block_tokens < length:
            self._short.append(sequence)
        if sequence in self._prefilling:
            return
        if length - sequence.num_computed == 1:
            sequence.num_uneventful = self._uneventful(sequence)
        else:
            self._stop_decoding(sequence)
            self._prefilling[sequence] = None

    def take_short(self) -> list[Sequence]:
        """Those that lack a page for their tokens; they are to be given it now."""
        short, self._short = self._short, []
        return [sequence for sequence in short if sequence.state is SequenceState.RUNNING]

    def prefilling(self) -> list[Sequence]:
        """Those that do not decode in the step that is planned now."""
        for sequence in [s for s in self._prefilling if s.num_uncomputed == 1]:
            del self._prefilling[sequence]
            self._start_decoding(sequence)
        return list(self._prefilling)

    def most_urgent(self, now_s: float) -> Iterator[Sequence]:
        """Of those that decode with a promised TPOT, for each such time the one with the least
        slack, of the first and the last URGENT_LOOKED_AT to begin."""
        for sequences in self._promised.values():
            some = chain(islice(sequences, 1), islice(reversed(sequences), URGENT_LOOKED_AT))
            yield min(some, key=lambda sequence: sequence.next_due_s)

    @property
    def promised_tpots(self) -> Collection[float]:
        """The promises to those that decode, in seconds."""
        return self._promised.keys()

    def rows(self, chunks: Iterable[ScheduledSequence]) -> list[ScheduledSequence]:
        """Of a step, by adapter slot: of all that decode, and `chunks` of prefill."""
        beside: dict[int, list[ScheduledSequence]] = defaultdict(list)
        for chunk in chunks:
            beside[chunk.sequence.adapter_slot].append(chunk)
        rows: list[ScheduledSequence] = []
        for slot in sorted(self._rows.keys() | beside.keys()):
            rows += self._rows.get(slot, {}).values()
            rows += beside.get(slot, ())
        return rows

    def check(self) -> None:
        """Raises IntegrityError unless what is kept between steps is what looking at every sequence
        gives."""
        rows = {s: row for slot in self._rows.values() for s, row in slot.items()}
        if rows.keys() ^ self._prefilling.keys() != self._sequences.keys():
            raise IntegrityError("a running sequence neither decodes nor prefills, or does both")
        if any(sequence.num_uneventful for sequence in self._prefilling):
            raise IntegrityError("a sequence that prefills would be taken for one that decodes")
        for sequence, row in rows.items():
            if row != ScheduledSequence(sequence, sequence.num_uncomputed, True):
                raise IntegrityError("the row of a sequence that decodes is not its own")
            if row is not self._rows[sequence.adapter_slot].get(sequence):
                raise IntegrityError("a row stands with those of another adapter slot")
            if sequence.num_uneventful != self._uneventful(sequence):
                raise IntegrityError("a sequence would not be seen to fill a block or to end")
        promised = {s for group in self._promised.values() for s in group}
        if promised != {s for s in rows if s.service.tpot_s < math.inf}:
            raise IntegrityError("those who were promised a TPOT are not those that are noted")
        held = {s for holder in self._held for s in self._held[holder] if holder_of(s) == holder}
        counts = {holder: len(sequences) for holder, sequences in self._held.items()}
        if held != self._sequences.keys() or counts != self._standings.running_by_holder():
            raise IntegrityError("a running sequence is not counted for its tenant and class")
        size = self._block_tokens
        short = {s for s in self._sequences if len(s.block_table) * size < len(s.token_ids)}
        if short != self._sequences.keys() & set(self._short):
            raise IntegrityError("the sequences that lack a page are not those that are noted")

    def _start_decoding(self, sequence: Sequence) -> None:
        row = ScheduledSequence(sequence, 1, True)
        self._rows.setdefault(sequence.adapter_slot, {})[sequence] = row
        if sequence.service.tpot_s < math.inf:
            self._promised.setdefault(sequence.service.tpot_s, {})[sequence] = None
        sequence.num_uneventful = self._uneventful(sequence)

    def _stop_decoding(self, sequence: Sequence) -> None:
        _take_out(self._rows, sequence.adapter_slot, sequence)
        if sequence.service.tpot_s < math.inf:
            _take_out(self._promised, sequence.service.tpot_s, sequence)
        sequence.num_uneventful = 0

    def _uneventful(self, sequence: Sequence) -> int:
        """Tokens until one fills a block, or is the first or the last of the output; a grammar
        looks at each, and a beam search chooses each."""
        is_watched = sequence.guide is not None or sequence.beams is not None
        if sequence.usage.first_token_s is None or is_watched:
            return 0
        length = len(sequence.token_ids)
        return min(-length % self._block_tokens, sequence.max_length - 1 - length)


def _take_out(groups: dict[Any, dict[Sequence, Any]], name: Any, sequence: Sequence) -> None:
    del groups[name][sequence]
    if not groups[name]:
        del groups[name]
