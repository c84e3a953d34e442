"""Places: who gives up a place in the running batch, and to whom, where there are too few. Counts
sequences by class and tenant; pages and tokens it does not know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from tenora_engine.config import ResolvedConfig
from tenora_engine.scheduling.class_queue import CLASS_WEIGHTS
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.running import (
    Bools,
    Float64s,
    Holder,
    Int64s,
    Running,
    Standings,
    class_weights,
    fair_shares,
    holder_of,
)
from tenora_engine.sequence import Sequence

EXPRESS_PLACES = 8
"""By so many sequences express steps may exceed the places until a step of everybody's begins."""

MIN_PLACES_PART = 16
"""Whatever was promised, there is this part of the places: what waits must not be lost as well."""

ALIKE = 4.0
"""Rows are counted alike where those of no holder take more than so many times as long as
another's."""

GIVERS_LIMIT = 16
"""Of those beyond their shares, so many are looked at for one that wants a place."""


class Places:
    """The `capacity` places of the running sequences.

    A place changes hands where a holder (a tenant in a class) has more than its fair share, another
    that waits has less, and both come closer to theirs by it: their distances to it, squared and
    added, become less, so that while the same sequences ask for places only so many change hands
    and none goes back. Two places must be between them where that would be in vain, for places
    that become free go by service: one suffices for a heavier class, for who has none of a share of
    one or more, and from who has more than twice as many. From such a one also who has no place
    because its share is less than one takes one in its turn.

    A sequence that has given up a place before keeps the next until it has made up for what had to
    be computed again (`Sequence.stays_until`), and a new one keeps its first for a block, unless
    its tenant has more than twice as many as the taker would.

    Where places are held back because steps take long, and rows take differently long, a place is
    the time of a mean row: a holder with much longer contexts than others has fewer.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        queue: WaitingQueue,
        running: Running,
        standings: Standings,
    ) -> None:
        engine = config.engine
        # A step in which everybody decodes has a token left for who takes a place.
        self._most = max(min(engine.max_running, engine.max_step_tokens - 1), 1)
        self.capacity = self._kept = self._most  # see `limit`
        self._queue = queue
        self._running = running
        self._standings = standings
        self._young_tokens = engine.block_tokens
        # Without a cache all that a sequence has computed is lost with its place.
        self._lost_of = engine.block_tokens if engine.prefix_caching else None
        self._num_tenants = 2
        self._seen = self._seen_entries = -1
        self._demand: Int64s = np.zeros(0, np.int64)  # running and waiting, by row of the standings
        self._weights: Float64s = np.zeros(0)
        self._shares: Float64s = np.zeros(0)
        self._units: dict[Holder, float] = {}  # places that a row of it takes, if not one
        self._used = (-1, 0.0)
        self._contested = False
        self._has_newcomers = False  # some who wait may have one beyond the capacity
        self._beyond: list[tuple[float, int, Holder]] = []
        """Who is furthest beyond its share, by how much, and how many it holds."""

    @property
    def used(self) -> float:
        """Places that what runs takes."""
        if not self._units:
            return len(self._running)
        changes = self._standings.changes
        if self._used[0] != changes:
            held = self._running.held.items()
            used = sum(len(each) * self._units.get(holder, 1.0) for holder, each in held)
            self._used = changes, used
        return self._used[1]

    @property
    def are_full(self) -> bool:
        return self.used >= self.capacity or len(self._running) >= self._most

    def has_room(self, sequence: Sequence) -> bool:
        """Whether there is a free place for one that waits. Beyond what `limit` says there is one
        for who has none, or lacks one or more of its share."""
        if not self.are_full:
            return True
        if len(self._running) >= self._most:
            return False
        self._refresh()
        holder = holder_of(sequence)
        own = len(self._running.of(holder))
        return not own or own + 1 <= self._share(holder)

    def limit(self, admitted: int | None, kept: int | None, row_s: Callable[[int], float]) -> None:
        """Until it is said otherwise no more than `admitted` are to have a place and those beyond
        `kept` give theirs up, for others' steps not to take too long; None: as many as there are.
        Each holder keeps one. `row_s`: what a row takes that attends to so many positions."""
        least = -(-self._most // MIN_PLACES_PART)
        capacity = self._most if admitted is None else min(max(admitted, least), self._most)
        self._kept = self._most if kept is None else min(max(kept, capacity), self._most)
        units = self._units_by(row_s) if capacity < self._most else {}
        if capacity != self.capacity or units != self._units:
            self.capacity, self._units = capacity, units
            self._used = -1, 0.0
            self._seen = self._seen_entries = -1

    def _units_by(self, row_s: Callable[[int], float]) -> dict[Holder, float]:
        """Return the time that a row of each holder that runs takes, as a part of the mean of all;
        nothing where they are ALIKE. O(running)."""
        means = {
            holder: sum(row_s(len(each.token_ids)) for each in held) / len(held)
            for holder, held in self._running.held.items()
        }
        if not means or max(means.values()) <= ALIKE * min(means.values()):
            return {}
        seconds = sum(mean * len(self._running.of(holder)) for holder, mean in means.items())
        return {holder: mean * len(self._running) / seconds for holder, mean in means.items()}

    @property
    def are_open(self) -> bool:
        """Whether something that waits might have one, free or another's. Asked before each one
        that is looked at."""
        if not self.are_full:
            return True
        if self._seen != self._standings.changes:
            self._refresh()
        return self._contested or (self._has_newcomers and len(self._running) < self._most)

    def giver(self, sequence: Sequence, planned: Collection[Sequence]) -> Sequence | None:
        """Which running sequence gives up its place to one that waits: the cheapest of who is
        furthest beyond its share and not behind in service; none of those `planned` already."""
        self._refresh()
        taker = holder_of(sequence)
        own = len(self._running.of(taker))
        for holder in self._givers(taker):
            held = self._running.of(holder)
            if not self._queue.may_pass(sequence, next(iter(held))):
                continue
            least_output = 0 if len(held) > 2 * (own + 1) else self._young_tokens
            free = [s for s in held if _is_free(s, least_output) and s not in planned]
            if free:
                return min(free, key=self._loss)
        return None

    def takers(self) -> list[Holder]:
        """Who waits and might have a place though they are full: those for whom a `giver` is worth
        looking for."""
        self._refresh()
        standings = self._standings
        takers = self._could_take(standings.running - self._shares)
        return [standings.holder(row) for row in takers.nonzero()[0].tolist()]

    def newcomers(self) -> list[Holder]:
        """Who waits and has a place beyond the capacity (`has_room`), without anybody's giving one
        up."""
        self._refresh()
        if not self._has_newcomers or len(self._running) >= self._most:
            return []
        return [self._standings.holder(row) for row in self._lack_one().nonzero()[0].tolist()]

    def can_lend(self, sequence: Sequence) -> bool:
        """Whether a sequence that waits may start in an express step though the places are taken:
        another's is given up before the next step of everybody's."""
        self._refresh()
        exceeds = len(self._running) >= self._most + EXPRESS_PLACES
        return not exceeds and next(self._givers(holder_of(sequence)), None) is not None

    def take_back(self) -> Iterator[Sequence]:
        """Running sequences that are to give up their places, as many as exceed them. The caller
        stops each before it asks for the next."""
        holders = self._running.held
        while self.used > self._kept or len(self._running) > self._most:
            if len(holders) == len(self._running) <= self._most:
                return  # each has one
            self._refresh()
            several = [holder for holder in holders if len(self._running.of(holder)) > 1]
            holder = max(several or holders, key=self._excess)
            held = self._running.of(holder)
            free = [s for s in held if _is_free(s, 0)]
            yield min(free or held, key=self._loss)

    def observe_tenants(self, number: int) -> None:
        """So many were there lately."""
        self._num_tenants = max(number, 2)

    def is_crowding(self, holder: Holder) -> bool:
        """Whether it has more than a part of the places, were all who were there lately there now
        (and one other, if it was alone). From any thread."""
        used = len(self._running.of(holder)) * self._units.get(holder, 1.0)
        return used * self._num_tenants > self.capacity

    @property
    def are_crowded(self) -> bool:
        """Whether somebody is crowding. O(holders)."""
        return any(map(self.is_crowding, self._running.held))

    def _givers(self, taker: Holder) -> Iterator[Holder]:
        """Those who could give a place to the taker, furthest beyond its share first."""
        below, own = self._excess(taker), len(self._running.of(taker))
        if below >= 0:
            return
        is_due = own == 0 and self._share(taker) >= 1
        weight = CLASS_WEIGHTS[taker[0]]
        for beyond, held, holder in self._beyond:
            between = beyond - below
            if between <= 1 and own:
                return
            has_many = held > 2 * (own + 1)
            is_enough = is_due or has_many or weight > CLASS_WEIGHTS[holder[0]]
            if between > (1 if is_enough else 2) or (own == 0 and has_many):
                yield holder

    def _excess(self, holder: Holder) -> float:
        return len(self._running.of(holder)) - self._share(holder)

    def _share(self, holder: Holder) -> float:
        row = self._standings.row(holder)
        return 0.0 if row is None else float(self._shares[row])

    def _loss(self, sequence: Sequence) -> tuple[int, int]:
        """Tokens to be computed again; of equal ones who came last goes first."""
        lost = sequence.num_computed
        if self._lost_of is not None:
            lost %= self._lost_of
        return lost, -sequence.number

    def _refresh(self) -> None:
        """Take in what has changed. O(holders), by vectors: this is done in each step."""
        standings = self._standings
        if self._seen == standings.changes:
            return
        self._seen = standings.changes
        demand, weights = standings.waiting + standings.running, standings.weights
        is_same = self._seen_entries == standings.entries and _are_same(demand, self._demand)
        if not is_same or not _are_same(weights, self._weights):
            self._seen_entries = standings.entries
            self._demand, self._weights = demand, weights.copy()
            self._shares = self._fair_shares(demand, weights)
        excess = standings.running - self._shares
        beyond = (excess > 0).nonzero()[0]
        furthest = beyond[(-excess[beyond]).argsort(kind="stable")[:GIVERS_LIMIT]]
        counts = excess[furthest].tolist(), standings.running[furthest].tolist()
        holders = map(standings.holder, furthest.tolist())
        self._beyond = list(zip(*counts, holders, strict=True))
        self._contested = self._is_contested(excess)
        self._has_newcomers = False
        if self.capacity < self._most:
            self._has_newcomers = bool(self._lack_one().any())

    def _fair_shares(self, demand: Int64s, weights: Float64s) -> Float64s:  # [num_rows]
        """Return how many rows each may have."""
        standings = self._standings
        if not self._units:
            return fair_shares(self.capacity, demand, weights, standings.classes)
        units = np.ones(len(demand))
        for holder, unit in self._units.items():
            row = standings.row(holder)
            if row is not None:
                units[row] = unit
        shares = fair_shares(self.capacity, demand * units, weights, standings.classes)
        rows: Float64s = shares / units
        return rows

    def _lack_one(self) -> Bools:  # [num_rows]
        """Mark those that wait and have no place, or one or more fewer than their share."""
        running = self._standings.running
        lack = (running == 0) | (running + 1 <= self._shares)
        marked: Bools = (self._standings.waiting > 0) & lack
        return marked

    def _is_contested(self, excess: Float64s) -> bool:
        """Whether anybody is sure to find a giver, or does: few are looked at one by one."""
        if not self._beyond:
            return False
        between = self._beyond[0][0] - excess
        if ((between > 2) & (excess < 0) & (self._standings.waiting > 0)).any():
            return True
        takers = map(self._standings.holder, self._could_take(excess).nonzero()[0].tolist())
        return any(next(self._givers(taker), None) for taker in takers)

    def _could_take(self, excess: Float64s) -> Bools:  # [num_rows]
        """Mark those that wait for a place which another could give up, or perhaps could."""
        standings = self._standings
        if not self._beyond:
            return np.zeros(len(excess), np.bool_)
        most = max(held for _, held, _ in self._beyond)
        between = self._beyond[0][0] - excess
        has_none = standings.running == 0
        has_many = most > 2 * (standings.running + 1)
        is_due = has_none & (self._shares >= 1)
        lightest = min(CLASS_WEIGHTS[holder[0]] for _, _, holder in self._beyond)
        is_heavier = class_weights(standings.classes) > lightest
        could = (between > 1) & (is_due | has_many | is_heavier) | has_none & has_many
        waits = (standings.waiting > 0) & (excess < 0)
        takers: Bools = waits & (could | (between > 2))
        return takers


def _are_same(
    new: Int64s | Float64s,  # [num_rows]
    old: Int64s | Float64s,  # [num_rows], perhaps fewer
) -> bool:
    """As numpy's `array_equal`, in a third of its time."""
    return len(new) == len(old) and bool((new == old).all())


def _is_free(sequence: Sequence, least_output: int) -> bool:
    """Whether it has had its place for long enough."""
    return (
        len(sequence.token_ids) >= sequence.service.stays_until
        and sequence.num_output >= least_output
    )
