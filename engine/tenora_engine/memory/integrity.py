"""Walks all owners of pages and proves that each used page has exactly one: for tests, and for an
engine that is idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from tenora_engine.memory.adapter_cache import AdapterCache
from tenora_engine.memory.kv_fetches import KVFetch
from tenora_engine.memory.pool import ADAPTER, CACHED_KV, FREE, LIVE_KV, IntegrityError, PagePool
from tenora_engine.memory.prefix import (
    PrefixNode,
    PrefixTree,
    num_blocks,
    pages_to,
    path,
    walk,
)
from tenora_engine.sequence import Sequence
from tenora_kernels.segments import BASE_SLOT


def check_ownership(
    pool: PagePool,
    tree: PrefixTree,
    adapters: AdapterCache,
    fetches: Iterable[KVFetch],
    running: Collection[Sequence],
) -> None:
    """Raises IntegrityError when a page has two owners, none, or the wrong kind, or when a count
    of references is wrong. `running`: the sequences that hold pages. O(pages)."""
    owners: dict[int, str] = {}
    _claim_cache(pool, tree, owners, running)
    _claim_sequences(pool, owners, running)
    _claim_fetches(pool, owners, fetches)
    _claim_adapters(pool, adapters, owners, running)
    if len(owners) + pool.num_free != pool.total:
        lost = [p for p in range(pool.total) if pool.kind(p) != FREE and p not in owners]
        raise IntegrityError(f"pages without an owner: {lost}")


def check_candidates(queued: int, tree: PrefixTree, adapters: AdapterCache) -> None:
    """Raises IntegrityError unless so many are what can be given up: adapters and leaves of the
    tree that nobody uses, and nobody has pinned."""
    candidates = sum(1 for item in adapters.residents() if item.is_idle)
    candidates += sum(1 for root in tree.roots() for _ in root.evictable())
    if candidates != queued:
        raise IntegrityError(f"{queued} candidates for eviction are queued, there are {candidates}")


def _claim(pool: PagePool, owners: dict[int, str], page: int, kind: int, owner: str) -> None:
    if page in owners:
        raise IntegrityError(f"page {page} belongs to {owners[page]} and to {owner}")
    if pool.kind(page) != kind:
        raise IntegrityError(
            f"page {page} of {owner} is marked {chr(pool.kind(page))!r}, not {chr(kind)!r}"
        )
    owners[page] = owner


def _claim_cache(
    pool: PagePool, tree: PrefixTree, owners: dict[int, str], running: Collection[Sequence]
) -> None:
    references: Counter[PrefixNode] = Counter()
    for sequence in running:
        references.update(path(sequence.prefix_end))
    for root in tree.roots():
        live = cached = 0
        for node in walk(root):
            _claim_node(pool, owners, node)
            if node.references != references.pop(node, 0):
                raise IntegrityError(f"wrong reference count on the cached {node}")
            if node.parent is not None and node.references > node.parent.references:
                raise IntegrityError(f"{node} is used without its prefix")
            live += len(node.pages) if node.references else 0
            cached += 0 if node.references else len(node.pages)
        if (live, cached) != (root.live_pages, root.cached_pages):
            raise IntegrityError(f"wrong page counts of {root.namespace}/{root.digest}")
    if references:
        raise IntegrityError("a sequence uses a cached block that is not in the tree")


def _claim_node(pool: PagePool, owners: dict[int, str], node: PrefixNode) -> None:
    kind = LIVE_KV if node.references else CACHED_KV
    for page in node.pages:
        _claim(pool, owners, page, kind, f"cache {node.root.namespace}/{node.root.digest}")
    if any(pool.owner(page) != node.root.number for page in node.pages):
        raise IntegrityError(f"pages of {node} are marked as another's")
    if len({pool.account(page) for page in node.pages}) != 1:
        raise IntegrityError(f"{node} is in several accounts, or empty")
    if node.depth != num_blocks(node.parent):
        raise IntegrityError(f"{node} does not begin where its prefix ends")


def _claim_sequences(pool: PagePool, owners: dict[int, str], running: Collection[Sequence]) -> None:
    for sequence in running:
        name = f"sequence {sequence.request.request_id}:{sequence.index}"
        shared = num_blocks(sequence.prefix_end)
        if pages_to(sequence.prefix_end) != sequence.block_table[:shared]:
            raise IntegrityError(f"{name} does not point at its cached blocks")
        for page in sequence.block_table[shared:]:
            _claim(pool, owners, page, LIVE_KV, name)


def _claim_fetches(pool: PagePool, owners: dict[int, str], fetches: Iterable[KVFetch]) -> None:
    for fetch in fetches:
        for page in fetch.pages:
            _claim(pool, owners, page, LIVE_KV, f"fetch for {fetch.root.namespace}")
        if not fetch.waiters or any(sequence.fetch is not fetch for sequence in fetch.waiters):
            raise IntegrityError("a fetch is under way for nobody")
        if any(block.fetch is not fetch for block in fetch.blocks):
            raise IntegrityError("a block under way could be evicted from the host")


def _claim_adapters(
    pool: PagePool,
    adapters: AdapterCache,
    owners: dict[int, str],
    running: Collection[Sequence],
) -> None:
    users: Counter[tuple[str, int]] = Counter()
    for sequence in running:
        adapter = sequence.request.adapter
        if (adapter is None) != (sequence.adapter_slot == BASE_SLOT):
            raise IntegrityError("a running sequence has the wrong kind of adapter slot")
        if adapter is not None:
            users[adapter.digest, sequence.adapter_slot] += 1
    for arriving in adapters.arriving():
        for page in arriving.pages:
            _claim(pool, owners, page, ADAPTER, f"the arriving adapter {arriving.digest}")
    for resident in adapters.residents():
        for page in resident.pages:
            _claim(pool, owners, page, ADAPTER, f"adapter {resident.digest}")
        if resident.references != users.pop((resident.digest, resident.slot), 0):
            raise IntegrityError(f"wrong reference count on adapter {resident.digest}")
    if users:
        raise IntegrityError(f"sequences run on adapters that are not resident: {list(users)}")
