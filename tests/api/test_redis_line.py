"""The shared connection to Redis against a real server, and against one that does not keep up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from platform_fixtures import Servers
from tenora_platform.redis_client import open_redis
from tenora_platform.redis_line import LineRedis


@pytest.fixture
async def redis(servers: Servers) -> AsyncIterator[LineRedis]:
    client = open_redis(servers.redis_url)
    assert isinstance(client, LineRedis)
    await client.flushdb()
    yield client
    await client.aclose()


async def test_more_at_once_than_a_pool_has(redis: LineRedis) -> None:
    """redis-py's pool ends at a hundred connections: the next request was refused."""
    counts = await asyncio.gather(*(redis.incr("count") for _ in range(500)))
    assert sorted(counts) == list(range(1, 501))
    assert len(await redis.client_list()) < 5


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.binary(min_size=1, max_size=30), st.binary(max_size=300), min_size=1))
async def test_answers_as_redis_py_does(
    redis: LineRedis, servers: Servers, values: dict[bytes, bytes]
) -> None:
    other = Redis.from_url(servers.redis_url)
    await redis.mset(values)
    for client in (redis, other):
        assert await client.mget(list(values)) == list(values.values())
        assert await client.exists(*values) == len(values)
        assert await client.ttl(next(iter(values))) == -1
    await redis.zadd("scores", {key: len(value) for key, value in values.items()})
    asked = [each.zrange("scores", 0, -1, withscores=True) for each in (redis, other)]
    ours, theirs = await asyncio.gather(*asked)
    assert ours == theirs
    await redis.delete("scores", *values)
    await other.aclose()


async def test_scripts_are_sent_once(redis: LineRedis) -> None:
    script = "return {KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}"
    await redis.script_flush()
    await redis.config_resetstat()
    for number in (1, 2):  # unknown, then known
        assert await redis.eval(script, 1, "k", "v") == [b"k", b"v", number]
    stats = await redis.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 2
    with pytest.raises(ResponseError, match="no such"):
        await redis.eval("return redis.error_reply('ERR no such thing')", 0)


async def test_an_error_is_its_own_callers(redis: LineRedis) -> None:
    await redis.set("text", "x")
    found = await asyncio.gather(
        redis.get("text"),
        redis.execute_command("NONSENSE", "text"),
        redis.get("text"),
        return_exceptions=True,
    )
    assert found[0] == found[2] == b"x"
    assert isinstance(found[1], ResponseError)


async def test_what_a_command_cannot_work_on_is_removed(redis: LineRedis) -> None:
    """By another type, by contents, in a script, and in pipelines of both kinds; what is named
    beside it in the same script goes with it, and nothing else."""
    removed: list[int] = []
    redis.removed = removed.append
    adds = "return tonumber(redis.call('GET', KEYS[2]) or 0) + redis.call('HLEN', KEYS[1])"
    await redis.mset({"beside": "1", "kept": "2"})
    await redis.set("hash", "text")
    assert await redis.hgetall("hash") == {}
    await redis.set("hash", "text")
    assert await redis.hincrby("hash", "field", 2) == 2
    await redis.hset("hash", "field", "no number")
    assert await redis.hincrby("hash", "field", 2) == 2
    await redis.set("hash", "text")
    assert await redis.eval(adds, 2, "hash", "beside") == 0
    await redis.set("beside", "no number")
    assert await redis.eval(adds, 2, "hash", "beside") == 0
    script = redis.register_script(adds)
    for transaction in (True, False):
        await redis.set("hash", "text")
        await redis.set("set", "text")
        async with redis.pipeline(transaction=transaction) as pipe:
            pipe.get("kept")
            pipe.hset("hash", "field", "value")
            pipe.zrange("set", 0, -1, withscores=True)
            await script(["hash", "beside"], [], client=pipe)
            assert await pipe.execute() == [b"2", 1, [], 0]
        assert await redis.exists("hash", "set") == 0
    assert await redis.get("kept") == b"2"
    assert sum(removed) >= 9


async def test_a_server_that_refuses_is_no_damage(redis: LineRedis) -> None:
    removed: list[int] = []
    redis.removed = removed.append
    await redis.set("kept", "2")
    await redis.config_set("maxmemory", "1")
    try:
        for refused in (
            redis.hset("hash", "field", "value"),
            redis.eval("return redis.call('SET', KEYS[1], '1')", 1, "kept"),
        ):
            with pytest.raises(ResponseError, match="maxmemory"):
                await refused
    finally:
        await redis.config_set("maxmemory", "0")
    assert await redis.get("kept") == b"2"
    assert removed == []


async def test_who_is_cancelled_takes_nobodys_answer(redis: LineRedis) -> None:
    await redis.set("a", "1")
    await redis.set("b", "2")
    first = asyncio.ensure_future(redis.get("a"))
    second = asyncio.ensure_future(redis.get("b"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"2"


async def test_a_broken_connection_is_made_anew(redis: LineRedis) -> None:
    await redis.set("kept", "1")
    me = await redis.client_id()
    killed = redis.client_kill_filter(_id=str(me), skipme=False)
    answers = await asyncio.gather(killed, *(redis.get("kept") for _ in range(5)))
    assert answers[1:] == [b"1"] * 5  # of which some, or the killer, were sent again
    assert await redis.client_id() != me


async def test_one_that_does_not_answer_is_given_up() -> None:
    async def answer_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(answer_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = LineRedis.from_url(
        f"redis://127.0.0.1:{port}", socket_timeout=0.2, socket_connect_timeout=0.2, protocol=2
    )
    with pytest.raises((TimeoutError, ConnectionError)):
        await client.get("x")
    await client.aclose()
    server.close()
