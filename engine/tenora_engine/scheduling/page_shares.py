"""PageShares: who gives up pages, and to whom, where there are too few. Counts the pages that
tenants hold by what runs; what lies in them, and whose turn it is, it does not know."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.memory.page_claims import ABOVE_MAX, PageClaim
from tenora_engine.scheduling.class_queue import CLASS_WEIGHTS
from tenora_engine.scheduling.running import Holder, Running, Standings, holder_of
from tenora_engine.sequence import Sequence

MUCH_MORE = 2.0
"""From a holder that has so many times what the taker would have, pages are taken at once."""

PAGE_PATIENCE_STEPS = 64
"""Steps after which one that finds no pages takes them of those who have no less afterwards."""

SOON_STEPS = 8
"""Steps after which one takes them of who has MUCH_MORE though others of its holder run."""

NEW_PART = 8
"""What part of its pages counts of a holder's only sequence while its prompt is computed."""

LOOK_STEPS = 4
"""Walks for which a count of what everybody holds will do to tell who need not try."""


@dataclass(slots=True)
class _Held:
    """`share` is the holder's weight among all that run or wait: its class's, and of that its own
    among those in it."""

    share: float
    pages: float
    part: float  # of its pages, that others may hold against it

    @property
    def level(self) -> float:
        return self.pages * self.part / self.share


