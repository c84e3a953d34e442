"""The Lua of the limits. Each script is one atomic step on one tenant's three keys: a hash with a
token bucket for requests and one for tokens, a sorted set with a lease per running request, whose
id ends in the number of its sequences, and a hash of when each of those should end, by the tenant's
own pace (ms per reserved token)."""

from __future__ import annotations

_COMMON = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function level_of(name, per_min)
  local kept = redis.call('HMGET', KEYS[1], name, name .. '_at')
  if not kept[1] then return per_min end
  return math.min(per_min, tonumber(kept[1]) + (now - tonumber(kept[2])) * per_min / 60000)
end

local function until_level(level, wanted, per_min)
  return math.max(0, math.ceil((wanted - level) * 60000 / per_min))
end

local function keep(name, level, per_min)
  redis.call('HSET', KEYS[1], name, string.format('%.6f', level), name .. '_at', now)
  local full_ms = until_level(level, per_min, per_min) + 1000
  if redis.call('PTTL', KEYS[1]) < full_ms then redis.call('PEXPIRE', KEYS[1], full_ms) end
end
"""

PACE_KEPT_MS = 3_600_000
"""So long a tenant's pace is remembered after its last request."""

# ARGV: requests/min, tokens/min, parallel (each -1: no limit), requests wanted, tokens wanted,
# lease id ('': none), lease ms, sequences wanted.
# Returns {refused by ('' if not), retry ms, requests left, reset ms, tokens left, reset ms,
# parallel}
ACQUIRE = (
    _COMMON
    + """
local rpm, tpm, parallel_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local requests_wanted, wanted = tonumber(ARGV[4]), tonumber(ARGV[5])
local lease, lease_ms, sequences = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('ZREM', KEYS[2], dead)
  redis.call('HDEL', KEYS[3], dead)
end

local function sequences_of(lease_id)
  return tonumber(string.match(lease_id, ':(%d+)$') or 1)  -- a version before wrote no number
end

local parallel = 0
if parallel_max >= 0 or (lease == '' and requests_wanted == 0) then
  for _, each in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    parallel = parallel + sequences_of(each)
  end
end

-- Until enough of the running requests should have ended. One that is late is given as long again.
local function until_places()
  if not redis.call('HGET', KEYS[3], 'pace') then return 500 end
  local ending = {}
  for _, each in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local ends = tonumber(redis.call('HGET', KEYS[3], each) or now)
    table.insert(ending, {math.abs(ends - now), sequences_of(each)})
  end
  table.sort(ending, function(one, other) return one[1] < other[1] end)
  local left, wait_ms = parallel, 60000
  for _, each in ipairs(ending) do
    if left + sequences > parallel_max then left, wait_ms = left - each[2], each[1] end
  end
  return math.min(60000, math.max(50, math.ceil(wait_ms)))
end

local requests, tokens = -1, -1
local refused, retry_ms = '', 0
if rpm >= 0 then
  requests = level_of('requests', rpm)
  if requests < requests_wanted then
    refused, retry_ms = 'requests', rpm > 0 and until_level(requests, requests_wanted, rpm) or 60000
  end
end
if tpm >= 0 then
  tokens = level_of('tokens', tpm)
  if refused == '' and (tokens < wanted or tpm == 0) and lease ~= '' then
    refused, retry_ms = 'tokens', tpm > 0 and until_level(tokens, wanted, tpm) or 60000
  end
end
if refused == '' and lease ~= '' and parallel_max >= 0 and parallel + sequences > parallel_max then
  refused, retry_ms = 'parallel_requests', until_places()
end
if refused == '' and rpm >= 0 and requests_wanted > 0 then
  requests = requests - requests_wanted
  keep('requests', requests, rpm)
end
if refused == '' and lease ~= '' then
  if tpm >= 0 then tokens = tokens - wanted; keep('tokens', tokens, tpm) end
  local pace = redis.call('HGET', KEYS[3], 'pace')
  if pace then redis.call('HSET', KEYS[3], lease, now + wanted * tonumber(pace)) end
  redis.call('ZADD', KEYS[2], now + lease_ms, lease)
  if redis.call('PTTL', KEYS[2]) < lease_ms then redis.call('PEXPIRE', KEYS[2], lease_ms) end
  parallel = parallel + sequences
end
local requests_reset = rpm > 0 and until_level(requests, rpm, rpm) or 0
local tokens_reset = tpm > 0 and until_level(tokens, tpm, tpm) or 0
return {refused, retry_ms, math.floor(requests), requests_reset, math.floor(tokens), tokens_reset,
        parallel}
"""
)

# ARGV: tokens/min (-1: no limit), tokens to give back (negative: to take), lease id, requests/min,
# requests to give back, ms per reserved token that it took (-1: says nothing), ms to remember it
SETTLE = (
    _COMMON
    + """
local tpm, tokens_back, lease = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local rpm, requests_back = tonumber(ARGV[4]), tonumber(ARGV[5])
if tpm > 0 and tokens_back ~= 0 then
  keep('tokens', math.min(tpm, level_of('tokens', tpm) + tokens_back), tpm)
end
if rpm > 0 and requests_back ~= 0 then
  keep('requests', math.min(rpm, level_of('requests', rpm) + requests_back), rpm)
end
local took = tonumber(ARGV[6])
if took >= 0 then
  local pace = tonumber(redis.call('HGET', KEYS[3], 'pace') or took)
  redis.call('HSET', KEYS[3], 'pace', string.format('%.6f', 0.8 * pace + 0.2 * took))
  redis.call('PEXPIRE', KEYS[3], ARGV[7])
end
redis.call('HDEL', KEYS[3], lease)
return redis.call('ZREM', KEYS[2], lease)
"""
)

# ARGV: lease ms, lease ids. Returns those that are not there: settled meanwhile, or run out.
RENEW = """
local clock = redis.call('TIME')
local until_ms = clock[1] * 1000 + math.floor(clock[2] / 1000) + tonumber(ARGV[1])
local missing = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], until_ms, ARGV[i])
  else
    table.insert(missing, ARGV[i])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return missing
"""

# ARGV: lease ms, lease ids: take again what has run out though the request does still run.
RETAKE = """
local clock = redis.call('TIME')
local until_ms = clock[1] * 1000 + math.floor(clock[2] / 1000) + tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], until_ms, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 0
"""
