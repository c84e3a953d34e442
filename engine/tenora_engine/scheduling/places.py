"""Places: who gives up a place in the running batch, and to whom, where there are too few. Counts
sequences by class and tenant; pages and tokens it does not know."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate
from typing import TypeVar

from tenora_engine.scheduling.classes import CLASS_WEIGHTS
from tenora_engine.scheduling.requests import RequestBook
from tenora_engine.scheduling.running import Demand, Holder, holder_of
from tenora_engine.sequence import Sequence

EXPRESS_PLACES = 8
"""By so many sequences express steps may exceed the places until a step of everybody's begins."""

GIVERS_LIMIT = 16
"""Of those beyond their shares, so many are looked at for one that wants a place."""

_Key = TypeVar("_Key")


def fair_shares(capacity: float, demands: Mapping[Holder, Demand]) -> dict[Holder, float]:
    """Max-min fair parts of `capacity`: of the classes by their weights, of the tenants in a class
    by theirs. Nobody has more than it asks for, and what one leaves the others have. O(n log n)."""
    by_class: dict[str, dict[Holder, Demand]] = {}
    for holder, demand in demands.items():
        by_class.setdefault(holder[0], {})[holder] = demand
    classes = {
        name: Demand(sum(d.sequences for d in members.values()), CLASS_WEIGHTS[name])
        for name, members in by_class.items()
    }
    parts = _fill(capacity, classes)
    return {
        holder: share
        for name, members in by_class.items()
        for holder, share in _fill(parts[name], members).items()
    }


def _fill(capacity: float, demands: Mapping[_Key, Demand]) -> dict[_Key, float]:
    """Progressive filling: who asks for the most over its weight is served last."""
    order = sorted(demands, key=lambda key: -demands[key].sequences / demands[key].weight)
    weights = list(accumulate(demands[key].weight for key in order))  # of each and those after it
    shares: dict[_Key, float] = {}
    for key, weight in zip(reversed(order), reversed(weights), strict=True):
        demand = demands[key]
        shares[key] = min(float(demand.sequences), capacity * demand.weight / weight)
        capacity -= shares[key]
    return shares


class Places:
    """The `capacity` places of a RequestBook's running sequences.

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
    """

    def __init__(self, book: RequestBook, capacity: int, block_tokens: int, caching: bool) -> None:
        """`block_tokens` and `caching`: what a sequence loses when it gives up its place."""
        self.capacity = capacity
        self._book = book
        self._queue = book.queue
        self._running = book.running
        self._young_tokens = block_tokens
        self._lost_of = block_tokens if caching else None
        self._num_tenants = 2
        self._seen = self._seen_demand = -1
        self._demands: dict[Holder, Demand] = {}  # running and waiting
        self._shares: dict[Holder, float] = {}
        self._contested = False
        self._beyond: list[tuple[float, Holder]] = []  # who holds more than its share, most first

    @property
    def are_full(self) -> bool:
        return len(self._running) >= self.capacity

    @property
    def are_contested(self) -> bool:
        """Whether something that waits might take one that is another's."""
        if not self.are_full:
            return False
        self._refresh()
        return self._contested

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

    def can_lend(self, sequence: Sequence) -> bool:
        """Whether a sequence that waits may start in an express step though the places are taken:
        another's is given up before the next step of everybody's."""
        self._refresh()
        exceeds = len(self._running) >= self.capacity + EXPRESS_PLACES
        return not exceeds and next(self._givers(holder_of(sequence)), None) is not None

    def take_back(self) -> Iterator[Sequence]:
        """Running sequences that are to give up their places, as many as exceed them. The caller
        stops each before it asks for the next."""
        while len(self._running) > self.capacity:
            self._refresh()
            holder = max(self._running.held, key=self._excess)
            held = self._running.of(holder)
            free = [s for s in held if _is_free(s, 0)]
            yield min(free or held, key=self._loss)

    def observe_tenants(self, number: int) -> None:
        """So many were there lately."""
        self._num_tenants = max(number, 2)

    def is_crowding(self, holder: Holder) -> bool:
        """Whether it has more than a part of the places, were all who were there lately there now
        (and one other, if it was alone). From any thread."""
        return len(self._running.of(holder)) * self._num_tenants > self.capacity

    @property
    def are_crowded(self) -> bool:
        """Whether somebody is crowding. O(holders)."""
        return any(map(self.is_crowding, self._running.held))

    def _givers(self, taker: Holder) -> Iterator[Holder]:
        """Those who could give a place to the taker, furthest beyond its share first."""
        below, own = self._excess(taker), len(self._running.of(taker))
        if below >= 0:
            return
        is_due = own == 0 and self._shares[taker] >= 1
        for beyond, holder in self._beyond[:GIVERS_LIMIT]:
            has_many = len(self._running.of(holder)) > 2 * (own + 1)
            is_heavier = CLASS_WEIGHTS[taker[0]] > CLASS_WEIGHTS[holder[0]]
            least = 1 if is_due or has_many or is_heavier else 2
            if beyond - below > least or (own == 0 and has_many):
                yield holder

    def _excess(self, holder: Holder) -> float:
        return len(self._running.of(holder)) - self._shares.get(holder, 0.0)

    def _loss(self, sequence: Sequence) -> tuple[int, int]:
        """Tokens to be computed again; of equal ones who came last goes first."""
        lost = sequence.num_computed
        if self._lost_of is not None:
            lost %= self._lost_of
        return lost, -sequence.number

    def _refresh(self) -> None:
        if self._seen == self._book.changes:
            return
        self._seen = self._book.changes
        if self._seen_demand != self._book.demand_changes:
            self._seen_demand = self._book.demand_changes
            self._demands = self._queue.demands()
            for holder, (running, weight) in self._running.demands().items():
                waiting = self._demands.get(holder)
                more = 0 if waiting is None else waiting.sequences
                self._demands[holder] = Demand(running + more, weight)
            self._shares = fair_shares(self.capacity, self._demands)
        shares = self._shares
        excesses = [(len(s) - shares.get(h, 0.0), h) for h, s in self._running.held.items()]
        self._beyond = sorted((each for each in excesses if each[0] > 0), reverse=True)
        self._contested = any(map(self._asks, self._demands)) if self._beyond else False

    def _asks(self, holder: Holder) -> bool:
        """Whether it waits for a place that somebody might give up."""
        running = len(self._running.of(holder))
        if running == self._demands[holder].sequences:
            return False
        return next(self._givers(holder), None) is not None


def _is_free(sequence: Sequence, least_output: int) -> bool:
    """Whether it has had its place for long enough."""
    return len(sequence.token_ids) >= sequence.stays_until and sequence.num_output >= least_output
