"""PrefixTree: which KV blocks are already computed, by what they were computed from. A tree over
full blocks of tokens with one root for each (namespace, adapter digest or BASE), so that a match
never crosses a tenant's namespace or an adapter. It knows pages by number only."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from tenora_engine.memory.pool import CACHED_KV, LIVE_KV, IntegrityError, PagePool
from tenora_engine.telemetry import ServiceMeter

BASE = "BASE"
"""The digest under which KV of the base model alone is kept."""

TOKEN_BYTES = array("i").itemsize


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as bytes, `TOKEN_BYTES` each: what blocks are compared by. A block's slice of it
    is its key in the tree; the dictionary hashes it and compares all of it on a hit, so a
    collision of hashes cannot serve another block's KV."""
    return array("i", token_ids).tobytes()


PATHS_KEPT = 1024
"""Paths that a node remembers to have parted from it."""


class PrefixNode(msgspec.Struct, eq=False):
    """One cached block. `references` counts the live sequences that use it; a node without
    references and children may be evicted."""

    root: PrefixRoot
    parent: PrefixNode | None
    key: bytes
    page: int
    depth: int  # blocks before it
    last_used_s: float
    fork: PrefixNode | None  # where its path parted from what was there before
    children: dict[bytes, PrefixNode] = {}
    references: int = 1
    heat: float = 1.0  # uses, each fading with time: see heat.fade
    visits: int = 1
    wanted: int = 0  # waiting sequences that begin with it
    ticket: int = 0  # its place among the candidates for eviction; 0 = none
    chain: bytes = b""  # its name in the HostKV, if there is one
    new_paths: int = 0  # that have parted here
    paths: set[int] | None = None  # the latest of them, cached or not, by their first key

    def __repr__(self) -> str:
        return f"PrefixNode(page={self.page}, depth={self.depth})"  # without the whole tree

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
    """The tree of one (namespace, digest). `users` counts sequences that have not finished."""

    __slots__ = (
        "cached_pages", "children", "digest", "live_pages", "meter", "namespace", "purged", "users",
        "weight",
    )  # fmt: skip

    def __init__(self, namespace: str, digest: str) -> None:
        self.namespace = namespace
        self.digest = digest
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
    """Owns the pages of its nodes: LIVE_KV while referenced, CACHED_KV otherwise.

    `offer` is told of a node when it becomes evictable and `withdraw` when it no longer is.
    `fade(seconds)` is the factor by which heat fades.
    """

    def __init__(
        self,
        pool: PagePool,
        block_tokens: int,
        offer: Callable[[PrefixNode], None],
        withdraw: Callable[[PrefixNode], None],
        fade: Callable[[float], float],
    ) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._offer = offer
        self._withdraw = withdraw
        self._fade = fade
        self._roots: dict[tuple[str, str], PrefixRoot] = {}
        self._detached: dict[PrefixRoot, None] = {}  # purged, but still in use

    def enter(self, namespace: str, digest: str) -> PrefixRoot:
        """The root for a new sequence, which keeps it until `leave`."""
        root = self._roots.get((namespace, digest))
        if root is None:
            root = self._roots[namespace, digest] = PrefixRoot(namespace, digest)
        root.users += 1
        return root

    def leave(self, root: PrefixRoot) -> None:
        root.users -= 1
        self._drop_if_empty(root)

    def match(self, root: PrefixRoot, encoded: bytes) -> list[PrefixNode]:
        """The longest cached prefix of the tokens of `encoded`, as its nodes from the root down.

        The last token is never part of it: something must be left to compute a next token from.
        O(matched blocks). Takes no references.
        """
        step = self._block_bytes
        nodes: list[PrefixNode] = []
        children = root.children
        for start in range(0, len(encoded) - step, step):
            node = children.get(encoded[start : start + step])
            if node is None:
                break
            nodes.append(node)
            children = node.children
        return nodes

    def pin(self, nodes: Sequence[PrefixNode], now_s: float) -> None:
        """Take a reference to each node of a path; it counts as a use."""
        last_s, faded = now_s, 1.0
        unused: list[PrefixNode] = []
        for node in nodes:
            if node.last_used_s != last_s:
                last_s = node.last_used_s
                faded = self._fade(now_s - last_s)
            node.heat = 1.0 + node.heat * faded
            node.visits += 1
            node.last_used_s = now_s
            if not node.references:
                unused.append(node)
                if node.ticket:
                    self._withdraw(node)
            node.references += 1
        if unused:
            root = unused[0].root
            root.live_pages += len(unused)
            root.cached_pages -= len(unused)
            self._pool.set_kind([node.page for node in unused], LIVE_KV)

    def unpin(self, nodes: Sequence[PrefixNode], now_s: float) -> None:
        """Give back a reference to each node of a path, or of the end of one. What is then unused
        stays cached, or is freed if its root has been purged."""
        unused: list[PrefixNode] = []
        for node in reversed(nodes):
            node.references -= 1
            if not node.references:
                node.last_used_s = now_s
                unused.append(node)
        if not unused:
            return
        root, last = unused[0].root, unused[0]
        root.live_pages -= len(unused)
        root.cached_pages += len(unused)
        self._pool.set_kind([node.page for node in unused], CACHED_KV)
        if root.purged:
            self._drop(unused)
        elif not last.children:
            self._offer(last)

    def want(self, nodes: Sequence[PrefixNode]) -> None:
        """A waiting sequence begins with this path."""
        for node in nodes:
            node.wanted += 1
            if node.ticket and node.wanted == 1:
                self._offer(node)

    def unwant(self, nodes: Sequence[PrefixNode]) -> None:
        """It waits no more. Nodes may have been evicted meanwhile."""
        for node in nodes:
            node.wanted -= 1
            if node.ticket and not node.wanted:
                self._offer(node)

    def insert(
        self,
        root: PrefixRoot,
        path: list[PrefixNode],
        encoded: bytes,
        pages: Sequence[int],
        now_s: float,
    ) -> None:
        """Hand the live pages of computed blocks to the tree, those of the tokens of `encoded`,
        which come after `path`. It gets their nodes, of which the caller holds a reference to each.
        Where a block was cached meanwhile, the node is that one (with another page) and the page
        stays the caller's."""
        step, num_new = self._block_bytes, 0
        parent = path[-1] if path else None
        for number, page in enumerate(pages):
            key = encoded[number * step : (number + 1) * step]
            siblings = root.children if parent is None else parent.children
            node = siblings.get(key)
            if node is not None:
                self.pin((node,), now_s)
            else:
                node = siblings[key] = self._new_node(root, parent, key, page, now_s)
                num_new += 1
            path.append(node)
            parent = node
        root.live_pages += num_new

    def evict(self, branch: Sequence[PrefixNode]) -> None:
        """Drop unreferenced nodes and free their pages: a leaf, and then each the parent of the one
        before, with no other child."""
        self._drop(branch)
        parent = branch[-1].parent
        if parent is not None and not parent.references and not parent.children:
            self._offer(parent)
        self._drop_if_empty(branch[0].root)

    def purge(self, namespace: str, digest: str) -> int:
        """Free all cached pages of one (namespace, digest), now; those of live sequences follow
        when they end. Sequences that enter later begin anew. Returns the pages freed now."""
        root = self._roots.pop((namespace, digest), None)
        if root is None:
            return 0
        root.purged = True
        unused = [node for node in walk(root) if not node.references]
        self._drop(unused[::-1])  # children come after their parents in a walk
        if root.users:
            self._detached[root] = None
        return len(unused)

    def roots(self) -> Iterator[PrefixRoot]:
        yield from self._roots.values()
        yield from self._detached

    def _new_node(
        self, root: PrefixRoot, parent: PrefixNode | None, key: bytes, page: int, now_s: float
    ) -> PrefixNode:
        if parent is None:
            return PrefixNode(root, None, key, page, 0, now_s, None)
        if parent.ticket:  # it came from the host: nobody uses its prefix
            self._withdraw(parent)
        fork = parent.fork
        if parent.visits > 1:  # not of the same sequence
            parent.part(key)
            fork = parent
        return PrefixNode(root, parent, key, page, parent.depth + 1, now_s, fork)

    def _drop(self, nodes: Sequence[PrefixNode]) -> None:
        """Forget unreferenced nodes of one root, children before their parents."""
        for node in nodes:
            if node.references or node.children:
                raise IntegrityError("only an unreferenced leaf of the prefix tree can be dropped")
            siblings = node.root.children if node.parent is None else node.parent.children
            del siblings[node.key]
            if node.ticket:
                self._withdraw(node)
        if nodes:
            nodes[0].root.cached_pages -= len(nodes)
            self._pool.release([node.page for node in nodes])

    def _drop_if_empty(self, root: PrefixRoot) -> None:
        if root.users or root.children:
            return
        if root.purged:
            self._detached.pop(root, None)
        else:
            self._roots.pop((root.namespace, root.digest), None)


def walk(root: PrefixRoot) -> Iterator[PrefixNode]:
    """Every node of a root, parents before their children."""
    stack: list[Iterable[PrefixNode]] = [root.children.values()]
    while stack:
        for node in stack.pop():
            yield node
            if node.children:
                stack.append(node.children.values())
