"""What Redis knows of how much adapters are used, by a real Valkey: what is hot stays longer there,
and is in host memory when another engine starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore
from redis import Redis

from engine_fakes import Rig, make_config, make_ref, make_request
from packed_adapters import packed, published, resolved, shared_tier
from tenora_engine.adapters.hotness import MAX_HEAT
from tenora_engine.adapters.loader import AdapterLoader
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.adapters.tiers import HostTier, SharedTier, packed_bytes
from tenora_engine.adapters.warming import HOST_FRACTION, Warming
from tenora_engine.pace import Pace
from tenora_engine.request import AdapterRef

TTL_S = 1000
ADAPTERS = [packed(seed) for seed in range(6)]
SIZE = packed_bytes(ADAPTERS[0])


@pytest.fixture
def shared(valkey: str, redis: Redis) -> Iterator[SharedTier]:
    tier = shared_tier(valkey, ttl_s=TTL_S)
    yield tier
    tier.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def warmed(shared: SharedTier, host: HostTier, is_busy: Callable[[], bool] = bool) -> Warming:
    return Warming(host, shared, is_busy, lambda adapter: adapter, Pace())


def test_the_hottest_are_those_used_most(shared: SharedTier) -> None:
    shared.use({"a": 1, "b": 3})
    shared.use({"a": 1, "c": 1})
    assert shared.hottest(5) == ["b", "a", "c"]
    assert shared.hottest(1) == ["b"]
    shared.use({"c": 9})
    assert shared.hottest(5) == ["c", "b", "a"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 50)), max_size=8))
def test_heat_is_the_number_of_recent_uses(
    shared: SharedTier, redis: Redis, told: list[dict[str, int]]
) -> None:
    """Told at once or one after another: within seconds nothing fades."""
    redis.flushall()
    counts: dict[str, int] = {}
    for uses in told:
        shared.use(uses)
        for digest, times in uses.items():
            counts[digest] = counts.get(digest, 0) + times
    order = shared.hottest(10)
    assert set(order) == set(counts)
    for hotter, cooler in pairwise(order):
        assert counts[hotter] >= counts[cooler]


def test_what_is_hot_lives_longer_and_what_is_large_shorter(valkey: str, redis: Redis) -> None:
    one = ADAPTERS[0]
    lives: dict[tuple[int, int], int] = {}
    for max_bytes in (2 * SIZE, 100 * SIZE):
        for uses in (1, 2, 10, 10_000):
            redis.flushall()
            tier = shared_tier(valkey, max_bytes, ttl_s=TTL_S)
            tier.put(one)
            tier.use({one.digest: uses})
            lives[max_bytes, uses] = redis.ttl(tier.key(one.digest))
            tier.close()
    for max_bytes in (2 * SIZE, 100 * SIZE):
        single = lives[max_bytes, 1]
        assert TTL_S / 2 <= single <= TTL_S
        assert lives[max_bytes, 2] == pytest.approx(2 * single, rel=0.01)
        assert lives[max_bytes, 10_000] == pytest.approx(MAX_HEAT * single, rel=0.01)
    assert lives[2 * SIZE, 1] < 0.7 * lives[100 * SIZE, 1]


def test_a_use_of_what_redis_does_not_have_is_counted_all_the_same(
    shared: SharedTier, redis: Redis
) -> None:
    redis.rpush(shared.key("list"), "of another type")
    shared.use({"away": 2, "list": 1})
    assert shared.hottest(5) == ["away", "list"]
    assert shared.counters().get("shared_errors", 0) == 0


def test_the_table_is_of_one_layout_and_goes_when_it_is_not_used(
    valkey: str, shared: SharedTier, redis: Redis
) -> None:
    other = shared_tier(valkey, layout="another base model", ttl_s=TTL_S)
    shared.use({"a": 1})
    other.use({"b": 1})
    assert (shared.hottest(5), other.hottest(5)) == (["a"], ["b"])
    other.close()
    for key in redis.keys("tenora:adapter-heat:*"):
        assert 0 < redis.ttl(key) <= TTL_S * MAX_HEAT


def test_a_new_engine_begins_with_the_hottest_adapters(valkey: str, redis: Redis) -> None:
    store = MemoryStore()
    refs = [published(store, seed) for seed in range(6)]
    size = 0
    first = AdapterLoader(resolved(redis_url=valkey), store=store)
    for heat, ref in enumerate(refs):
        first.start(ref)
        until(lambda: any(result.packed for result in first.take_completed()))
        for _ in range(heat):
            first.used(ref.digest, "t")
        size = first._host.used_bytes // (heat + 1)
    until(lambda: redis.dbsize() >= len(refs))
    first.close()  # tells Redis what it has not yet
    room = 3 * size
    options = {"redis_url": valkey, "host_adapter_bytes": HOST_FRACTION * room + size // 2}
    second = AdapterLoader(resolved(**options), store=store)
    until(lambda: second.counters()["warmed"] == 3)
    held = [entry.digest for entry in second.residencies()]
    assert held == [ref.digest for ref in refs[3:]], "the hottest goes last"
    second.start(refs[5])
    (result,) = second.take_completed()
    assert result.residency == "host"
    assert second.counters()["host_evictions"] == 0
    second.close()


def test_what_is_asked_for_comes_first(shared: SharedTier) -> None:
    for adapter in ADAPTERS[:3]:
        shared.put(adapter)
        shared.use({adapter.digest: 1})
    host, asked = HostTier(100 * SIZE), threading.Event()
    busy = True

    def is_busy() -> bool:
        asked.set()
        return busy

    warming = warmed(shared, host, is_busy)
    warming.start()
    assert asked.wait(20)
    assert host.used_bytes == 0
    busy = False
    until(lambda: warming.adapters == 3)
    warming.stop()


def test_nothing_goes_for_what_nobody_asked_for(shared: SharedTier) -> None:
    for adapter in ADAPTERS:
        shared.put(adapter)
        shared.use({adapter.digest: 5})
    limit = SIZE + shared.stored_bytes(ADAPTERS[0].digest)
    host = HostTier(HOST_FRACTION * limit)
    wanted = packed(50)
    host.put(wanted)
    warming = warmed(shared, host)
    warming.start()
    warming._thread.join(20)
    assert warming.adapters == 1
    assert host.used_bytes <= limit
    spare, _ = [entry.digest for entry in host.residencies()]
    assert spare != wanted.digest
    asked = count(51)
    while not host.evictions:
        host.put(packed(next(asked)))
    assert spare not in host, "what nobody asked for goes first"
    assert wanted.digest in host


def test_what_is_forgotten_does_not_come_back(shared: SharedTier) -> None:
    """Neither before nor while it is read."""
    first, second = ADAPTERS[:2]
    for adapter, uses in ((first, 2), (second, 1)):
        shared.put(adapter)
        shared.use({adapter.digest: uses})
    host = HostTier(100 * SIZE)

    def keep(adapter: PackedAdapter) -> PackedAdapter:
        warming.forget(adapter.digest)  # in the middle of its read
        host.remove(adapter.digest)
        return adapter

    warming = Warming(host, shared, bool, keep, Pace())
    warming.start()
    warming._thread.join(20)
    assert (host.used_bytes, warming.adapters) == (0, 0)


def test_a_loader_that_ends_does_not_wait_for_its_warming(valkey: str, redis: Redis) -> None:
    tier = shared_tier(valkey, ttl_s=TTL_S)
    for adapter in ADAPTERS:
        tier.put(adapter)
        tier.use({adapter.digest: 1})
    tier.close()
    loader = AdapterLoader(resolved(redis_url=valkey))
    loader.close()
    assert not loader._warming or not loader._warming._thread.is_alive()


def test_without_redis_nothing_is_warmed_and_nothing_fails() -> None:
    loader = AdapterLoader(resolved(redis_url="redis://127.0.0.1:1"))
    loader.used("sha256:a", "t")
    loader.close()
    assert loader.counters()["warmed"] == 0


def test_every_request_is_a_use_wherever_its_adapter_is() -> None:
    rig = Rig.build(make_config())
    ref: AdapterRef = make_ref("x")
    for number in range(3):
        rig.engine.submit(make_request(f"r{number}", [1], adapter=ref))
        while rig.engine.has_work:
            rig.engine.step()
    rig.engine.submit(make_request("base", [1]))
    assert rig.loader.uses == [ref.digest] * 3
