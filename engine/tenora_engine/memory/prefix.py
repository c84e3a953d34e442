"""PrefixTree: which KV blocks are already computed, by what they were computed from. A radix tree
over full blocks of tokens with one root for each (namespace, adapter digest or BASE), so that a
match never crosses a tenant's namespace or an adapter. It knows pages by number only."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tenora_engine.memory.costs import fade
from tenora_engine.memory.eviction_queue import Candidates
from tenora_engine.memory.pool import CACHED_KV, LIVE_KV, IntegrityError, PagePool
from tenora_engine.telemetry import ServiceMeter
from tenora_engine.token_ids import IDS_AT_ONCE

BASE = "BASE"
"""The digest under which KV of the base model alone is kept."""

TOKEN_BYTES = array("i").itemsize


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as bytes, `TOKEN_BYTES` each: what blocks are compared by. A block's slice of it
    is its key in the tree; the dictionary hashes it and compares all of it on a hit, so a
    collision of hashes cannot serve another block's KV. 120,000 take 1.8 ms, in parts, so that
    other threads of the process can go on between them."""
    parts = range(0, len(token_ids), IDS_AT_ONCE)
    return b"".join(
        [array("i", token_ids[start : start + IDS_AT_ONCE]).tobytes() for start in parts]
    )


PATHS_KEPT = 1024
"""Paths that a node remembers to have parted from it."""


class PrefixNode(msgspec.Struct, eq=False):
    """A run of cached blocks that all the same sequences have used, at least one. `references`
    counts the live ones; a node without references and children may be evicted, from its end on.

    Where a sequence parts within the run the node is split, and stays the one that ends where it
    ended: who holds it holds all from the root to there, however many nodes that is.
    """

    root: PrefixRoot
    parent: PrefixNode | None
    key: bytearray  # the tokens of its blocks (see `encode_tokens`)
    pages: array[int]
    depth: int  # blocks before it
    last_used_s: float
    fork: PrefixNode | None  # where its path parted from what was there before
    children: dict[bytes, PrefixNode] = {}  # by their first block
    references: int = 1
    heat: float = 1.0  # uses, each fading with time: see costs.fade
    visits: int = 1
    wanted: int = 0  # waiting sequences that begin with it
    ticket: int = 0  # its place among the candidates for eviction; 0 = none
    hashes: list[bytes] = []  # of its blocks, if there is a HostKV
    new_paths: int = 0  # that have parted here
    paths: set[int] | None = None  # the latest of them, cached or not, by their first block

    def __repr__(self) -> str:
        return f"PrefixNode(depth={self.depth}, pages={self.pages.tolist()})"  # not all its tree

    @property
    def end(self) -> int:
        """Blocks from the root to its last."""
        return self.depth + len(self.pages)

    @property
    def returns(self) -> float:
        """How often a path that parts where this one did is used again, by those that did so far;
        one use of one path is supposed. 1 for a path from the root."""
        fork = self.fork
        if fork is None:
            return 1.0
        again = fork.visits - 1 - fork.new_paths  # the first use made the first path
        return (again + 1) / (fork.new_paths + 2)

    def part(self, key: bytes) -> None:
        """A path that is not cached goes on from here. One that was here before and has been
        evicted is no new one."""
        if self.paths is None:
            self.paths = set()
        name = hash(key)
        if name in self.paths:
            return
        self.new_paths += 1
        if len(self.paths) >= PATHS_KEPT:
            self.paths.clear()
        self.paths.add(name)


class PrefixRoot:
    """The tree of one (namespace, digest). `users` counts sequences that have not finished;
    `number` is what the pool knows of it, no other's as long as it may have pages."""

    __slots__ = (
        "cached_pages", "children", "digest", "live_pages", "meter", "namespace", "number",
        "purged", "users", "weight",
    )  # fmt: skip

    def __init__(self, namespace: str, digest: str, number: int = 0) -> None:
        self.namespace = namespace
        self.digest = digest
        self.number = number
        self.children: dict[bytes, PrefixNode] = {}
        self.users = 0
        self.weight = 1.0  # SLO weight of the tenant that used it last
        self.meter = ServiceMeter()  # of who used it last
        self.live_pages = 0
        self.cached_pages = 0
        self.purged = False

    def evictable(self) -> Iterator[PrefixNode]:
        """The unreferenced leaves."""
        return (node for node in walk(self) if not node.references and not node.children)


