"""The tiers below the device and the loader over them: a real Valkey, file and memory object
stores, and what happens when each of them is damaged, away or empty."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
import torch
from obstore.store import LocalStore, MemoryStore
from redis import Redis

from packed_adapters import LAYOUT, packed, published, resolved, shared_tier, weights
from tenora_engine.adapters.identity import (
    config_key,
    weights_key,
)
from tenora_engine.adapters.loader import AdapterLoader, LoadResult
from tenora_engine.adapters.peft_format import tensor_name
from tenora_engine.adapters.tiers import HostTier, StoreTier, packed_bytes
from tenora_engine.errors import AdapterLoadError
from tenora_engine.request import AdapterRef


class Waiting:
    """A loader whose results are waited for, as the engine's loop does by its wake-up."""

    def __init__(self, loader: AdapterLoader) -> None:
        self.loader = loader
        self._woken = threading.Semaphore(0)
        loader.on_complete = self._woken.release

    def load(self, ref: AdapterRef) -> LoadResult:
        self.loader.start(ref)
        assert self._woken.acquire(timeout=20)
        (result,) = self.loader.take_completed()
        assert result.ref == ref
        return result


def test_host_tier_drops_the_least_recently_used() -> None:
    one, two, three = packed(1), packed(2), packed(3)
    tier = HostTier(packed_bytes(one) * 2)
    assert tier.put(one)
    assert tier.put(two)
    assert tier.get(one.digest) is one
    assert tier.put(three)
    assert two.digest not in tier
    assert one.digest in tier
    assert [held.digest for held in tier.residencies()] == [one.digest, three.digest]
    assert {held.state for held in tier.residencies()} == {"host"}
    assert tier.used_bytes == 2 * packed_bytes(one)
    tier.put(three)
    assert tier.used_bytes == 2 * packed_bytes(one)
    tier.remove(one.digest)
    tier.remove(three.digest)
    assert tier.used_bytes == 0
    assert tier.evictions == 1
    assert not HostTier(packed_bytes(one) - 1).put(one)


def test_shared_tier_keeps_an_adapter_for_other_engines(valkey: str, redis: Redis) -> None:
    one = packed(1)
    assert shared_tier(valkey).put(one)
    other = shared_tier(valkey)
    found = other.get(one.digest)
    assert found is not None
    assert torch.equal(found.pages, one.pages)
    assert other.contains(one.digest)
    assert 0 < redis.ttl(other.key(one.digest)) <= 60
    assert other.hottest(5) == []
    other.use({one.digest: 1})
    assert other.hottest(5) == [one.digest]
    other.remove(one.digest)
    assert other.get(one.digest) is None
    assert other.hottest(5) == []
    assert other.counters() == {"shared_hits": 1, "shared_misses": 1}


def test_shared_tier_refuses_what_is_too_large(valkey: str, redis: Redis) -> None:
    tier = shared_tier(valkey, max_bytes=packed_bytes(packed(1)) - 1)
    assert not tier.put(packed(1))
    assert redis.keys("*") == []


