"""Waits: because of whom, or of what, each sequence waits, second by second. It changes no order:
who plans the steps tells it what they serve and what was short.

A second is the doing of the first of these that holds:
  load       the sequence's own adapter (or its kept KV) is on its way; it would have had to wait
             for it if it were alone
  own        it waits for others of its own request: for the first one, or in a beam search
  pages      it was looked at and found no memory: by the pages that each tenant held
  queue      the step served others: by their places when the places are full, else by the tokens
             that each had in the step. The part that went to its own tenant is `own` again.
  start      nothing ran: the platform was at work, or the engine was about to look
After a sequence has run once, what it waits is `preempted`, by whoever was served meanwhile.
docs/fairness.md has this for operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from tenora_engine.clocks import Clock
from tenora_engine.memory.adapter_cache import ResidentAdapter
from tenora_engine.memory.manager import MemoryManager
from tenora_engine.scheduling.plan import ScheduledSequence
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.running import Running, Standings
from tenora_engine.scheduling.wait_accounts import (
    FIRST_TENANT,
    LOAD,
    NOBODYS_PAGES,
    OWN,
    START,
    Float64s,
    WaitClock,
    WaitNames,
    WaitSums,
    pages_of,
    queue_of,
)
from tenora_engine.sequence import Sequence
from tenora_engine.telemetry import GapMinute, WaitPart, WaitTotal

CELLS_MAX = 2048
"""Pairs of who waited and because of whom that are told apart; what comes later is because of
OTHER."""

TOLD_S = 0.02
"""Of one sequence, shorter waits are not taken apart: that takes some microseconds."""

PAGES_PERIOD_S = 0.02
"""How often it is looked who holds the memory that another waits for: that is O(running)."""

PARKED = 1 << 62
"""A step that never comes: as long as a sequence is parked it lacks what it was parked for."""

SETTLE_PERIOD_S = 1.0
"""Totals of what waits still are no older than this when they are asked for: that is O(waiting)."""


@dataclass(eq=False, slots=True)
class Wait:
    """Of one sequence, from when it came to the queue until it runs or ends."""

    again: bool  # it has run before
    clock: WaitClock | None  # by which its seconds are taken; None: all by `fixed`
    reading: Float64s  # of the clock, when it began to go by it
    since_s: float  # when that was
    fixed: int = START
    before_s: float = 0.0  # that it had waited when the engine was given it
    step: int = 0  # in which it was last found short of memory
    key: str = ""  # of the clock, where it is one of memory
    parts: Float64s | None = None  # settled
    told: Float64s | None = None  # how much of them is in the totals


class Waits:
    """Of one engine. `begin` and `end` bracket each time that a sequence waits; `plan` is told of
    every step while anything does."""

    def __init__(
        self,
        names: WaitNames,
        standings: Standings,
        memory: MemoryManager,
        clock: Callable[[], float],
    ) -> None:
        self._standings = standings
        self._memory = memory
        self._now = clock
        self.names = names
        self.gaps = GapWatch()
        self._size = self.names.size
        self._waiting: dict[Sequence, Wait] = {}
        self._by_digest: dict[str, dict[Sequence, None]] = {}  # those that wait, by their adapters
        self._short: dict[Sequence, Wait] = {}  # found short of memory lately
        self._queue = WaitClock(self._size)
        self._clocks: dict[str, WaitClock] = {}  # of memory
        self._seen: tuple[int, bool] | None = None  # what the queue's rates were made of
        self._is_idle = True  # nothing waits, as of the last step
        self._step = 0
        self._is_short = False  # nobody behind one that is short of memory was looked at
        self._sums: dict[tuple[str, str, bool], WaitSums] = {}
        self._cells_left = CELLS_MAX
        self._settled_s = -np.inf
        self.on_load_ended: Callable[[str], None] = lambda digest: None
        """Called with a digest that waiting sequences need, when it is on its way no more."""

    def begin(
        self, sequence: Sequence, now_s: float, *, again: bool = False, is_loading: bool = False
    ) -> None:
        """It comes to the queue; `again`: it has run before; `is_loading`: its adapter is."""
        clock = self._queue
        clock.advance(now_s)
        wait = Wait(again, clock, clock.reading, now_s)
        if not again:
            wait.before_s = now_s - sequence.arrival_s
        self._waiting[sequence] = sequence.waits.now = wait
        adapter = sequence.request.adapter
        if adapter is not None:
            self._by_digest.setdefault(adapter.digest, {})[sequence] = None
            is_coming = is_loading or self._memory.is_arriving(sequence.request)
            if is_coming and self._memory.resident(sequence.request) is None:
                wait.clock, wait.fixed = None, LOAD

    def hold(self, sequences: Iterable[Sequence], now_s: float) -> None:
        """They wait for others of their request."""
        for sequence in sequences:
            self.begin(sequence, now_s, again=sequence.usage.admitted_s is not None)
            self._change(sequence, None, OWN, now_s)

    def release(self, sequence: Sequence, now_s: float) -> None:
        """One that was held comes to the queue."""
        self._change(sequence, self._queue, START, now_s)

    def end(self, sequence: Sequence, now_s: float) -> None:
        """It runs from now on, or has ended."""
        wait = self._waiting.pop(sequence)
        sequence.waits.now = None
        self._go(wait, sequence)
        adapter = sequence.request.adapter
        if adapter is not None:
            same = self._by_digest[adapter.digest]
            del same[sequence]
            if not same:
                del self._by_digest[adapter.digest]
        parts = self._settle(wait, now_s)
        self._tell(sequence, wait, parts)
        if wait.again:
            before = sequence.waits.again
            if before is not None:
                parts = parts + before
            sequence.waits.again = parts
        else:
            sequence.waits.first = parts

    def load_changed(self, digest: str, is_coming: bool) -> None:
        """An adapter sets out for the device, by whichever part of its way, or has come to the end
        of it or been given up."""
        same = self._by_digest.get(digest)
        if not same:
            return
        now_s = self._now()
        for sequence in same:
            wait = self._waiting[sequence]
            if is_coming:
                if wait.fixed != OWN and self._memory.resident(sequence.request) is None:
                    self._change(sequence, None, LOAD, now_s)
            elif wait.fixed == LOAD:
                self._change(sequence, self._queue, START, now_s)
        if not is_coming:
            self.on_load_ended(digest)

    def short_of_pages(self, sequence: Sequence) -> None:
        """It was looked at in this step, and there was no memory for it."""
        is_alone = self._memory.is_partitioned
        self._find_short(sequence, f"pages/{sequence.request.tenant.key}" if is_alone else "pages")

    def short_of_slots(self, sequence: Sequence) -> None:
        """There was no slot for its adapter, and it is not looked at again until `woken`."""
        self._find_short(sequence, "slots")
        self._waiting[sequence].step = PARKED

    def woken(self, sequence: Sequence) -> None:
        """It is looked at again."""
        self._waiting[sequence].step = self._step

    def stopped_short(self) -> None:
        """Nothing behind one that is short of memory is looked at in this step."""
        self._is_short = True

    def plan(self, chunks: Collection[ScheduledSequence], running: Running, are_full: bool) -> None:
        """A step of everybody's begins, with these `chunks` of prefill beside all that decodes;
        `are_full`: nobody is let in for want of a place. O(chunks), and O(running) now and then
        where memory is short."""
        is_short, self._is_short = self._is_short, False
        if self._is_nobody_here():
            return
        self._step += 1
        now_s = self._now()
        if self._short:
            self._look_at_memory(running, now_s)
        chunks = () if are_full else chunks
        seen = self._standings.changes, is_short
        if seen == self._seen and not chunks:
            return
        self._seen = None if chunks else seen
        self._queue.advance(now_s)
        if is_short:
            self._queue.set_rates(*self._pages_held(running, ()), NOBODYS_PAGES)
            return
        parts = np.zeros(self._size)
        places = self._standings.tenants_running[: self.names.most]
        parts[FIRST_TENANT : FIRST_TENANT + 2 * len(places) : 2] = places
        self._queue.set_rates(parts, len(running) + self._add_tokens(parts, chunks, -1))

    def plan_express(self, chunks: Iterable[ScheduledSequence]) -> None:
        """A step of these prefills alone begins."""
        if self._is_nobody_here():
            return
        self._seen = None
        self._queue.advance(self._now())
        parts = np.zeros(self._size)
        self._queue.set_rates(parts, self._add_tokens(parts, chunks, 0))

    def totals(self) -> list[WaitTotal]:
        """Of all waits, those that have not ended as of about SETTLE_PERIOD_S ago."""
        now_s = self._now()
        if now_s - self._settled_s >= SETTLE_PERIOD_S:
            self._settled_s = now_s
            for sequence, wait in self._waiting.items():
                self._tell(sequence, wait, self._settle(wait, now_s))
        found: list[WaitTotal] = []
        for (name, tenant, again), sums in self._sums.items():
            self._cells_left -= sums.learn(self._cells_left)
            found += self.names.totals(name, tenant, sums, again)
        return found

    def parts(self, sequence: Sequence) -> list[WaitPart]:
        """Of what one has waited, the largest first; nothing of a wait shorter than TOLD_S."""
        since_s, until_s = sequence.arrival_s, sequence.usage.admitted_s
        is_brief = until_s is not None and until_s - since_s < TOLD_S
        if is_brief and sequence.waits.again is None:
            return []
        return self.names.parts(
            sequence.usage.meter.tenant, sequence.waits.first, sequence.waits.again
        )

    def _is_nobody_here(self) -> bool:
        """Nothing waits: what comes next waits for nobody until a step is planned."""
        if self._waiting:
            self._is_idle = False
        elif not self._is_idle:
            self._queue.advance(self._now())
            self._queue.set_rates(np.zeros(self._size), 0.0)
            self._is_idle, self._seen = True, None
        return self._is_idle

    def _find_short(self, sequence: Sequence, key: str) -> None:
        wait = self._waiting[sequence]
        wait.step = self._step + 1  # that is being planned
        if wait.key == key or wait.fixed == OWN:
            return
        now_s = self._now()
        clock = self._clocks.get(key)
        if clock is None:
            clock = self._clocks[key] = WaitClock(self._size, NOBODYS_PAGES)
        self._change(sequence, clock, START, now_s, key)
        self._short[sequence] = wait

    def _change(
        self, sequence: Sequence, clock: WaitClock | None, fixed: int, now_s: float, key: str = ""
    ) -> None:
        """From now on something else keeps it."""
        wait = self._waiting[sequence]
        if wait.clock is clock and wait.fixed == fixed:
            return
        self._settle(wait, now_s)
        self._go(wait, sequence)
        wait.clock, wait.fixed, wait.key = clock, fixed, key
        if clock is not None:
            clock.members += 1
            clock.advance(now_s)
            wait.reading = clock.reading

    def _go(self, wait: Wait, sequence: Sequence) -> None:
        """It leaves the clock that it went by."""
        if not wait.key:
            return
        self._short.pop(sequence, None)
        clock = self._clocks[wait.key]
        clock.members -= 1
        if not clock.members:
            del self._clocks[wait.key]
        wait.key = ""

    def _settle(self, wait: Wait, now_s: float) -> Float64s:
        """All that it has waited, taken apart."""
        clock = wait.clock
        if clock is None:
            parts = np.zeros(self._size) if wait.parts is None else wait.parts.copy()
            parts[wait.fixed] += now_s - wait.since_s
        else:
            clock.advance(now_s)
            parts = clock.reading - wait.reading
            wait.reading = clock.reading
            if wait.parts is not None:
                parts += wait.parts
        if wait.before_s:
            parts[START] += wait.before_s
            wait.before_s = 0.0
        wait.since_s, wait.parts = now_s, parts
        return parts

    def _tell(self, sequence: Sequence, wait: Wait, parts: Float64s) -> None:
        meter = sequence.usage.meter
        key = meter.service_class, meter.tenant, wait.again
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = WaitSums(self._size)
        sums.add(parts, wait.told)
        wait.told = parts

    def _add_tokens(self, parts: Float64s, chunks: Iterable[ScheduledSequence], beside: int) -> int:
        """Of a step, by tenant, each chunk's and `beside` that; returns how many."""
        total, number_of = 0, self.names.number
        for chunk in chunks:
            tokens = chunk.num_tokens + beside
            parts[queue_of(number_of(chunk.sequence.usage.meter.tenant))] += tokens
            total += tokens
        return total

    def _look_at_memory(self, running: Running, now_s: float) -> None:
        """Who is not short any more goes back to the queue; the others' clocks are set by who holds
        the memory now."""
        for sequence, wait in list(self._short.items()):
            if wait.step < self._step:
                self._change(sequence, self._queue, START, now_s)
        for sequence, wait in self._short.items():
            clock = self._clocks[wait.key]
            if now_s - clock.rated_s < PAGES_PERIOD_S:
                continue
            clock.advance(now_s)
            clock.rated_s = now_s
            if wait.key == "slots":
                held = self._slots_held()
            elif wait.key == "pages":
                held = self._pages_held(running, self._memory.adapters.residents())
            else:
                memory = self._memory
                adapters = [
                    each
                    for each in self._memory.adapters.residents()
                    if memory.adapter_competes(sequence, each)
                ]
                held = self._pages_held(memory.competitors(sequence, running), adapters)
            clock.set_rates(*held, NOBODYS_PAGES)

    def _pages_held(
        self, running: Iterable[Sequence], adapters: Iterable[ResidentAdapter]
    ) -> tuple[Float64s, int]:
        """By tenant and in all: of its running sequences, and of adapters in use that it used last.
        Pages that several sequences read count for each."""
        parts, total, number_of = np.zeros(self._size), 0, self.names.number
        for sequence in running:
            count = len(sequence.block_table)
            parts[pages_of(number_of(sequence.usage.meter.tenant))] += count
            total += count
        for adapter in adapters:
            if adapter.references:
                count = len(adapter.pages)
                parts[pages_of(number_of(adapter.meter.tenant))] += count
                total += count
        return parts, total

    def _slots_held(self) -> tuple[Float64s, int]:
        parts, total, number_of = np.zeros(self._size), 0, self.names.number
        for adapter in self._memory.adapters.residents():
            if adapter.references:
                parts[pages_of(number_of(adapter.meter.tenant))] += 1
                total += 1
        return parts, total


