"""HostKV: copies of evicted KV pages in host memory, by what they were computed from. It owns the
host's pages by number; when one is fetched, and for whom, it does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256

from tenora_engine.config import ResolvedConfig
from tenora_engine.memory.costs import CostModel
from tenora_engine.memory.eviction_queue import EvictionQueue
from tenora_engine.memory.operations import MemoryOperations
from tenora_engine.memory.policies import Candidate, EvictionPolicy, MemoryState
from tenora_engine.memory.pool import IntegrityError
from tenora_engine.memory.prefix import TOKEN_BYTES, PrefixNode, PrefixRoot, num_blocks


class HostBlock:
    """The copy of one block. `block_hash`: SHA-256 over its namespace, its adapter's digest and
    all tokens up to its end; `parent_hash`: of the block before it."""

    __slots__ = (
        "block_hash", "depth", "fetch", "heat", "last_used_s", "page", "parent_hash", "root",
        "ticket", "visits", "weight",
    )  # fmt: skip

    def __init__(
        self, root: tuple[str, str], block_hash: bytes, parent_hash: bytes, depth: int, page: int
    ) -> None:
        self.root = root
        self.block_hash = block_hash
        self.parent_hash = parent_hash
        self.depth = depth
        self.page = page
        self.weight = 1.0
        self.heat = 0.0
        self.visits = 0
        self.last_used_s = 0.0
        self.fetch: KVFetch | None = None  # by which it is being copied to the device
        self.ticket = 0  # its place among the candidates for eviction; 0 = none


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
    copy: int = 0  # its number, once it has begun


class HostKV:
    """At most `config.engine.host_kv_bytes` of KV pages; none under strict isolation, where one
    tenant could see by a miss that another fills the tier.

    A page is written when the device evicts it (`store`), if fetching it would take less than
    computing it and it is worth more than the least that lies here; it stays when it is fetched.
    What nothing here builds upon may be evicted, the least by the policy's value first, as the
    device's KV is.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        policy: EvictionPolicy,
        costs: CostModel,
        clock: Callable[[], float],
        operations: MemoryOperations,
    ) -> None:
        self.total = config.num_host_pages
        self._operations = operations
        self._block_bytes = config.engine.block_tokens * TOKEN_BYTES
        self._page_bytes = config.page_bytes
        self._policy = policy
        self._costs = costs
        self._clock = clock
        self._free = list(range(self.total - 1, -1, -1))
        self._blocks: dict[bytes, HostBlock] = {}
        self._roots: dict[tuple[str, str], dict[HostBlock, None]] = {}
        self._children: Counter[bytes] = Counter()  # blocks by `parent_hash`
        self._queue: EvictionQueue[HostBlock] = EvictionQueue()
        self._most_visits = 1
        self._valued_s = 0.0
        self.pages_written = 0
        self.evictions = 0

    def __contains__(self, node: PrefixNode) -> bool:
        """Whether its last block lies here."""
        return self.holds(node, 0)

    def holds(self, node: PrefixNode, without: int) -> bool:
        """Whether the block does that is the last if so many are taken to be gone."""
        return len(node.hashes) > without and node.hashes[-1 - without] in self._blocks

    @property
    def used(self) -> int:
        return len(self._blocks)

    def hash_blocks(self, node: PrefixNode | None) -> None:
        """The new blocks at the end of a node of the prefix tree, those before named already."""
        if not self.total or node is None:
            return
        for number in range(len(node.hashes), len(node.pages)):
            key = node.key[number * self._block_bytes : (number + 1) * self._block_bytes]
            node.hashes.append(_hash(_parent_hash(node, number), key))

    def store(self, node: PrefixNode, most: int) -> None:
        """At most so many of the last blocks of a node of the prefix tree are about to be evicted:
        copy their pages, where that is worth it."""
        if self.total:
            for number in range(len(node.pages) - 1, max(len(node.pages) - most, 0) - 1, -1):
                self._store(node, number)

    def match(self, root: PrefixRoot, last: PrefixNode | None, encoded: bytes) -> list[HostBlock]:
        """The blocks that go on from `last`, a node of `root` or None, along the tokens of
        `encoded` from the root on (see `prefix.encode_tokens`). As in the tree, the last token is
        never part of it."""
        blocks: list[HostBlock] = []
        if not self._blocks or root.purged:
            return blocks
        step, block_hash = self._block_bytes, _last_hash(root, last)
        for at in range(num_blocks(last) * step, len(encoded) - step, step):
            block_hash = _hash(block_hash, encoded[at : at + step])
            block = self._blocks.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def pin(self, blocks: Iterable[HostBlock], fetch: KVFetch) -> None:
        """They are being copied to the device, each by one fetch at a time."""
        for block in blocks:
            block.fetch = fetch
            self._queue.withdraw(block)

    def unpin(self, blocks: Iterable[HostBlock]) -> None:
        for block in blocks:
            block.fetch = None
            self._offer(block)

    def purge(self, namespace: str, digest: str) -> int:
        """Free all pages of one (namespace, digest), none of which is being copied. Returns how
        many they were."""
        blocks = self._roots.pop((namespace, digest), {})
        for block in list(blocks):
            self._remove(block)
        return len(blocks)

    def check(self) -> None:
        """Raises IntegrityError when a page is lost or counted twice. O(pages)."""
        pages = [*self._free, *(block.page for block in self._blocks.values())]
        if sorted(pages) != list(range(self.total)):
            raise IntegrityError("a page of the host's KV is lost or counted twice")
        if Counter(block.parent_hash for block in self._blocks.values()) != self._children:
            raise IntegrityError("the host's KV does not know what builds on what")
        if sum(len(blocks) for blocks in self._roots.values()) != len(self._blocks):
            raise IntegrityError("a block of the host's KV has no root")
        if sum(map(self._is_candidate, self._blocks.values())) != len(self._queue):
            raise IntegrityError("wrong candidates for eviction from the host's KV")

    def _store(self, node: PrefixNode, number: int) -> None:
        block_hash, depth = node.hashes[number], node.depth + number
        block = self._blocks.get(block_hash)
        if block is None:
            if self._costs.fetch_s(self._page_bytes) >= self._costs.block_s(depth):
                return
            root = node.root.namespace, node.root.digest
            block = HostBlock(root, block_hash, _parent_hash(node, number), depth, -1)
        block.heat, block.visits = node.heat, node.visits
        block.last_used_s, block.weight = node.last_used_s, node.root.weight
        if block.page < 0:
            page = self._take_page(self._value(block))
            if page is None:
                return
            block.page = page
            self._add(block)
            self._operations.store(node.pages[number], page)
            self.pages_written += 1
        self._offer(block)

    def _add(self, block: HostBlock) -> None:
        self._blocks[block.block_hash] = block
        self._roots.setdefault(block.root, {})[block] = None
        self._children[block.parent_hash] += 1
        parent = self._blocks.get(block.parent_hash)
        if parent is not None:
            self._queue.withdraw(parent)

    def _remove(self, block: HostBlock) -> None:
        del self._blocks[block.block_hash]
        self._queue.withdraw(block)
        self._free.append(block.page)
        siblings = self._roots.get(block.root)
        if siblings is not None:
            del siblings[block]
            if not siblings:
                del self._roots[block.root]
        self._children[block.parent_hash] -= 1
        if not self._children[block.parent_hash]:
            del self._children[block.parent_hash]
        parent = self._blocks.get(block.parent_hash)
        if parent is not None:
            self._offer(parent)

    def _take_page(self, value: float) -> int | None:
        """A free page, or that of what is worth less than `value`."""
        if not self._free:
            self._revalue()
            if not len(self._queue) or self._queue.least()[0] >= value:
                return None
            self._remove(self._queue.least()[1])
            self.evictions += 1
        return self._free.pop()

    def _is_candidate(self, block: HostBlock) -> bool:
        return block.fetch is None and block.block_hash not in self._children

    def _offer(self, block: HostBlock) -> None:
        if self._is_candidate(block):
            self._queue.offer(block, self._value(block))

    def _revalue(self) -> None:
        every_s, now_s = self._policy.revalue_s, self._clock()
        if every_s is not None and now_s - self._valued_s >= every_s:
            self._valued_s = now_s
            for block in self._queue.items():
                self._queue.offer(block, self._value(block))

    def _value(self, block: HostBlock) -> float:
        """What is lost with it is computed anew."""
        self._most_visits = max(self._most_visits, block.visits)
        candidate = Candidate(
            kind="kv",
            namespace=block.root[0],
            num_bytes=self._page_bytes,
            last_used_s=block.last_used_s,
            heat=block.heat,
            visits=block.visits,
            recompute_s=self._costs.block_s(block.depth),
            weight=block.weight,
        )
        state = MemoryState(
            now_s=self._clock(),
            capacity_bytes=self.total * self._page_bytes,
            kv_bytes=self.used * self._page_bytes,
            most_visits=self._most_visits,
            most_bytes=self._page_bytes,
        )
        return self._policy.value(candidate, state)


def _last_hash(root: PrefixRoot, node: PrefixNode | None) -> bytes:
    """Of the last block of a node of the tree, or of its root."""
    if node is not None:
        return node.hashes[-1]
    namespace = root.namespace.encode()
    return sha256(b"%d:%b%b" % (len(namespace), namespace, root.digest.encode())).digest()


def _parent_hash(node: PrefixNode, number: int) -> bytes:
    """The name of the block before that of a node, or of the root."""
    return node.hashes[number - 1] if number else _last_hash(node.root, node.parent)


def _hash(parent_hash: bytes, key: bytes | bytearray) -> bytes:
    return sha256(parent_hash + key).digest()