@pytest.mark.parametrize("damage", ["flip", "cut", "text", "other layout", "other adapter"])
def test_a_bad_redis_entry_is_a_miss_and_goes(valkey: str, redis: Redis, damage: str) -> None:
    tier, one = shared_tier(valkey), packed(1)
    tier.put(one)
    key = tier.key(one.digest)
    data = redis.get(key)
    assert isinstance(data, bytes)
    if damage == "flip":
        redis.set(key, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    elif damage == "cut":
        redis.set(key, data[:-1])
    elif damage == "text":
        redis.set(key, "hello")
    else:
        layout = LAYOUT if damage == "other adapter" else "another"
        writer = shared_tier(valkey, layout=layout)
        writer.put(packed(2) if damage == "other adapter" else one)
        redis.rename(writer.key(packed(2).digest if layout == LAYOUT else one.digest), key)
        if damage == "other layout":
            reader = shared_tier(valkey, layout="third")
            redis.rename(key, reader.key(one.digest))
            tier, key = reader, reader.key(one.digest)
    assert tier.get(one.digest) is None
    if damage != "other layout":
        assert tier.counters()["shared_corrupt"] == 1
    assert not redis.exists(key)


def test_redis_away_is_a_counted_miss() -> None:
    with socket.socket() as held:  # bound, but nobody listens
        held.bind(("127.0.0.1", 0))
        tier = shared_tier(f"redis://127.0.0.1:{held.getsockname()[1]}")
        assert tier.get(packed(1).digest) is None
        assert not tier.put(packed(1))
        assert tier.contains(packed(1).digest) is None
        tier.remove(packed(1).digest)
        assert tier.counters()["shared_errors"] == 4


def test_a_redis_key_of_another_type_is_a_miss_and_goes(valkey: str, redis: Redis) -> None:
    tier = shared_tier(valkey)
    redis.lpush(tier.key(packed(1).digest), "x")
    assert tier.get(packed(1).digest) is None
    assert tier.put(packed(1)), "Redis is not away because of one key"
    assert tier.get(packed(1).digest) is not None
    assert tier.counters()["shared_corrupt"] == 1
    assert "shared_errors" not in tier.counters()


def test_store_tier_reads_a_folder_and_a_url(tmp_path: Path) -> None:
    ref = published(LocalStore(tmp_path), 1)
    for url in (str(tmp_path), tmp_path.as_uri()):
        config, tensors = StoreTier(url).read(ref.digest)
        assert config.lora_alpha == 8
        assert torch.equal(
            tensors[tensor_name(0, "q_proj", "A")], weights(1)[tensor_name(0, "q_proj", "A")]
        )


@pytest.mark.parametrize("key", [config_key, weights_key])
def test_a_changed_object_does_not_load(tmp_path: Path, key: object) -> None:
    assert callable(key)
    ref = published(LocalStore(tmp_path), 1)
    path = tmp_path / key(ref.digest)
    path.write_bytes(path.read_bytes().replace(b"8", b"9", 1))
    with pytest.raises(AdapterLoadError, match="does not match its digest"):
        StoreTier(str(tmp_path)).read(ref.digest)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://", "has no adapters/"),
        ("nowhere", "object store"),
        ("gopher://x/y", "object store gopher"),
        (None, "no object store is set"),
    ],
)
def test_a_store_that_cannot_answer_says_so(url: str | None, words: str, tmp_path: Path) -> None:
    where = str(tmp_path / "nowhere") if url == "nowhere" else url
    with pytest.raises(AdapterLoadError, match=words):
        StoreTier(where).read(packed(1).digest)


def test_loader_climbs_the_tiers(valkey: str, redis: Redis) -> None:
    store = MemoryStore()
    ref = published(store, 1)
    first = Waiting(AdapterLoader(resolved(redis_url=valkey), store=store))
    result = first.load(ref)
    assert (result.residency, result.error) == ("store", None)
    assert result.packed is not None
    assert result.packed.digest == ref.digest
    assert first.loader.residency(ref) == "host"
    assert first.load(ref).residency == "host"
    first.loader.close()

    second = Waiting(AdapterLoader(resolved(redis_url=valkey)))  # it has no store at all
    shared = second.load(ref)
    assert shared.residency == "shared"
    assert shared.packed is not None
    assert torch.equal(shared.packed.pages, result.packed.pages)
    assert second.loader.counters()["shared_loads"] == 1
    second.loader.close()


def test_loader_learns_what_redis_holds_beside_the_step(valkey: str, redis: Redis) -> None:
    store = MemoryStore()
    ref = published(store, 1)
    first = Waiting(AdapterLoader(resolved(redis_url=valkey), store=store))
    first.load(ref)
    first.loader.close()
    loader = AdapterLoader(resolved(redis_url=valkey))
    assert loader.residency(ref) == "store"  # not heard of yet; now it is asked
    loader.find([packed(9).digest], ()).result(20)  # in the same thread: the question came first
    assert loader.residency(ref) == "shared"
    loader.close()


