"""The page pool: conservation, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.memory.pool import ADAPTER, CACHED_KV, FREE, LIVE_KV, IntegrityError, PagePool

KINDS = (LIVE_KV, CACHED_KV, ADAPTER)


def test_all_or_nothing() -> None:
    pool = PagePool(4)
    assert pool.try_allocate(5, LIVE_KV) is None
    assert pool.num_free == 4
    pages = pool.try_allocate(4, LIVE_KV)
    assert pages is not None
    assert sorted(pages) == [0, 1, 2, 3]
    assert pool.try_allocate(1, LIVE_KV) is None
    assert pool.try_allocate(0, LIVE_KV) == []
    assert pool.page_map() == "LLLL"


def test_a_page_given_back_twice_is_refused() -> None:
    pool = PagePool(2)
    pages = pool.try_allocate(1, ADAPTER)
    assert pages is not None
    pool.release(pages)
    with pytest.raises(IntegrityError, match="twice"):
        pool.release(pages)


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.sampled_from("arc"), st.integers(0, 6), st.sampled_from(KINDS))),
)
def test_pages_are_conserved(total: int, actions: list[tuple[str, int, int]]) -> None:
    pool = PagePool(total)
    held: dict[int, int] = {}
    for action, number, kind in actions:
        if action == "a":
            pages = pool.try_allocate(number, kind)
            assert (pages is None) == (number > total - len(held))
            for page in pages or []:
                assert page not in held
                held[page] = kind
        elif held and action == "r":
            page = sorted(held)[number % len(held)]
            del held[page]
            pool.release([page])
        elif held:
            page = sorted(held)[number % len(held)]
            held[page] = kind
            pool.set_kind([page], kind, 0.0)
        pool.check()
        assert pool.num_free + len(held) == total
        assert pool.page_map() == "".join(chr(held.get(page, FREE)) for page in range(total))
        assert all(pool.count(k) == list(held.values()).count(k) for k in KINDS)
