"""The prefix tree: what matches, what never does, and what may be evicted."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.memory.pool import CACHED_KV, LIVE_KV, IntegrityError, PagePool
from tenora_engine.memory.prefix import (
    BASE,
    PrefixNode,
    PrefixRoot,
    PrefixTree,
    encode_tokens,
    num_blocks,
    pages_to,
    path,
)

SIZE = 4


class Cache:
    """A tree over a pool, and the candidates it has offered."""

    def __init__(self, pages: int = 32) -> None:
        self.pool = PagePool(pages)
        self.offered: dict[PrefixNode, None] = {}
        self.tree = PrefixTree(self.pool, SIZE, self)

    def offer(self, node: PrefixNode) -> None:
        node.ticket = 1
        self.offered[node] = None

    def withdraw(self, node: PrefixNode) -> None:
        node.ticket = 0
        del self.offered[node]

    def add(self, root: PrefixRoot, tokens: list[int], now_s: float = 0.0) -> PrefixNode:
        """Compute all full blocks of `tokens`; returns where they end, which the caller holds."""
        return self.extend(root, None, tokens, now_s)

    def extend(
        self, root: PrefixRoot, end: PrefixNode | None, tokens: list[int], now_s: float = 0.0
    ) -> PrefixNode:
        """The same after a path that is held."""
        blocks = len(tokens) // SIZE
        pages = array("i", self.pool.try_allocate(blocks, LIVE_KV) or ())
        encoded = encode_tokens(tokens[: blocks * SIZE])
        end, cached = self.tree.insert(root, end, encoded, pages, now_s)
        self.pool.release(pages[: len(cached)])
        assert end is not None
        return end


def test_match_leaves_a_token_to_compute() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    tokens = list(range(8))
    end = cache.add(root, tokens)
    pages = pages_to(end)
    for length, blocks in ((3, 0), (4, 0), (5, 1), (7, 1), (8, 1), (9, 2), (12, 2)):
        prompt = (tokens + [50] * 8)[:length]
        assert pages_to(cache.tree.match(root, encode_tokens(prompt))) == pages[:blocks], length


def test_a_match_never_crosses_namespace_or_adapter() -> None:
    cache = Cache()
    tokens = list(range(12))
    root = cache.tree.enter("a", "sha256:x")
    cache.tree.unpin(cache.add(root, tokens), 0.0)
    for namespace, digest in (("b", "sha256:x"), ("a", "sha256:y"), ("a", BASE)):
        other = cache.tree.enter(namespace, digest)
        assert cache.tree.match(other, encode_tokens([*tokens, 1])) is None
        cache.tree.leave(other)
    assert num_blocks(cache.tree.match(root, encode_tokens([*tokens, 1]))) == 3


def test_equal_hashes_are_not_equal_blocks() -> None:
    """Blocks are compared by all their tokens: force every key into one hash bucket."""

    class Collides(bytes):
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return bytes(self) == other

        def __getitem__(self, part: object) -> Collides:  # type: ignore[override]
            return self

    cache = Cache()
    root = cache.tree.enter("a", BASE)
    node = cache.add(root, [1, 2, 3, 4])
    root.children = {Collides(encode_tokens([1, 2, 3, 4])): node}
    assert cache.tree.match(root, Collides(encode_tokens([1, 2, 3, 5, 0])[:-4])) is None
    assert root.children.get(Collides(encode_tokens([1, 2, 3, 5]))) is None
    assert root.children.get(Collides(encode_tokens([1, 2, 3, 4]))) is node


def test_the_second_to_compute_a_block_shares_the_first_page() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    first = cache.add(root, list(range(8)))
    second = cache.add(root, list(range(8)))
    assert first is second
    assert [node.references for node in path(second)] == [2]
    assert cache.pool.count(LIVE_KV) == 2


def test_what_one_sequence_computes_is_one_node_until_another_parts_from_it() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    first = cache.add(root, list(range(16)))
    pages = pages_to(first)
    assert list(path(first)) == [first]
    assert cache.tree.match(root, encode_tokens(list(range(16)))) is first.parent
    second = cache.add(root, [*range(8), *range(50, 58)])
    assert [len(node.pages) for node in path(first)] == [1, 1, 2]  # parted twice
    assert [node.references for node in path(first)] == [1, 1, 2]
    assert list(path(second))[1:] == list(path(first))[2:]
    assert (pages_to(first), pages_to(second)[:2]) == (pages, pages[:2])
    cache.tree.unpin(first, 1.0)
    cache.tree.unpin(second, 1.0)
    assert set(cache.offered) == {first, second}
    assert cache.pool.count(CACHED_KV) == 6


def test_a_node_that_others_hold_or_want_grows_no_more() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    end = cache.add(root, list(range(8)))
    cache.tree.want(end)
    longer = cache.extend(root, end, list(range(8, 12)))
    assert (longer.parent, len(longer.pages)) == (end, 1)
    assert cache.extend(root, longer, list(range(12, 16))) is longer
    cache.tree.pin(longer, 0.0)
    assert cache.extend(root, longer, list(range(16, 20))).parent is longer


def test_only_unreferenced_leaves_are_offered() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    short = cache.add(root, list(range(4)))
    long = cache.add(root, list(range(12)))
    pages = pages_to(long)
    assert not cache.offered
    cache.tree.unpin(long, 1.0)
    assert list(cache.offered) == [long]
    with pytest.raises(IntegrityError):
        cache.tree.evict(short, 1)
    assert cache.tree.evict(long, 1) == 1
    assert pages_to(cache.tree.match(root, encode_tokens(list(range(13))))) == pages[:2]
    cache.tree.unpin(short, 2.0)
    assert list(cache.offered) == [long]
    assert cache.tree.evict(long, 5) == 1
    assert list(cache.offered) == [short]
    assert cache.tree.evict(short, 5) == 1
    assert not cache.offered
    assert cache.pool.num_free == cache.pool.total


def test_pinning_counts_as_a_use_that_fades() -> None:
    cache = Cache()
    root = cache.tree.enter("a", BASE)
    node = cache.add(root, list(range(4)), now_s=0.0)
    cache.tree.unpin(node, 0.0)
    assert cache.pool.kind(node.pages[0]) == CACHED_KV
    cache.tree.pin(node, 1.0)
    assert node.heat == pytest.approx(1 + math.exp(-1 / 60))
    assert node.last_used_s == 1.0
    assert cache.pool.kind(node.pages[0]) == LIVE_KV
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
        end = cache.extend(root, known, tokens[num_blocks(known) * SIZE :])
        cache.tree.unpin(end, 0.0)
        return end

    assert use(0).returns == 1.0  # from the root
    assert [use(tail).returns for tail in (2, 3, 4)] == [
        pytest.approx(1 / (paths + 1)) for paths in (2, 3, 4)
    ]
    for _ in range(2):
        assert cache.tree.evict(use(5), 2) == 2
    assert use(5).returns == pytest.approx((2 + 1) / (5 + 1))


def test_what_a_fork_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenora_engine.memory.prefix.PATHS_KEPT", 4)
    cache = Cache(pages=64)
    root = cache.tree.enter("a", BASE)
    fork = cache.add(root, [1] * SIZE)
    cache.tree.pin(fork, 0.0)
    for tail in range(30):
        cache.extend(root, fork, [100 + tail] * SIZE)
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
    assert cache.tree.match(fresh, encode_tokens(list(range(9)))) is None
    cache.tree.unpin(running, 1.0)
    assert cache.pool.count(LIVE_KV) == num_blocks(kept)
    assert not cache.offered
    for each in (root, fresh):
        cache.tree.leave(each)
    assert list(cache.tree.roots()) == [other]


def test_an_empty_root_is_not_kept() -> None:
    cache = Cache()
    for number in range(10):
        cache.tree.leave(cache.tree.enter(f"n{number}", BASE))
    assert list(cache.tree.roots()) == []


@given(st.lists(st.lists(st.integers(0, 1), max_size=33), max_size=8), st.data())
def test_match_is_the_longest_common_prefix(prompts: list[list[int]], data: st.DataObject) -> None:
    """The path has the pages of the first to compute each block, each page once, whoever has come
    or gone since."""
    cache = Cache(pages=64)
    root = cache.tree.enter("a", BASE)
    pages: dict[tuple[int, ...], int] = {}
    held: list[tuple[list[int], PrefixNode]] = []
    for prompt in prompts:
        if len(prompt) < SIZE:
            continue
        half = data.draw(st.integers(0, len(prompt) // SIZE - 1)) * SIZE
        end = cache.add(root, prompt[:half]) if half else None
        held.append((prompt, cache.extend(root, end, prompt[half:])))
        for number, page in enumerate(pages_to(held[-1][1])):
            assert pages.setdefault(tuple(prompt[: (number + 1) * SIZE]), page) == page
        if data.draw(st.booleans()):
            cache.tree.unpin(held.pop(data.draw(st.integers(0, len(held) - 1)))[1], 0.0)
    probe = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=33))
    found = pages_to(cache.tree.match(root, encode_tokens(probe)))
    prefixes = [tuple(probe[:length]) for length in range(SIZE, len(probe), SIZE)]
    assert found.tolist() == [pages[prefix] for prefix in prefixes if prefix in pages]
    live = [page for prompt, end in held for page in pages_to(end)]
    assert {page for page in pages.values() if cache.pool.kind(page) == LIVE_KV} == set(live)
    for prompt, end in held:
        assert pages_to(end).tolist() == [
            pages[tuple(prompt[:length])] for length in range(SIZE, len(prompt) + 1, SIZE)
        ]
        cache.tree.unpin(end, 1.0)
    while cache.offered:
        node = next(iter(cache.offered))
        cache.tree.evict(node, data.draw(st.integers(1, 3)))
    assert cache.pool.num_free == cache.pool.total
    cache.pool.check()