class PageShares:
    """A holder (a tenant in a class) has its *level* of the pages: those that its running sequences
    hold, over its weight. What several sequences share each holds in part.

    Who waits takes pages by preemption: at once while its tenant stays within its guaranteed
    minimum, from who is beyond its maximum, and, where nothing of its holder runs, from who has
    MUCH_MORE; after SOON_STEPS from them anyway; after PAGE_PATIENCE_STEPS from those who have no
    less than it even afterwards. So nobody takes back what was taken from it: the levels come
    closer each time. It takes from the highest level first, all it lacks or nothing, and starts in
    the same step. One that was preempted keeps its pages until it has made up for what had to be
    computed again (`Sequence.stays_until`), except from a guaranteed minimum.

    Who runs and finds no page for its next block takes one from the highest level, its own
    included; from the cheapest of those that would be alike then.

    The only sequence of a holder counts half, a NEW_PART of it until its first token, and not at
    all until it has made up for its last preemption, so that it comes to its end.
    """

    def __init__(self, memory: MemoryManager, running: Running, standings: Standings) -> None:
        self._standings = standings
        self._memory = memory
        self._running = running
        self._levels: dict[Holder, _Held] = {}  # as last seen
        self._is_any_above_max = False
        self._class_weights = dict.fromkeys(CLASS_WEIGHTS, 0.0)
        self._seen_steps = LOOK_STEPS

    def begin_step(self) -> None:
        self._seen_steps += 1

    def victim(self, sequence: Sequence) -> Sequence | None:
        """Which running sequence is to be preempted for one of them to grow, perhaps itself; None
        where none but itself could help it. O(running)."""
        competitors = self._memory.competitors(sequence, self._running)
        if len(competitors) == 1:
            return None
        by_holder = _by_holder(competitors)
        if len(by_holder) > 1:
            self._look()
            competitors = self._highest_of(by_holder, sequence)
        return _cheapest(competitors)

    def may_pass(self, sequence: Sequence, others: Iterable[Sequence]) -> bool:
        """Whether one that waits may take pages before all of these: with them its level is still
        below theirs as they are now."""
        if not any(self._running.of(holder_of(other)) for other in others):
            return False
        self._look_at_times()
        level = self._level_with(sequence, self._pages(sequence))
        return all(level < self._level(holder_of(other)) for other in others)

    def may_take(self, sequence: Sequence, waited: int) -> bool:
        """Whether it is worth looking for `givers` to one that has waited for pages for so many
        steps. O(holders)."""
        if self._memory.is_guaranteed(sequence):
            return True
        self._look_at_times()
        level = self._level_with(sequence, self._pages(sequence))
        return self._is_any_above_max or self._is_due(sequence, level, waited)

    def givers(
        self,
        sequence: Sequence,
        packed: PackedAdapter | None,
        planned: Collection[Sequence],
        waited: int,
    ) -> list[Sequence] | None:
        """The running sequences, none of those `planned`, that are to be preempted for one that
        waits to start, its adapter installed if it is `packed`; None where it has to wait.
        O(running)."""
        claim = self._memory.page_claim(sequence, packed)
        self._look()
        level, own = self._level_with(sequence, claim.pages), holder_of(sequence)
        if claim.missing <= 0:
            is_due = claim.is_within_min or self._is_due(sequence, level, waited)
            return [] if is_due else None
        victims = _Victims(self._memory, claim)
        for holder, held in _by_holder(self._memory.competitors(sequence, self._running)).items():
            if holder != own:
                free = [s for s in held if s not in planned]
                if not claim.is_within_min:
                    free = [s for s in free if _is_settled(s)]
                victims.add(self._levels[holder], free)
        return victims.choose(level, self._times(sequence, waited), waited >= PAGE_PATIENCE_STEPS)

    def _pages(self, sequence: Sequence) -> int:
        return self._memory.blocks(len(sequence.token_ids))

    def _times(self, sequence: Sequence, waited: int) -> float:
        """Who has more than so many times what one that waits will have, has to give."""
        is_soon = waited >= SOON_STEPS or not self._running.of(holder_of(sequence))
        return MUCH_MORE if is_soon else math.inf

    def _is_due(self, sequence: Sequence, level: float, waited: int) -> bool:
        """Whether somebody has so much that one which waits may take pages, with which its level
        will be that."""
        times = 1.0 if waited >= PAGE_PATIENCE_STEPS else self._times(sequence, waited)
        return self._highest(sequence) >= times * level

    def _look_at_times(self) -> None:
        if self._seen_steps >= LOOK_STEPS:
            self._look()

    def _look(self) -> None:
        """Count what everybody holds. O(running)."""
        self._seen_steps = 0
        standings = self._standings
        is_there = standings.waiting + standings.running > 0
        weights = np.bincount(standings.classes, standings.weights * is_there, len(CLASS_WEIGHTS))
        self._class_weights = dict(zip(CLASS_WEIGHTS, weights.tolist(), strict=True))
        self._levels = {
            holder: _Held(
                self._share(next(iter(sequences))),
                sum(self._memory.held_pages(sequence)[0] for sequence in sequences),
                1.0 if len(sequences) > 1 else _part_of_only(next(iter(sequences))),
            )
            for holder, sequences in self._running.held.items()
        }
        self._is_any_above_max = self._memory.is_partitioned and any(
            self._memory.page_rank(next(iter(sequences))) == ABOVE_MAX
            for sequences in self._running.held.values()
        )

    def _level(self, holder: Holder) -> float:
        held = self._levels.get(holder)
        return 0.0 if held is None else held.level

    def _level_with(self, sequence: Sequence, pages: int) -> float:
        """Return the level of the holder of one that waits, were it to have so many pages more."""
        held = self._levels.get(holder_of(sequence))
        if held is not None:
            return (held.pages + pages) / held.share
        return pages / self._share(sequence)

    def _share(self, sequence: Sequence) -> float:
        """Return the level of its holder."""
        name, weight = sequence.service.class_name, sequence.request.tenant.weight
        return CLASS_WEIGHTS[name] * weight / max(self._class_weights[name], weight)

    def _highest(self, sequence: Sequence) -> float:
        """Level of others."""
        own = holder_of(sequence)
        return max((h.level for holder, h in self._levels.items() if holder != own), default=0.0)

    def _highest_of(
        self, by_holder: dict[Holder, list[Sequence]], growing: Sequence
    ) -> list[Sequence]:
        """Sequences of the holder with the highest level, and of those who would have more than it
        if it gave one up."""
        orders = {holder: self._order(held, growing) for holder, held in by_holder.items()}
        highest = max(orders, key=lambda holder: orders[holder])
        rank, level = orders[highest]
        gives = self._memory.held_pages(_cheapest(by_holder[highest]))[0]
        held = self._levels[highest]
        least = max(level - gives * held.part / held.share, level / MUCH_MORE)
        alike = [holder for holder, order in orders.items() if order >= (rank, least)]
        return [sequence for holder in alike for sequence in by_holder[holder]]

    def _order(self, held: list[Sequence], growing: Sequence) -> tuple[int, float]:
        """The greatest gives up a page."""
        holder = holder_of(held[0])
        more = 1 if holder == holder_of(growing) else 0
        return self._memory.page_rank(held[0], more), self._level(holder)


