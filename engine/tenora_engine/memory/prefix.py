"""PrefixTree: which KV blocks are already computed, by what they were computed from. A tree over
full blocks of tokens with one root for each (namespace, adapter digest or BASE), so that a match
never crosses a tenant's namespace or an adapter. It knows pages by number only."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

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


class PrefixNode:
    """One cached block. `references` counts the live sequences that use it; a node without
    references and children may be evicted."""

    __slots__ = (
        "chain", "children", "depth", "fork", "heat", "key", "last_used_s", "new_paths", "page",
        "parent", "paths", "references", "root", "ticket", "visits", "wanted",
    )  # fmt: skip

    def __init__(
        self, root: PrefixRoot, parent: PrefixNode | None, key: bytes, page: int, now_s: float
    ) -> None:
        self.root = root
        self.parent = parent
        self.key = key
        self.chain = b""  # its name in the HostKV, if there is one
        self.page = page
        self.depth: int = 0 if parent is None else parent.depth + 1  # blocks before it
        self.children: dict[bytes, PrefixNode] = {}
        self.references = 1
        self.heat = 1.0  # uses, each fading with time: see heat.fade
        self.visits = 1
        self.last_used_s = now_s
        self.wanted = 0  # waiting sequences that begin with it
        self.ticket = 0  # its place among the candidates for eviction; 0 = none
        self.fork: PrefixNode | None = None  # where its path parted from what was there before
        self.new_paths = 0  # that have parted here
        self.paths: set[int] | None = None  # the latest of them, cached or not, by their first key

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
        for node in nodes:
            if node.last_used_s != last_s:
                last_s = node.last_used_s
                faded = self._fade(now_s - last_s)
            node.heat = 1.0 + node.heat * faded
            node.visits += 1
            node.last_used_s = now_s
            node.references += 1
            if node.references == 1:
                node.root.live_pages += 1
                node.root.cached_pages -= 1
                self._pool.set_kind(node.page, LIVE_KV)
                if node.ticket:
                    self._withdraw(node)

    def unpin(self, nodes: Sequence[PrefixNode], now_s: float) -> None:
        """Give back a reference to each node of a path. What is then unused stays cached, or is
        freed if its root has been purged."""
        for node in reversed(nodes):
            node.references -= 1
            if node.references:
                continue
            node.root.live_pages -= 1
            node.root.cached_pages += 1
            node.last_used_s = now_s
            self._pool.set_kind(node.page, CACHED_KV)
            if node.children:
                continue
            if node.root.purged:
                self._remove(node)
            else:
                self._offer(node)

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
        self, root: PrefixRoot, parent: PrefixNode | None, key: bytes, page: int, now_s: float
    ) -> PrefixNode:
        """Hand a computed block's live page to the tree; the caller holds a reference to the node
        that is returned. If the block was cached meanwhile, the node is that one (with another
        page) and `page` stays the caller's."""
        siblings = root.children if parent is None else parent.children
        node = siblings.get(key)
        if node is not None:
            self.pin((node,), now_s)
            return node
        if parent is not None and parent.ticket:  # it came from the host: nobody uses its prefix
            self._withdraw(parent)
        node = PrefixNode(root, parent, key, page, now_s)
        if parent is not None and parent.visits == 1:  # of the same sequence
            node.fork = parent.fork
        elif parent is not None:
            parent.part(key)
            node.fork = parent
        siblings[key] = node
        root.live_pages += 1
        return node

    def evict(self, node: PrefixNode) -> None:
        """Drop an unreferenced leaf and free its page."""
        if node.references or node.children:
            raise IntegrityError("only an unreferenced leaf of the prefix tree can be evicted")
        self._remove(node)
        parent = node.parent
        if parent is not None and not parent.references and not parent.children:
            self._offer(parent)
        self._drop_if_empty(node.root)

    def purge(self, namespace: str, digest: str) -> int:
        """Free all cached pages of one (namespace, digest), now; those of live sequences follow
        when they end. Sequences that enter later begin anew. Returns the pages freed now."""
        root = self._roots.pop((namespace, digest), None)
        if root is None:
            return 0
        root.purged = True
        unused = [node for node in walk(root) if not node.references]
        for node in reversed(unused):  # children come after their parents in a walk
            self._remove(node)
        if root.users:
            self._detached[root] = None
        return len(unused)

    def roots(self) -> Iterator[PrefixRoot]:
        yield from self._roots.values()
        yield from self._detached

    def _remove(self, node: PrefixNode) -> None:
        siblings = node.root.children if node.parent is None else node.parent.children
        del siblings[node.key]
        if node.ticket:
            self._withdraw(node)
        node.root.cached_pages -= 1
        self._pool.release((node.page,))

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
