"""The prefix tree: what matches, what never does, and what may be evicted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.memory.pool import CACHED_KV, LIVE_KV, IntegrityError, PagePool
from tenora_engine.memory.prefix import BASE, PrefixNode, PrefixRoot, PrefixTree, encode_tokens

SIZE = 4


class Cache:
    """A tree over a pool, and the candidates it has offered."""

    def __init__(self, pages: int = 32) -> None:
        self.pool = PagePool(pages)
        self.offered: dict[PrefixNode, None] = {}
        self.tree = PrefixTree(
            self.pool, SIZE, self._offer, self._withdraw, lambda seconds: 0.5**seconds
        )

    def _offer(self, node: PrefixNode) -> None:
        node.ticket = 1
        self.offered[node] = None

    def _withdraw(self, node: PrefixNode) -> None:
        node.ticket = 0
        del self.offered[node]

    def add(self, root: PrefixRoot, tokens: list[int], now_s: float = 0.0) -> list[PrefixNode]:
        """Compute all full blocks of `tokens`; the caller holds the path."""
        return self.extend(root, [], tokens, now_s)

    def extend(
        self, root: PrefixRoot, known: list[PrefixNode], tokens: list[int], now_s: float = 0.0
    ) -> list[PrefixNode]:
        """The same below a known path; returns what comes after it."""
        nodes = list(known)
        for start in range(0, len(tokens) - SIZE + 1, SIZE):
            pages = self.pool.try_allocate(1, LIVE_KV)
            assert pages is not None
            key = encode_tokens(tokens[start : start + SIZE])
            self.tree.insert(root, nodes, key, pages, now_s)
            if nodes[-1].page != pages[0]:
                self.pool.release(pages)
        return nodes[len(known) :]


def test_match_leaves_a_token_to_compute() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    tokens = list(range(8))
    nodes = cache.add(root, tokens)
    for length, blocks in ((3, 0), (4, 0), (5, 1), (7, 1), (8, 1), (9, 2), (12, 2)):
        prompt = (tokens + [50] * 8)[:length]
        assert cache.tree.match(root, encode_tokens(prompt)) == nodes[:blocks], length


def test_a_match_never_crosses_namespace_or_adapter() -> None:
    cache = Cache()
    tokens = list(range(12))
    root = cache.tree.enter("a", "sha256:x")
    cache.tree.unpin(cache.add(root, tokens), 0.0)
    for namespace, digest in (("b", "sha256:x"), ("a", "sha256:y"), ("a", BASE)):
        other = cache.tree.enter(namespace, digest)
        assert cache.tree.match(other, encode_tokens([*tokens, 1])) == []
        cache.tree.leave(other)
    assert len(cache.tree.match(root, encode_tokens([*tokens, 1]))) == 3


def test_equal_hashes_are_not_equal_blocks() -> None:
    """Blocks are compared by all their tokens: force every key into one hash bucket."""

    class Collides(bytes):
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return bytes(self) == other

        def __getitem__(self, part: object) -> Collides:
            return self

    cache = Cache()
    root = cache.tree.enter("a", BASE)
    page = cache.pool.try_allocate(1, LIVE_KV)
    assert page is not None
    key = Collides(encode_tokens([1, 2, 3, 4]))
    cache.tree.insert(root, [], key, page, 0.0)
    assert root.children.get(Collides(encode_tokens([1, 2, 3, 5]))) is None
    assert root.children.get(Collides(encode_tokens([1, 2, 3, 4]))) is not None


def test_the_second_to_compute_a_block_shares_the_first_page() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    first = cache.add(root, list(range(8)))
    second = cache.add(root, list(range(8)))
    assert first == second
    assert [node.references for node in first] == [2, 2]
    assert cache.pool.count(LIVE_KV) == 2


def test_only_unreferenced_leaves_are_offered() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    long = cache.add(root, list(range(12)))
    short = cache.add(root, list(range(4)))
    assert not cache.offered
    cache.tree.unpin(long, 1.0)
    assert list(cache.offered) == [long[2]]
    with pytest.raises(IntegrityError):
        cache.tree.evict([long[1]])
    cache.tree.unpin(short, 2.0)
    assert list(cache.offered) == [long[2]]
    for node in reversed(long):
        assert list(cache.offered) == [node]
        cache._withdraw(node)
        cache.tree.evict([node])
    assert cache.pool.num_free == cache.pool.total


def test_pinning_counts_as_a_use_that_fades() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    (node,) = cache.add(root, list(range(4)), now_s=0.0)
    cache.tree.unpin([node], 0.0)
    assert cache.pool.kind(node.page) == CACHED_KV
    cache.tree.pin([node], 1.0)
    assert node.heat == pytest.approx(1.5)
    assert node.last_used_s == 1.0
    assert cache.pool.kind(node.page) == LIVE_KV
    assert not cache.offered


def test_a_path_is_expected_to_return_as_often_as_others_from_its_fork() -> None:
    """A system prompt of one block. Tails that nobody repeats return less and less; one that is
    repeated, also after it was evicted, is no new path."""
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    system = [1] * SIZE

    def use(tail: int) -> PrefixNode:
        tokens = system + [tail] * 2 * SIZE
        known = cache.tree.match(root, encode_tokens([*tokens, 0]))
        cache.tree.pin(known, 0.0)
        nodes = known + cache.extend(root, known, tokens[len(known) * SIZE :])
        cache.tree.unpin(nodes, 0.0)
        assert nodes[-1].fork is nodes[-2].fork  # made by one request
        return nodes[-1]

    assert use(0).returns == 1.0  # from the root
    assert [use(tail).returns for tail in (2, 3, 4)] == [
        pytest.approx(1 / (paths + 1)) for paths in (2, 3, 4)
    ]
    for _ in range(2):
        leaf = use(5)
        assert leaf.parent is not None
        cache.tree.evict([leaf, leaf.parent])
    assert use(5).returns == pytest.approx((2 + 1) / (5 + 1))


def test_what_a_fork_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenora_engine.memory.prefix.PATHS_KEPT", 4)
    cache = Cache(pages=64)
    root = cache.tree.enter("a", BASE)
    (fork,) = cache.add(root, [1] * SIZE)
    cache.tree.pin([fork], 0.0)
    for tail in range(30):
        cache.extend(root, [fork], [100 + tail] * SIZE)
        assert fork.paths is not None
        assert len(fork.paths) <= 4
    assert fork.new_paths == 30


def test_purge_frees_what_is_unused_now_and_the_rest_when_it_ends() -> None:
    cache = Cache()
    root = cache.tree.enter("a", "sha256:x")
    running = cache.add(root, list(range(8)))
    cache.tree.unpin(cache.add(root, [*range(8), 9, 9, 9, 9]), 0.0)
    other = cache.tree.enter("b", "sha256:x")
    kept = cache.add(other, list(range(4)))
    assert cache.tree.purge("a", "sha256:x") == 1
    assert cache.pool.count(CACHED_KV) == 0
    fresh = cache.tree.enter("a", "sha256:x")
    assert fresh is not root
    assert cache.tree.match(fresh, encode_tokens(list(range(9)))) == []
    cache.tree.unpin(running, 1.0)
    assert cache.pool.count(LIVE_KV) == len(kept)
    assert not cache.offered
    for each in (root, fresh):
        cache.tree.leave(each)
    assert list(cache.tree.roots()) == [other]


def test_an_empty_root_is_not_kept() -> None:
    cache = Cache()
    for number in range(10):
        cache.tree.leave(cache.tree.enter(f"n{number}", BASE))
    assert list(cache.tree.roots()) == []


@given(st.lists(st.lists(st.integers(0, 1), max_size=17), max_size=8), st.data())
def test_match_is_the_longest_common_prefix(prompts: list[list[int]], data: st.DataObject) -> None:
    cache = Cache(pages=64)
    root = cache.tree.enter("a", BASE)
    for prompt in prompts:
        nodes = cache.add(root, prompt)
        if data.draw(st.booleans()):
            cache.tree.unpin(nodes, 0.0)
    probe = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=17))
    longest = 0
    for prompt in prompts:
        blocks = min(len(prompt) // SIZE, (len(probe) - 1) // SIZE)
        while blocks and prompt[: blocks * SIZE] != probe[: blocks * SIZE]:
            blocks -= 1
        longest = max(longest, blocks)
    assert len(cache.tree.match(root, encode_tokens(probe))) == longest
