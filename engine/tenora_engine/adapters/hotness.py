"""Hotness: how much each adapter is used, by all engines of one layout together. It lies in Redis
beside the packed adapters, whose time to live follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis import Redis

MEMORY_S = 3600.0
"""A use counts 1/e after this time."""

MAX_HEAT = 24.0
"""Recent uses from which more of them prolong an entry's life no further."""

_KEPT = 1000  # adapters in the table

# Heat is the sum of exp(-age / memory) over all uses, as in LRFU (Lee et al., IEEE Transactions on
# Computers, 2001). A score is the time at which that sum will be 1, so that time changes no score,
# and their order is that of the heats. KEYS: table, entry. ARGV: digest, uses, memory, life of one
# use, largest size, most heat, adapters kept.
_USE = """
local now = redis.call('TIME')
now = tonumber(now[1]) + tonumber(now[2]) / 1e6
local memory, life_s = tonumber(ARGV[3]), tonumber(ARGV[4])
local score = now + memory * math.log(tonumber(ARGV[2]))
local before = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or nil)
if before then
  local high, low = math.max(before, score), math.min(before, score)
  score = high + memory * math.log(1 + math.exp((low - high) / memory))
end
redis.call('ZADD', KEYS[1], score, ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -tonumber(ARGV[7]) - 1)
redis.call('EXPIRE', KEYS[1], math.ceil(life_s * tonumber(ARGV[6])))
local size = redis.pcall('STRLEN', KEYS[2])
if type(size) == 'number' and size > 0 then
  local heat = math.min(math.exp((score - now) / memory), tonumber(ARGV[6]))
  local fraction = size / tonumber(ARGV[5])
  redis.call('EXPIRE', KEYS[2], math.ceil(life_s * heat / (1 + fraction)))
end
"""


class Hotness:
    """The table of one layout. An adapter that is used again lives `ttl_s` times its heat, up to
    MAX_HEAT, and the less the larger it is: half of that at `max_bytes`."""

    def __init__(self, redis: Redis, layout: str, ttl_s: int, max_bytes: int) -> None:
        self.key = f"tenora:adapter-heat:{layout}"
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._use = redis.register_script(_USE)

    def use(self, redis: Redis, uses: Mapping[str, tuple[str, int]]) -> None:
        """`uses`: by digest the key of its entry, and how often it was used since the last time.
        Raises RedisError."""
        with redis.pipeline(transaction=False) as pipe:
            for digest, (entry, count) in uses.items():
                arguments = (digest, count, MEMORY_S, self._ttl_s)
                limits = (self._max_bytes, MAX_HEAT, _KEPT)
                self._use([self.key, entry], [*arguments, *limits], client=pipe)
            pipe.execute()

    def hottest(self, redis: Redis, count: int) -> list[str]:
        """Digests, the hottest first. Anybody who writes to Redis may name others: whoever loads by
        it finds them or not. Raises RedisError."""
        members: Any = redis.zrevrange(self.key, 0, count - 1)
        return [member.decode(errors="replace") for member in members]

    def forget(self, redis: Redis, digest: str) -> None:
        """Raises RedisError."""
        redis.zrem(self.key, digest)