class PrefixTree:
    """Owns the pages of its nodes: LIVE_KV while referenced, CACHED_KV otherwise. `candidates` is
    told of a node when it becomes evictable, and when it no longer is."""

    def __init__(
        self, pool: PagePool, block_tokens: int, candidates: Candidates[PrefixNode]
    ) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._candidates = candidates
        self._roots: dict[tuple[str, str], PrefixRoot] = {}
        self._detached: dict[PrefixRoot, None] = {}  # purged, but still in use
        self._numbers: list[int] = []  # given back
        self.owners: dict[int, tuple[str, str]] = {}  # (namespace, digest) of each root's number

    def enter(self, namespace: str, digest: str) -> PrefixRoot:
        """The root for a new sequence, which keeps it until `leave`."""
        root = self._roots.get((namespace, digest))
        if root is None:
            number = self._numbers.pop() if self._numbers else len(self.owners) + 1
            root = self._roots[namespace, digest] = PrefixRoot(namespace, digest, number)
            self.owners[number] = namespace, digest
        root.users += 1
        return root

    def leave(self, root: PrefixRoot) -> None:
        root.users -= 1
        self._drop_if_empty(root)

    def match(self, root: PrefixRoot, encoded: bytes) -> PrefixNode | None:
        """The node at which the longest cached prefix of the tokens of `encoded` ends, None at the
        root.

        The last token is never part of it: something must be left to compute a next token from.
        O(matched blocks). Takes no references.
        """
        stop = (len(encoded) - 1) // self._block_bytes * self._block_bytes
        at, end = 0, None
        while at < stop:
            node = self._child(root, end, encoded, at, stop)
            if node is None:
                break
            at += len(node.key)
            end = node
        return end

    def pin(self, end: PrefixNode | None, now_s: float, above: PrefixNode | None = None) -> None:
        """Take a reference to each node from `end` up to below `above`; it counts as a use."""
        for node in path(end, above):
            node.heat = 1.0 + node.heat * fade(now_s - node.last_used_s)
            node.visits += 1
            node.last_used_s = now_s
            node.references += 1
            if node.references == 1:
                node.root.live_pages += len(node.pages)
                node.root.cached_pages -= len(node.pages)
                self._pool.set_kind(node.pages, LIVE_KV, now_s)
                if node.ticket:
                    self._candidates.withdraw(node)

    def unpin(self, end: PrefixNode | None, now_s: float, above: PrefixNode | None = None) -> None:
        """Give back a reference to each node from `end` up to below `above`. What is then unused
        stays cached, or is freed if its root has been purged."""
        for node in path(end, above):
            node.references -= 1
            if node.references:
                continue
            node.root.live_pages -= len(node.pages)
            node.root.cached_pages += len(node.pages)
            node.last_used_s = now_s
            self._pool.set_kind(node.pages, CACHED_KV, now_s)
            if node.children:
                continue
            if node.root.purged:
                self._drop(node)
            else:
                self._candidates.offer(node)

    def want(self, end: PrefixNode | None) -> None:
        """A waiting sequence begins with the path to `end`."""
        for node in path(end):
            node.wanted += 1
            if node.ticket and node.wanted == 1:
                self._candidates.offer(node)

    def unwant(self, end: PrefixNode | None) -> None:
        """It waits no more. Nodes may have been evicted meanwhile."""
        for node in path(end):
            node.wanted -= 1
            if node.ticket and not node.wanted:
                self._candidates.offer(node)

    def insert(
        self,
        root: PrefixRoot,
        end: PrefixNode | None,
        encoded: bytes,
        pages: array[int],
        now_s: float,
    ) -> tuple[PrefixNode | None, array[int]]:
        """Hand the live pages of computed blocks to the tree: of the tokens of `encoded`, which
        come after `end`, to which the caller has references. Returns where they end, to which the
        caller has references then from `end` on, and the pages of those which were cached
        meanwhile, the first of them: for these, the pages given stay the caller's."""
        at, cached = 0, array("i")
        while at < len(encoded):
            node = self._child(root, end, encoded, at, len(encoded))
            if node is None:
                return self._append(root, end, encoded[at:], pages[len(cached) :], now_s), cached
            self.pin(node, now_s, end)
            cached.extend(node.pages)
            at += len(node.key)
            end = node
        return end, cached

    def attach(
        self,
        root: PrefixRoot,
        end: PrefixNode | None,
        encoded: bytes,
        pages: array[int],
        now_s: float,
    ) -> PrefixNode:
        """Make a node of live pages, the caller's alone, for blocks that are not cached: of the
        tokens of `encoded`, which come after `end`. That may be another's, or nobody's."""
        root.live_pages += len(pages)
        if end is None:
            node = PrefixNode(root, None, bytearray(encoded), pages, 0, now_s, None)
            root.children[self._first_block(node)] = node
            return node
        if end.ticket:
            self._candidates.withdraw(end)
        is_own = end.visits == 1
        fork = end.fork if is_own else end
        node = PrefixNode(root, end, bytearray(encoded), pages, end.end, now_s, fork)
        first = self._first_block(node)
        if not is_own:
            end.part(first)
        end.children[first] = node
        return node

    def evict(self, node: PrefixNode, most: int) -> int:
        """Free the pages of the last blocks of an unreferenced leaf, at most so many. Returns how
        many they were."""
        if node.references or node.children:
            raise IntegrityError("only an unreferenced leaf of the prefix tree can be evicted")
        count = min(most, len(node.pages))
        if count == len(node.pages):
            self._drop(node)
            parent = node.parent
            if parent is not None and not parent.references and not parent.children:
                self._candidates.offer(parent)
            self._drop_if_empty(node.root)
            return count
        pages = node.pages[-count:]
        del node.key[-count * self._block_bytes :], node.pages[-count:]
        if node.hashes:
            del node.hashes[-count:]
        node.root.cached_pages -= count
        self._pool.release(pages[::-1])
        self._candidates.offer(node)
        return count

    def purge(self, namespace: str, digest: str) -> int:
        """Free all cached pages of one (namespace, digest), now; those of live sequences follow
        when they end. Sequences that enter later begin anew. Returns the pages freed now."""
        root = self._roots.pop((namespace, digest), None)
        if root is None:
            return 0
        root.purged = True
        unused = [node for node in walk(root) if not node.references]
        for node in reversed(unused):  # children come after their parents in a walk
            self._drop(node)
        if root.users:
            self._detached[root] = None
        else:
            self._give_back_number(root)
        return sum(len(node.pages) for node in unused)

    def roots(self) -> Iterator[PrefixRoot]:
        yield from self._roots.values()
        yield from self._detached

    def _child(
        self, root: PrefixRoot, node: PrefixNode | None, encoded: bytes, at: int, stop: int
    ) -> PrefixNode | None:
        """What goes on from a node, or the root, along `encoded` from `at` to `stop`; split where
        it does not go on to its own end."""
        children = root.children if node is None else node.children
        child = children.get(encoded[at : at + self._block_bytes])
        if child is None:
            return None
        ahead = encoded[at : min(at + len(child.key), stop)]
        if ahead == child.key:
            return child
        return self._split(child, self._common_blocks(child.key, ahead))

    def _common_blocks(self, key: bytearray, ahead: bytes) -> int:
        """With how many blocks both begin; the first is known to be common."""
        step = self._block_bytes
        common, most = 1, len(ahead) // step
        while common < most:
            middle = (common + most + 1) // 2
            if key[common * step : middle * step] == ahead[common * step : middle * step]:
                common = middle
            else:
                most = middle - 1
        return common

    def _split(self, node: PrefixNode, count: int) -> PrefixNode:
        """Make the first `count` blocks of a node one of their own, above it."""
        size = count * self._block_bytes
        upper = PrefixNode(
            root=node.root,
            parent=node.parent,
            key=node.key[:size],
            pages=node.pages[:count],
            depth=node.depth,
            last_used_s=node.last_used_s,
            fork=node.fork,
            references=node.references,
            heat=node.heat,
            visits=node.visits,
            wanted=node.wanted,
            hashes=node.hashes[:count],
        )
        self._siblings(node)[self._first_block(upper)] = upper
        del node.key[:size], node.pages[:count], node.hashes[:count]
        node.depth += count
        node.parent = upper
        upper.children[self._first_block(node)] = node
        return upper

    def _append(
        self,
        root: PrefixRoot,
        end: PrefixNode | None,
        encoded: bytes,
        pages: array[int],
        now_s: float,
    ) -> PrefixNode:
        """New blocks after `end`, which is the caller's: more of its run as long as that is nobody
        else's."""
        if (
            end is not None
            and end.visits == end.references == 1
            and not end.children
            and not end.wanted
        ):
            root.live_pages += len(pages)
            end.key += encoded
            end.pages.extend(pages)
            end.last_used_s = now_s
            return end
        return self.attach(root, end, encoded, pages, now_s)

    def _drop(self, node: PrefixNode) -> None:
        """Forget an unreferenced node without children."""
        del self._siblings(node)[self._first_block(node)]
        if node.ticket:
            self._candidates.withdraw(node)
        node.root.cached_pages -= len(node.pages)
        self._pool.release(node.pages[::-1])

    def _siblings(self, node: PrefixNode) -> dict[bytes, PrefixNode]:
        return node.root.children if node.parent is None else node.parent.children

    def _first_block(self, node: PrefixNode) -> bytes:
        return bytes(node.key[: self._block_bytes])

    def _drop_if_empty(self, root: PrefixRoot) -> None:
        if root.users or root.children:
            return
        if root.purged:
            self._detached.pop(root, None)
        else:
            self._roots.pop((root.namespace, root.digest), None)
        self._give_back_number(root)

    def _give_back_number(self, root: PrefixRoot) -> None:
        if self.owners.pop(root.number, None) is not None:
            self._numbers.append(root.number)
        root.number = 0


def path(end: PrefixNode | None, above: PrefixNode | None = None) -> Iterator[PrefixNode]:
    """The nodes from `end` up to the root, or to below `above`. The one given last may be dropped
    before the next is asked for."""
    while end is not None and end is not above:
        node, end = end, end.parent
        yield node


def num_blocks(end: PrefixNode | None) -> int:
    """From the root to there."""
    return 0 if end is None else end.end


def pages_to(end: PrefixNode | None) -> array[int]:
    """Of all blocks from the root to there."""
    pages = array("i")
    for node in reversed(list(path(end))):
        pages.extend(node.pages)
    return pages


def walk(root: PrefixRoot) -> Iterator[PrefixNode]:
    """Every node of a root, parents before their children."""
    stack: list[Iterable[PrefixNode]] = [root.children.values()]
    while stack:
        for node in stack.pop():
            yield node
            if node.children:
                stack.append(node.children.values())