class _Victims:
    """Chooses whom to preempt for a claim."""

    def __init__(self, memory: MemoryManager, claim: PageClaim) -> None:
        self._memory = memory
        self._claim = claim
        self._heap: list[tuple[int, float, int, _Held, list[Sequence]]] = []

    def add(self, held: _Held, sequences: list[Sequence]) -> None:
        """List the sequences that a holder could give up."""
        if sequences:
            sequences.sort(key=_loss, reverse=True)
            rank = self._memory.page_rank(sequences[0])
            entry = (-rank, -held.level, len(self._heap), held, sequences)
            self._heap.append(entry)

    def choose(self, level: float, times: float, is_patient: bool) -> list[Sequence] | None:
        """As many as are needed for what is missing, the highest level first; None where those that
        have to give are too few. `level` is what the taker will have; who has more than so many
        `times` that has to give, and where it `is_patient` who has no less afterwards."""
        claim, chosen = self._claim, list[tuple[int, Sequence]]()
        missing = claim.missing
        heapq.heapify(self._heap)
        while missing > 0 and self._heap:
            negated_rank, negated, number, held, sequences = heapq.heappop(self._heap)
            victim, before = sequences.pop(), -negated
            has_to = claim.has_to_give(-negated_rank) or before > times * level
            if not has_to and (not is_patient or before < level):
                continue
            pages, gain = self._memory.held_pages(victim)
            after = before - pages * held.part / held.share
            given = claim.give(victim, gain) if has_to or after >= level else 0
            if given > 0:
                chosen.append((given, victim))
                missing -= given
                before = after
            if sequences:
                heapq.heappush(self._heap, (negated_rank, -before, number, held, sequences))
        return None if missing > 0 else _needed(chosen, -missing)


def _needed(chosen: list[tuple[int, Sequence]], spare: int) -> list[Sequence]:
    """Without those that are not needed after all, the dearest first."""
    kept: list[Sequence] = []
    for gain, sequence in reversed(chosen):
        if gain <= spare:
            spare -= gain
        else:
            kept.append(sequence)
    return kept


def _cheapest(sequences: list[Sequence]) -> Sequence:
    return min([s for s in sequences if _is_settled(s)] or sequences, key=_loss)


def _by_holder(sequences: Iterable[Sequence]) -> dict[Holder, list[Sequence]]:
    by_holder: dict[Holder, list[Sequence]] = defaultdict(list)
    for sequence in sequences:
        by_holder[holder_of(sequence)].append(sequence)
    return by_holder


def _is_settled(sequence: Sequence) -> bool:
    """Whether it has made up for its last preemption."""
    return len(sequence.token_ids) >= sequence.service.stays_until


def _part_of_only(sequence: Sequence) -> float:
    """Count the pages of a holder's only sequence, as far as they count."""
    if not _is_settled(sequence):
        return 0.0
    return 1 / 2 if sequence.num_output else 1 / NEW_PART


def _loss(sequence: Sequence) -> tuple[int, float, int]:
    """What preempting a sequence costs where it is nobody's more than another's: the one with the
    least to compute again goes first, then that with the slackest deadline, then the latest."""
    return sequence.num_computed, -sequence.service.tpot_s, -sequence.number