GAP_PERIOD_S = 0.1
"""How often it looks, while anything waits: that is O(tenants that wait)."""

MINUTES_KEPT = 5


class GapWatch:
    """Of one engine. Of each minute the moment at which a gap was nearest to its bound."""

    def __init__(self) -> None:
        self._looked_s = -math.inf
        self._minutes: dict[tuple[int, str], GapMinute] = {}

    def look(self, queue: WaitingQueue, now_s: float, unix_offset: Clock) -> None:
        """A step has been planned."""
        if now_s - self._looked_s < GAP_PERIOD_S or not len(queue):
            return
        self._looked_s = now_s
        minute = int((now_s + unix_offset()) // 60)
        for name, (gap, bound) in queue.contested().items():
            key = minute, name
            known = self._minutes.get(key)
            if known is None:
                self._forget(minute)
            elif gap * known.bound <= known.gap * bound:
                continue
            self._minutes[key] = GapMinute(minute * 60, name, gap, bound)

    def recent(self) -> list[GapMinute]:
        """The last minutes in which two tenants waited in one class."""
        return list(self._minutes.values())

    def _forget(self, minute: int) -> None:
        self._minutes = {
            key: each for key, each in self._minutes.items() if abs(key[0] - minute) < MINUTES_KEPT
        }
