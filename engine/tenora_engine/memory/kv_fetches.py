"""KVFetches: which cached prefixes are on their way from the host to the device, and whether one
should be. It holds their pages until they are in the prefix tree; what to evict for them, and
whose turn it is, others decide."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING

from tenora_engine.config import ResolvedConfig
from tenora_engine.memory.costs import CostModel, fade
from tenora_engine.memory.host_kv import HostBlock, HostKV
from tenora_engine.memory.page_copier import PageCopier, PageCopy
from tenora_engine.memory.pool import PagePool
from tenora_engine.memory.prefix import (
    TOKEN_BYTES,
    PrefixNode,
    PrefixRoot,
    PrefixTree,
    num_blocks,
)

if TYPE_CHECKING:
    from tenora_engine.sequence import Sequence

MAX_FETCHES = 8
"""In flight at one time."""

MAX_TENANT_FETCHES = 4
"""Of them, of one tenant."""

AHEAD_FRACTION = 4
"""Of the arena, one over this is what fetches ahead of their turn may hold together."""

_TRIES = 3  # fetches for one sequence, come or cancelled, before what is missing is computed


@dataclass(eq=False)
class KVFetch:
    """`blocks` of the host on their way to `pages`: those of the path of `root` along `encoded`
    from the `start`-th on."""

    root: PrefixRoot
    encoded: bytes
    start: int
    blocks: list[HostBlock]
    pages: list[int]
    tenant_key: str
    copy: PageCopy
    waiters: dict[Sequence, None] = field(default_factory=dict)


class KVFetches:
    """Fetches in flight, at most MAX_FETCHES; a waiting sequence waits for at most one.

    `match` gives the end of what a sequence finds in the tree; `allocate(sequence, count, end,
    ahead)` at most `count` pages for it, none of them at the cost of that path or, `ahead` of its
    turn, of what any waiting sequence needs.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        host: HostKV,
        copier: PageCopier,
        tree: PrefixTree,
        pool: PagePool,
        costs: CostModel,
        clock: Callable[[], float],
        match: Callable[[Sequence], PrefixNode | None],
        allocate: Callable[[Sequence, int, PrefixNode | None, bool], list[int]],
    ) -> None:
        self.copier = copier
        self._host = host
        self._tree = tree
        self._pool = pool
        self._costs = costs
        self._clock = clock
        self._match = match
        self._allocate = allocate
        self._block_bytes = config.engine.block_tokens * TOKEN_BYTES
        self._page_bytes = config.page_bytes
        self._max_ahead = config.num_pages // AHEAD_FRACTION
        self._flights: dict[PageCopy, KVFetch] = {}
        self._started = self._cancelled = self._pages_fetched = 0

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[KVFetch]:
        yield from self._flights.values()

    @property
    def num_ended(self) -> int:
        """Fetches that have come or were cancelled."""
        return self._started - len(self._flights)

    def counters(self) -> dict[str, float]:
        """Of the KV on the host: its bytes now, and the pages and fetches that came and went."""
        return {
            "host_kv_bytes": self._host.used * self._page_bytes,
            "host_kv_writes": self._host.pages_written,
            "host_kv_evictions": self._host.evictions,
            "kv_fetches": self._started,
            "kv_fetches_cancelled": self._cancelled,
            "kv_pages_fetched": self._pages_fetched,
        }

    def request(self, sequence: Sequence, *, ahead: bool, busy: bool = False) -> bool:
        """Fetch what the host has of a waiting sequence's prefix and the device has not, if that
        takes less than computing it. Returns whether the sequence is to wait for a fetch.

        At its turn, what is fetched beside a step (`busy`) is there after the step at the
        earliest. `ahead` of its turn nothing is evicted that a waiting sequence needs.
        """
        if sequence.fetch is not None:
            return True
        if not self._host.used or (ahead and sequence.looked_ahead):
            return False
        end, blocks = self._find(sequence)
        if blocks and blocks[0].fetch is not None:
            self._join(sequence, blocks[0].fetch)
            return True
        least_s = self._costs.step_s if busy and not ahead else 0.0
        if not blocks or not self._pays(num_blocks(end), len(blocks), least_s):
            sequence.looked_ahead = True
            return False
        if self._is_full(sequence.request.tenant.key):
            return not ahead  # one of those in flight will end
        if ahead:
            del blocks[max(self._max_ahead - self._pages_in_flight(), 0) :]
        return self._start(sequence, end, blocks, ahead)

    def estimate(self, sequence: Sequence) -> tuple[int, float]:
        """Tokens of a waiting sequence's prefix that would be fetched as it stands now, and the
        seconds that takes; none of each where computing them takes less."""
        if not self._host.used:
            return 0, 0.0
        end, blocks = self._find(sequence)
        if not blocks or not self._pays(num_blocks(end), len(blocks), 0.0):
            return 0, 0.0
        return len(blocks) * self._block_bytes // TOKEN_BYTES, self._fetch_s(len(blocks))

    def take_completed(self) -> None:
        """Hand what has come to the prefix tree."""
        if not self._flights:
            return
        for copy in self.copier.take_completed():
            fetch = self._flights.get(copy)
            if fetch is None:
                continue
            if copy.failed:
                self._cancel(fetch)
                continue
            del self._flights[copy]
            self._costs.observe_fetch(len(fetch.pages) * self._page_bytes, copy.seconds)
            self._land(fetch)

    def leave(self, sequence: Sequence) -> None:
        """The sequence does not wait any more, wherever it goes. What nobody waits for is
        cancelled."""
        fetch = sequence.fetch
        if fetch is None:
            return
        sequence.fetch = None
        del fetch.waiters[sequence]
        if not fetch.waiters:
            self._cancel(fetch)

    def cancel(self, should: Callable[[KVFetch], bool] = lambda fetch: True) -> bool:
        """Cancel some of those in flight, at once; their pages are free then. Returns whether
        there were any."""
        doomed = [fetch for fetch in self._flights.values() if should(fetch)]
        for fetch in doomed:
            self._cancel(fetch)
        return bool(doomed)

    def _find(self, sequence: Sequence) -> tuple[PrefixNode | None, list[HostBlock]]:
        """Where that ends which the device has of its prefix, and what the host has from there on:
        up to what another fetch has, unless that comes first."""
        root = sequence.prefix_root
        if root is None or sequence.num_fetches >= _TRIES:
            return None, []
        end = self._match(sequence)
        blocks = self._host.match(root, end, sequence.encoded)
        under_way = (number for number, block in enumerate(blocks) if number and block.fetch)
        return end, blocks[: next(under_way, len(blocks))]

    def _join(self, sequence: Sequence, fetch: KVFetch) -> None:
        sequence.fetch = fetch
        fetch.waiters[sequence] = None

    def _pays(self, start: int, count: int, least_s: float) -> bool:
        return max(self._fetch_s(count), least_s) < self._costs.blocks_s(start, count)

    def _fetch_s(self, count: int) -> float:
        """Of so many pages, behind those in flight."""
        return self._costs.fetch_s((self._pages_in_flight() + count) * self._page_bytes)

    def _is_full(self, tenant_key: str) -> bool:
        own = sum(fetch.tenant_key == tenant_key for fetch in self._flights.values())
        return own >= MAX_TENANT_FETCHES or len(self._flights) >= MAX_FETCHES

    def _pages_in_flight(self) -> int:
        return sum(len(fetch.pages) for fetch in self._flights.values())

    def _start(
        self,
        sequence: Sequence,
        end: PrefixNode | None,
        blocks: list[HostBlock],
        ahead: bool,
    ) -> bool:
        """Fetch as many of `blocks` as there are pages for; returns whether there were any."""
        root, tenant_key = sequence.prefix_root, sequence.request.tenant.key
        assert root is not None
        copy = PageCopy(self._host.pages, [], [])
        fetch = KVFetch(root, b"", num_blocks(end), blocks, [], tenant_key, copy)
        self._host.pin(blocks, fetch)  # what is evicted for the pages goes to the host, too
        fetch.pages = self._allocate(sequence, len(blocks), end, ahead)
        fetch.blocks = blocks[: len(fetch.pages)]
        self._host.unpin(blocks[len(fetch.pages) :])
        if not fetch.pages:
            return False
        size = (fetch.start + len(fetch.pages)) * self._block_bytes
        fetch.encoded = sequence.encoded[: size + TOKEN_BYTES]  # `match` leaves a token
        sources = [block.page for block in fetch.blocks]
        fetch.copy = PageCopy(self._host.pages, sources, fetch.pages)
        self._flights[fetch.copy] = fetch
        self._join(sequence, fetch)
        self._started += 1
        self.copier.start(fetch.copy)
        return True

    def _land(self, fetch: KVFetch) -> None:
        """Its pages become cached KV of the tree, but for those of blocks that are there already
        or whose prefix is gone."""
        now_s, step, size = self._clock(), self._block_bytes, len(fetch.pages)
        end = self._tree.match(fetch.root, fetch.encoded)
        there = num_blocks(end) - fetch.start
        come = there if there >= 0 else size
        self._pool.release(fetch.pages[:come])
        pages = iter(fetch.pages[come:])
        for _, alike in groupby(fetch.blocks[come:], _use):
            blocks = list(alike)
            encoded = fetch.encoded[blocks[0].depth * step : (blocks[-1].depth + 1) * step]
            own, last = array("i", islice(pages, len(blocks))), end
            end = self._tree.attach(fetch.root, last, encoded, own, now_s)
            end.chains = [block.chain for block in blocks]
            end.heat = blocks[0].heat * fade(max(now_s - blocks[0].last_used_s, 0.0))
            end.visits = blocks[0].visits
            self._tree.unpin(end, now_s, last)
        self._host.unpin(fetch.blocks)
        self._pages_fetched += size - come
        next(iter(fetch.waiters)).unpaid_pages += len(fetch.pages)  # one pays for all who share it
        for sequence in fetch.waiters:
            sequence.fetch = None
            sequence.num_fetches += 1
            sequence.looked_ahead = False
            self._tree.unwant(sequence.wanted_end)
            sequence.wanted_end = self._match(sequence)
            self._tree.want(sequence.wanted_end)

    def _cancel(self, fetch: KVFetch) -> None:
        del self._flights[fetch.copy]
        self.copier.cancel(fetch.copy)
        self._pool.release(fetch.pages)
        self._host.unpin(fetch.blocks)
        for sequence in fetch.waiters:
            sequence.fetch = None
            sequence.num_fetches += 1
            sequence.looked_ahead = False
        self._cancelled += 1
        if fetch.waiters and self.copier.on_complete is not None:
            self.copier.on_complete()


def _use(block: HostBlock) -> tuple[float, float, int]:
    return block.heat, block.last_used_s, block.visits
