"""Loads of several tenants in one loader, when the object store does not answer for some of them,
and what a load is said to have taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore
from redis import Redis

from packed_adapters import packed, published, resolved
from tenora_engine.adapters.loader import AdapterLoader, LoadResult
from tenora_engine.pace import Pace
from tenora_engine.request import AdapterRef


class SlowStore:
    """A store that answers for some digests only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore()
        self.hangs: set[str] = set()
        self.asked: list[str] = []
        self._answer, self._changed = threading.Event(), threading.Condition()
        real = obstore.get

        def get(store: Any, key: str, **options: Any) -> Any:
            digest = next((each for each in self.hangs if each.split(":")[1] in key), None)
            if digest is not None:
                with self._changed:
                    self.asked.append(digest)
                    self._changed.notify_all()
                assert self._answer.wait(20)
            return real(store, key, **options)

        monkeypatch.setattr(obstore, "get", get)

    def adapters(self, first: int, count: int, *, hang: bool = False) -> list[AdapterRef]:
        refs = [published(self.store, seed) for seed in range(first, first + count)]
        self.hangs |= {ref.digest for ref in refs} if hang else set()
        return refs

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, timeout=20)

    def answer(self) -> None:
        self.hangs.clear()
        self._answer.set()


class Results:
    """What a loader has finished, in the order in which it did."""

    def __init__(self, loader: AdapterLoader) -> None:
        self._loader, self._woken = loader, threading.Semaphore(0)
        loader.on_complete = self._woken.release

    def take(self, count: int) -> list[LoadResult]:
        for _ in range(count):
            assert self._woken.acquire(timeout=20)
        return self._loader.take_completed()


@contextmanager
def loading(slow: SlowStore, **options: Any) -> Iterator[tuple[AdapterLoader, Results]]:
    pace, clock = options.pop("pace", None), options.pop("clock", None)
    clocks = {} if clock is None else {"clock": clock}
    loader = AdapterLoader(resolved(**options), store=slow.store, pace=pace, **clocks)
    yield loader, Results(loader)
    slow.answer()
    loader.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    return SlowStore(monkeypatch)


@pytest.mark.parametrize("loader_threads", [1, 2])
def test_a_tenants_load_stands_behind_no_others_that_hang(
    slow: SlowStore, loader_threads: int
) -> None:
    with loading(slow, loader_threads=loader_threads) as (loader, results):
        for tenant in range(5):
            for ref in slow.adapters(10 * tenant, 8, hang=True):
                loader.start(ref, f"t{tenant}")
        slow.wait_for(5)
        (own,) = slow.adapters(100, 1)
        loader.start(own, "other")
        (result,) = results.take(1)
        assert (result.ref, result.error) == (own, None)
        slow.answer()
        assert len(results.take(40)) == 40


def test_a_host_hit_waits_for_no_thread(slow: SlowStore) -> None:
    with loading(slow) as (loader, results):
        (kept,) = slow.adapters(1, 1)
        loader.start(kept, "t0")
        results.take(1)
        for ref in slow.adapters(10, 8, hang=True):
            loader.start(ref, "t0")
        loader.start(kept, "t0")
        (result,) = loader.take_completed()
        assert (result.residency, result.packed is not None) == ("host", True)


def test_redis_is_asked_and_told_while_all_loads_hang(
    slow: SlowStore, valkey: str, redis: Redis
) -> None:
    with loading(slow, redis_url=valkey) as (loader, _):
        for ref in slow.adapters(10, 8, hang=True):
            loader.start(ref, "t0")
        slow.wait_for(2)
        (gone,) = slow.adapters(1, 1)
        key = loader.shared_prefix + gone.digest
        redis.set(key, b"whatever")
        assert loader.residency(gone) == "store"  # not heard of yet; now it is asked
        assert loader.find([packed(99).digest], ()).result(20)
        assert loader.residency(gone) == "shared"
        loader.forget(gone.digest)
        assert loader.find([packed(98).digest], ()).result(20)
        assert not redis.exists(key)


def test_a_load_is_said_to_take_what_the_work_took(slow: SlowStore) -> None:
    """Not what it waited for its turn, nor the rests between its pieces. The clock stands still
    while it works."""
    now_s = 0.0

    class Resting(Pace):
        rests = 0

        def rest(self) -> None:
            nonlocal now_s
            now_s += 1000.0
            self.rests += 1

    pace = Resting()
    with loading(slow, loader_threads=1, pace=pace, clock=lambda: now_s) as (loader, results):
        (first,), (second,) = slow.adapters(1, 1, hang=True), slow.adapters(2, 1)
        loader.start(first, "t0")
        loader.start(second, "t0")
        slow.wait_for(1)
        now_s += 60.0
        slow.answer()
        one, other = results.take(2)
        assert pace.rests > 2
        assert (one.ref, one.load_ms) == (first, 60_000), "the store's answer is awaited"
        assert (other.ref, other.load_ms) == (second, 0)
        waited_s = (one.wait_ms + other.wait_ms) / 1000
        assert waited_s >= 60 + 1000 * pace.rests


def test_the_tier_of_an_adapter_is_known_without_asking(slow: SlowStore) -> None:
    (one, other) = slow.adapters(1, 2)
    with loading(slow, host_adapter_bytes=packed(1).pages.nbytes * 2) as (loader, results):
        assert loader.tier(one.digest) == "store"
        loader.start(one, "t0")
        results.take(1)
        assert loader.tier(one.digest) == "host"
        assert loader.take_moved() == {one.digest}
        loader.start(other, "t0")  # there is room for one
        results.take(1)
        assert [loader.tier(ref.digest) for ref in (one, other)] == ["store", "host"]
        assert loader.take_moved() == {one.digest, other.digest}
        assert loader.take_moved() == set()


def test_what_redis_is_found_to_hold_is_a_tier(slow: SlowStore, valkey: str, redis: Redis) -> None:
    (ref,) = slow.adapters(1, 1)
    with loading(slow, redis_url=valkey, host_adapter_bytes=0) as (loader, results):
        loader.start(ref, "t0")
        (result,) = results.take(1)
        loader.close()  # what came has been shared by then
        assert result.residency == "store"
        assert loader.tier(ref.digest) == "shared"
        assert loader.take_moved() == {ref.digest}
