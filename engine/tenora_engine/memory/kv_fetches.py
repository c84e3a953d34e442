"""KVFetches: which cached prefixes are on their way from the host to the device, and whether one
should be. It holds their pages until they are in the prefix tree; what to evict for them, and
whose turn it is, others decide."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from itertools import groupby, islice

from tenora_engine.config import ResolvedConfig
from tenora_engine.memory.allocator import PageAllocator
from tenora_engine.memory.costs import CostModel, fade
from tenora_engine.memory.host_kv import HostBlock, HostKV, KVFetch
from tenora_engine.memory.operations import MemoryOperations
from tenora_engine.memory.prefix import (
    TOKEN_BYTES,
    PrefixNode,
    PrefixTree,
    num_blocks,
)
from tenora_engine.sequence import Sequence
from tenora_engine.step import EndedCopy

MAX_FETCHES = 8
"""In flight at one time."""

MAX_TENANT_FETCHES = 4
"""Of them, of one tenant; more than its first only while half are free."""

AHEAD_FRACTION = 4
"""Of the arena, one over this is what fetches ahead of their turn may hold together."""

_TRIES = 3  # fetches for one sequence, come or cancelled, before what is missing is computed


class KVFetches:
    """Fetches in flight, at most MAX_FETCHES; a waiting sequence waits for at most one."""

    def __init__(
        self,
        config: ResolvedConfig,
        allocator: PageAllocator,
        tree: PrefixTree,
        host: HostKV,
        operations: MemoryOperations,
        costs: CostModel,
        clock: Callable[[], float],
    ) -> None:
        self._operations = operations
        self._host = host
        self._tree = tree
        self._allocator = allocator
        self._costs = costs
        self._clock = clock
        self._block_bytes = config.engine.block_tokens * TOKEN_BYTES
        self._page_bytes = config.page_bytes
        self._max_ahead = config.num_pages // AHEAD_FRACTION
        self.in_flight: dict[int, KVFetch] = {}
        self.num_ended = 0  # that have come or were cancelled
        self.on_ended: Callable[[Collection[Sequence]], None] = lambda sequences: None
        """Is told who waited for one that has come or was cancelled."""
        self._waiters: dict[KVFetch, dict[Sequence, None]] = {}
        self._started = self._cancelled = self._pages_fetched = 0

    def __len__(self) -> int:
        return len(self.in_flight)

    def __iter__(self) -> Iterator[KVFetch]:
        yield from self.in_flight.values()

    def waiters(self, fetch: KVFetch) -> Collection[Sequence]:
        """The sequences that wait for one in flight, at least one."""
        return self._waiters[fetch]

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
        if sequence.prefix.fetch is not None:
            return True
        if not self._host.used or (ahead and sequence.prefix.looked_ahead):
            return False
        end, blocks = self._find(sequence)
        if blocks and blocks[0].fetch is not None:
            self._join(sequence, blocks[0].fetch)
            return True
        least_s = self._costs.step_s if busy and not ahead else 0.0
        if not blocks or not self._pays(num_blocks(end), len(blocks), least_s):
            sequence.prefix.looked_ahead = True
            return False
        if self.is_full(sequence.request.tenant.key):
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

    def take(self, copies: Iterable[EndedCopy]) -> None:
        """Hand what has come to the prefix tree."""
        for copy in copies:
            fetch = self.in_flight.get(copy.copy)
            if fetch is None:
                continue
            if copy.failed:
                self._cancel(fetch)
                continue
            self._costs.observe_fetch(len(fetch.pages) * self._page_bytes, copy.seconds)
            self._land(fetch)

    def leave(self, sequence: Sequence) -> None:
        """The sequence does not wait any more, wherever it goes. What nobody waits for is
        cancelled."""
        fetch = sequence.prefix.fetch
        if fetch is None:
            return
        sequence.prefix.fetch = None
        waiters = self._waiters[fetch]
        del waiters[sequence]
        if not waiters:
            self._cancel(fetch)

    def cancel(self, tenant_key: str | None = None) -> bool:
        """Cancel those in flight, all or one tenant's, at once; their pages are free then. Returns
        whether there were any."""
        doomed = [fetch for fetch in self if tenant_key in (None, fetch.tenant_key)]
        for fetch in doomed:
            self._cancel(fetch)
        return bool(doomed)

    def cancel_others(self, sequences: Set[Sequence]) -> None:
        """Cancel those that none of the sequences waits for."""
        for fetch in list(self):
            if sequences.isdisjoint(self._waiters[fetch]):
                self._cancel(fetch)

    def purge(self, namespace: str, digest: str) -> None:
        """Cancel those of one (namespace, digest)."""
        for fetch in list(self):
            if (fetch.root.namespace, fetch.root.digest) == (namespace, digest):
                self._cancel(fetch)

    def _find(self, sequence: Sequence) -> tuple[PrefixNode | None, list[HostBlock]]:
        """Where that ends which the device has of its prefix, and what the host has from there on:
        up to what another fetch has, unless that comes first."""
        root = sequence.prefix.root
        if root is None or sequence.num_unscored or sequence.prefix.num_fetches >= _TRIES:
            return None, []
        end = self._tree.match(root, sequence.prefix.encoded)
        blocks = self._host.match(root, end, sequence.prefix.encoded)
        under_way = (number for number, block in enumerate(blocks) if number and block.fetch)
        return end, blocks[: next(under_way, len(blocks))]

    def _join(self, sequence: Sequence, fetch: KVFetch) -> None:
        sequence.prefix.fetch = fetch
        self._waiters.setdefault(fetch, {})[sequence] = None

    def _pays(self, start: int, count: int, least_s: float) -> bool:
        return max(self._fetch_s(count), least_s) < self._costs.blocks_s(start, count)

    def _fetch_s(self, count: int) -> float:
        """Of so many pages, behind those in flight."""
        return self._costs.fetch_s((self._pages_in_flight() + count) * self._page_bytes)

    def is_full(self, tenant_key: str) -> bool:
        """Whether no more may be in flight for the tenant."""
        own = sum(fetch.tenant_key == tenant_key for fetch in self.in_flight.values())
        most = MAX_FETCHES // 2 if own else MAX_FETCHES
        return own >= MAX_TENANT_FETCHES or len(self.in_flight) >= most

    def _pages_in_flight(self) -> int:
        return sum(len(fetch.pages) for fetch in self.in_flight.values())

    def _start(
        self,
        sequence: Sequence,
        end: PrefixNode | None,
        blocks: list[HostBlock],
        ahead: bool,
    ) -> bool:
        """Fetch as many of `blocks` as there are pages for; returns whether there were any."""
        root, tenant_key = sequence.prefix.root, sequence.request.tenant.key
        assert root is not None
        fetch = KVFetch(root, b"", num_blocks(end), blocks, [], tenant_key)
        self._host.pin(blocks, fetch)  # what is evicted for the pages goes to the host, too
        fetch.pages = self._allocator.allocate_at_most(
            len(blocks), root.namespace, root.number, end, spares_wanted=ahead
        )
        fetch.blocks = blocks[: len(fetch.pages)]
        self._host.unpin(blocks[len(fetch.pages) :])
        if not fetch.pages:
            return False
        size = (fetch.start + len(fetch.pages)) * self._block_bytes
        fetch.encoded = sequence.prefix.encoded[: size + TOKEN_BYTES]  # `match` leaves a token
        sources = [block.page for block in fetch.blocks]
        fetch.copy = self._operations.fetch(sources, fetch.pages)
        self.in_flight[fetch.copy] = fetch
        self._join(sequence, fetch)
        self._started += 1
        return True

    def _land(self, fetch: KVFetch) -> None:
        """Its pages become cached KV of the tree, but for those of blocks that are there already
        or whose prefix is gone."""
        now_s, step, size = self._clock(), self._block_bytes, len(fetch.pages)
        end = self._tree.match(fetch.root, fetch.encoded)
        there = num_blocks(end) - fetch.start
        come = there if there >= 0 else size
        self._allocator.release(fetch.pages[:come])
        pages = iter(fetch.pages[come:])
        for _, alike in groupby(fetch.blocks[come:], _use):
            blocks = list(alike)
            encoded = fetch.encoded[blocks[0].depth * step : (blocks[-1].depth + 1) * step]
            own, last = array("i", islice(pages, len(blocks))), end
            end = self._tree.attach(fetch.root, last, encoded, own, now_s)
            end.hashes = [block.block_hash for block in blocks]
            end.heat = blocks[0].heat * fade(max(now_s - blocks[0].last_used_s, 0.0))
            end.visits = blocks[0].visits
            self._tree.unpin(end, now_s, last)
        self._host.unpin(fetch.blocks)
        self._pages_fetched += size - come
        waiters = self._end(fetch)
        waiters[0].prefix.unpaid_pages += len(fetch.pages)  # one pays for all who share it
        for sequence in waiters:
            self._tree.unwant(sequence.prefix.wanted_end)
            sequence.prefix.wanted_end = self._tree.match(fetch.root, sequence.prefix.encoded)
            self._tree.want(sequence.prefix.wanted_end)

    def _end(self, fetch: KVFetch) -> list[Sequence]:
        """It is not in flight any more; returns those which waited for it."""
        del self.in_flight[fetch.copy]
        self.num_ended += 1
        waiters = list(self._waiters.pop(fetch))
        for sequence in waiters:
            sequence.prefix.fetch = None
            sequence.prefix.num_fetches += 1
            sequence.prefix.looked_ahead = False
        self.on_ended(waiters)
        return waiters

    def _cancel(self, fetch: KVFetch) -> None:
        self._operations.cancel(fetch.copy)
        self._allocator.release(fetch.pages)
        self._host.unpin(fetch.blocks)
        self._cancelled += 1
        self._end(fetch)


def _use(block: HostBlock) -> tuple[float, float, int]:
    return block.heat, block.last_used_s, block.visits