def test_where_several_are_is_found_in_one_go(valkey: str, redis: Redis) -> None:
    store = MemoryStore()
    ref, host = published(store, 1), published(store, 2)
    first = Waiting(AdapterLoader(resolved(redis_url=valkey, loader_threads=1), store=store))
    first.load(ref)
    first.load(host)
    first.load(AdapterRef(packed(9).digest, 4))  # one thread: what was shared is shared by now
    first.loader.close()
    second = Waiting(AdapterLoader(resolved(redis_url=valkey), store=store))
    second.load(host)
    asked = ["sha256:arena", host.digest, ref.digest, "sha256:nowhere"]
    found = second.loader.find(asked, {"sha256:arena"}).result(20)
    assert [found[digest] for digest in asked] == ["device", "host", "shared", "store"]
    assert second.loader.residency(ref) == "shared"  # it remembers
    second.loader.close()
    assert second.loader.find(["sha256:late"], ()).result(0) == {"sha256:late": "store"}
    alone = AdapterLoader(resolved())  # no Redis
    assert alone.find([ref.digest], ()).result(0) == {ref.digest: "store"}
    alone.close()


def test_forget_drops_host_and_shared_copies(valkey: str, redis: Redis) -> None:
    store = MemoryStore()
    ref = published(store, 1)
    first = Waiting(AdapterLoader(resolved(redis_url=valkey, loader_threads=1), store=store))
    first.load(ref)
    first.load(AdapterRef(packed(9).digest, 4))  # one thread: what was shared is shared by now
    assert redis.keys("tenora:adapter:*")
    first.loader.forget(ref.digest)
    assert first.loader.residency(ref) == "store"
    first.loader.find([packed(8).digest], ()).result(20)  # in the same thread
    assert redis.keys("tenora:adapter:*") == []
    first.loader.close()


def test_only_the_broken_adapter_fails(tmp_path: Path) -> None:
    good, bad = published(LocalStore(tmp_path), 1), published(LocalStore(tmp_path), 2)
    (tmp_path / weights_key(bad.digest)).write_bytes(b"nothing")
    waiting = Waiting(AdapterLoader(resolved(object_store=str(tmp_path))))
    failed = waiting.load(bad)
    assert failed.packed is None
    assert failed.error is not None
    assert "digest" in str(failed.error)
    assert waiting.load(good).error is None
    assert waiting.loader.counters()["load_errors"] == 1
    waiting.loader.close()


def test_rank_above_the_servers_is_refused(tmp_path: Path) -> None:
    ref = published(LocalStore(tmp_path), 1)
    waiting = Waiting(AdapterLoader(resolved(object_store=str(tmp_path), max_rank=3)))
    assert "above this server's maximum of 3" in str(waiting.load(ref).error)
    waiting.loader.close()


def test_start_is_idempotent_while_in_flight(tmp_path: Path) -> None:
    refs = [published(LocalStore(tmp_path), seed) for seed in range(4)]
    loader = AdapterLoader(resolved(object_store=str(tmp_path), loader_threads=1))
    gate, done = threading.Event(), threading.Semaphore(0)

    def completed() -> None:
        done.release()
        gate.wait(20)  # holds the only thread, so that the others stay in flight

    loader.on_complete = completed
    for _ in range(5):
        for ref in refs[1:]:
            loader.start(ref)
    gate.set()
    for _ in refs[1:]:
        assert done.acquire(timeout=20)
    loader.close()
    results = loader.take_completed()
    assert sorted(r.ref.digest for r in results) == sorted(r.digest for r in refs[1:])
    assert loader.take_completed() == []
    loader.start(refs[0])  # closed: nothing happens
    assert loader.take_completed() == []


def test_only_a_load_that_has_not_begun_can_be_cancelled(tmp_path: Path) -> None:
    refs = [published(LocalStore(tmp_path), seed) for seed in range(3)]
    loader = AdapterLoader(resolved(object_store=str(tmp_path), loader_threads=1))
    gate, done = threading.Event(), threading.Semaphore(0)

    def completed() -> None:
        done.release()
        gate.wait(20)  # holds the only thread, so that the others have not begun

    loader.on_complete = completed
    loader.start(refs[0])
    assert done.acquire(timeout=20)
    loader.start(refs[1])
    loader.start(refs[2])
    assert loader.cancel(refs[1].digest)
    assert not loader.cancel(refs[1].digest)
    assert not loader.cancel(refs[0].digest)
    gate.set()
    assert done.acquire(timeout=20)
    assert [r.ref.digest for r in loader.take_completed()] == [refs[0].digest, refs[2].digest]
    loader.start(refs[1])
    assert done.acquire(timeout=20)
    loader.close()
    assert loader.counters()["cancelled"] == 1
