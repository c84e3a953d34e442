"""What lies in Redis where others may write: only what this installation has sealed is taken, and
only such tables as packing makes reach an arena."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from redis import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from torch import Tensor

from packed_adapters import MODEL, PAGE, packed, resolved, shared_tier
from tenora_engine.adapters.loader import AdapterLoader
from tenora_engine.adapters.pack import (
    CorruptEntryError,
    check_tables,
    deserialise,
    serialise,
)
from tenora_engine.sealing import Seal, is_damage

KEY, OTHER_KEY = b"a" * 32, b"b" * 32


def test_a_sealed_value_is_opened_by_its_key_kind_and_name_alone() -> None:
    seal = Seal(KEY)
    sealed = seal.close("identity", "key:1", b"content", 60)
    assert seal.open("identity", "key:1", sealed) == b"content"
    assert Seal(OTHER_KEY).open("identity", "key:1", sealed) is None
    assert seal.open("identity", "key:2", sealed) is None
    assert seal.open("model", "key:1", sealed) is None
    assert seal.open("identitykey", ":1", sealed) is None
    assert seal.open("identity", "key:1", None) is None


def test_no_changed_byte_and_no_shorter_value_is_opened() -> None:
    seal = Seal(KEY)
    sealed = seal.close("identity", "key:1", b"content", 60)
    for at in range(len(sealed)):
        assert seal.open("identity", "key:1", sealed[:at]) is None
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        assert seal.open("identity", "key:1", changed) is None
    assert seal.open("identity", "key:1", sealed + b"\0") is None


def test_large_contents_have_the_same_tag_in_one_call_or_two() -> None:
    seal, content = Seal(KEY), bytes(range(256)) * 65
    assert seal.tag("adapter", "x", content) == seal.tag("adapter", "x", memoryview(content))
    assert seal.tag("adapter", "x", content) != seal.tag("adapter", "y", content)
    assert seal.tag("adapter", "x", content[:-1]) != seal.tag("adapter", "x", content)


def test_what_is_put_back_after_its_time_is_not_opened() -> None:
    """Who kept a copy of a value, and of the epoch it was good for, brings neither to life."""
    now_s = 1000.0
    rejected: list[str] = []
    seal = Seal(KEY, rejected.append, lambda: now_s)
    sealed = seal.close("identity", "key:1", b"content", 5)
    now_s = 1005.0
    assert seal.open("identity", "key:1", sealed) == b"content"
    now_s = 1005.1
    assert seal.open("identity", "key:1", sealed) is None
    assert rejected == [], "it is ours, and old"
    assert seal.open("identity", "key:2", sealed) is None
    assert rejected == ["identity"]


def test_a_seal_without_a_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Seal(b"")
    with pytest.raises(ValueError, match="32 bytes"):
        AdapterLoader(resolved(redis_url="redis://127.0.0.1:1", redis_key=b""))


def test_damage_is_told_from_a_server_that_does_not_work() -> None:
    for said in (
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR user_script:5: attempt to compare nil with number script: abc, on @user_script:5.",
        "user_script:5: attempt to perform arithmetic on a nil value",
        "ERR Error running script (call to f_ab): @user_script:2: WRONGTYPE Operation",
        "Error running script (call to f_ab): @user_script:2: user_script:2: attempt to add",
        "Command # 2 (GET x) of pipeline caused error: WRONGTYPE Operation against a key",
        "ERR hash value is not an integer",
        "value is not an integer or out of range",
        "ERR value is not a valid float",
    ):
        assert is_damage(ResponseError(said)), said
    for error in (
        ResponseError("OOM command not allowed script: abc, on @user_script:5."),
        ResponseError("command not allowed, is not set script: abc, on @user_script:5."),
        ResponseError("Error running script (call to f_ab): @user_script: 2: -OOM command not"),
        ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        ResponseError("NOPERM this user has no permissions"),
        ResponseError("ERR unknown command 'X'"),
        OutOfMemoryError("WRONGTYPE"),
        ReadOnlyError("user_script:5: You can't write against a read only replica."),
        OSError("WRONGTYPE"),
    ):
        assert not is_damage(error), error


def test_weights_of_whoever_can_write_to_redis_are_not_served(valkey: str, redis: Redis) -> None:
    """Another adapter's pages under this one's digest: with a checksum, as before; sealed by
    another installation; sealed by ours, under their own name."""
    tier, mine = shared_tier(valkey), packed(1)
    forged = dataclasses.replace(packed(2), digest=mine.digest)
    stranger, other = shared_tier(valkey, key=OTHER_KEY), packed(3)
    stranger.put(forged)
    sealed_elsewhere = redis.get(stranger.key(mine.digest))
    tier.put(other)
    ours = redis.get(tier.key(other.digest))
    for entry in (serialise(forged), sealed_elsewhere, ours):
        assert isinstance(entry, bytes)
        redis.set(tier.key(mine.digest), entry)
        assert tier.get(mine.digest) is None
        assert not redis.exists(tier.key(mine.digest))
    assert tier.counters()["shared_corrupt"] == 3


def test_no_more_is_read_than_an_adapter_can_take(valkey: str, redis: Redis) -> None:
    tier = shared_tier(valkey, max_bytes=1000)
    redis.setrange(tier.key(packed(1).digest), 64 * 2**20, "x")
    assert tier.get(packed(1).digest) is None
    assert not redis.exists(tier.key(packed(1).digest))


def test_a_heat_table_that_is_none_goes(valkey: str, redis: Redis) -> None:
    tier = shared_tier(valkey)
    redis.set(tier._hotness.key, "garbage")
    assert tier.hottest(5) == []
    tier.use({"a": 1})
    assert tier.hottest(5) == ["a"]
    redis.set(tier._hotness.key, "garbage")
    tier.use({"a": 1})
    tier.use({"b": 1})
    assert tier.hottest(5) == ["b"]
    redis.zadd(tier._hotness.key, {b"\xff\xfe": 1e300})
    assert len(tier.hottest(5)) == 2
    assert "shared_errors" not in tier.counters()


def put(name: str, value: float) -> Callable[[Tensor], Tensor]:
    def changed(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return changed


WRONG: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    *((name, put(name, 2**30)) for name in ("granule_page", "granule_start", "rank")),
    *((name, put(name, -(2**30))) for name in ("granule_page", "granule_start", "rank")),
    *((name, put(name, 2**30)) for name in ("a_offset", "b_offset")),
    *((name, put(name, 1)) for name in ("granule_start", "a_offset", "b_offset", "rank")),
    ("granule_page", put("granule_page", 1)),
    ("scale", put("scale", float("nan"))),
    ("pages", lambda pages: pages[:0]),
    ("pages", lambda pages: pages[:, :-1]),
    ("pages", lambda pages: torch.cat([pages, pages])),
    ("pages", lambda pages: pages.to(torch.bfloat16)),
    ("pages", lambda pages: pages.view(-1)),
    ("rank", lambda rank: rank[:1]),
    ("rank", lambda rank: rank.float()),
    ("rank", lambda rank: rank * 0),
    ("rank", lambda rank: torch.full_like(rank, 4)),  # of modules that the model has not
    ("scale", lambda scale: scale.double()),
    ("granule_page", lambda page: page[0]),
    ("granule_page", lambda page: page[:, :0]),
    ("granule_page", lambda page: page.repeat(1, 3)),
    ("granule_start", lambda start: start.repeat(1, 3)),
]


@pytest.mark.parametrize(("name", "change"), WRONG)
def test_sealed_tables_that_packing_does_not_make_stay_away_from_the_arena(
    valkey: str, redis: Redis, name: str, change: Callable[[Tensor], Tensor]
) -> None:
    """By a defect of ours, say: an index out of range would end the engine at each request."""
    tier, right = shared_tier(valkey), packed(1)
    changed: Any = {name: change(getattr(right, name))}
    wrong = dataclasses.replace(right, **changed)
    assert tier.put(wrong)
    assert tier.get(right.digest) is None
    assert not redis.exists(tier.key(right.digest))
    assert tier.counters()["shared_corrupt"] == 1
    assert tier.put(right)
    assert tier.get(right.digest) is not None


def test_tables_of_what_was_packed_are_right() -> None:
    for seed in range(3):
        check_tables(packed(seed), MODEL, PAGE, "float32", 8)
    with pytest.raises(CorruptEntryError):
        check_tables(packed(1), MODEL, PAGE, "float32", 3)
    with pytest.raises(CorruptEntryError):
        check_tables(packed(1), MODEL, PAGE, "int8", 8)


def test_the_check_of_serialised_bytes_is_chosen_by_who_keeps_them() -> None:
    mine = packed(1)
    sealed = serialise(mine, lambda content: Seal(KEY).tag("adapter", "x", content))
    with pytest.raises(CorruptEntryError):
        deserialise(sealed, mine.layout_key, mine.digest)
