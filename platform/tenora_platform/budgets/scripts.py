"""The Lua of the budgets. Each script is one atomic step on one tenant's keys:

KEYS[1] spent    hash: account -> nanos. An account that is missing is not known, and not 0. Beside
                 them `credit_cap:`, `credit_since:` and `credit_until:` (ms) of each currency, and
                 `open`
KEYS[2] holds    hash: event id of a running sequence -> "until ms|nanos|keys"
KEYS[3] events   hash: event id -> "kind|nanos|at ms|day|keys" of what has been counted. Kind `p`:
                 an API process has told of it, the books have not; `s`: it is in the books
KEYS[4] pending  sorted set: event ids of kind p by when they were counted (ms)
KEYS[5] stored   sorted set: event ids of kind s, likewise
KEYS[6] lengths  hash: model -> "sequences|mean|variance" of output tokens

`keys` are a currency, a bar, and the ids of a key and of those that it comes from, with commas in
between. An account's name ends with its currency: amounts of no other count for it. What is said in
another form, as earlier releases did, counts for nothing until the books are read.

So an event charges every account once, whoever tells of it, and however often; and it ends the hold
of its sequence in the same step."""

from __future__ import annotations

PENDING_MS = 86_400_000
"""So long an event that only an API process has told of is believed to come to the books."""
STORED_MS = 3_600_000
"""So long an event's id is kept after the books had it, in case an API process tells of it late."""
HOLD_MS_MAX = 86_400_000
"""No lease is longer; a hold that says so is none of ours."""
KEPT_MS = 86_400_000
"""Counters that no request has asked for go: the next one has the books read."""
LENGTHS_KEPT_MS = 30 * 86_400_000

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function whole(number) return string.format('%.0f', number) end

-- What a counter holds; nil for what is none of ours, which is not known then.
local function counter(name)
  local kept = redis.call('HGET', KEYS[1], name)
  return kept and #kept <= 24 and string.match(kept, '^%-?%d+$') and kept or nil
end
"""

_COUNT = (
    _NOW
    + f"""
local PENDING_MS, STORED_MS = {PENDING_MS}, {STORED_MS}
"""
    + """
local function names_of(day, keys, at)
  local currency, of = string.match(keys, '^(%u%u%u)|(.*)$')
  if not currency then return {} end
  local ends = ':' .. currency
  local month = string.sub(day, 1, 7) .. ends
  day = day .. ends
  local names = {'d:' .. day, 'm:' .. month}
  for key in string.gmatch(of, '[^,]+') do
    table.insert(names, 'k:' .. key .. ':d:' .. day)
    table.insert(names, 'k:' .. key .. ':m:' .. month)
  end
  local since = counter('credit_since' .. ends)
  if since and tonumber(at) >= tonumber(since) then table.insert(names, 'credit' .. ends) end
  return names
end

local function charge(nanos, day, key, at)
  for _, name in ipairs(names_of(day, key, at)) do
    local kept = counter(name)
    if kept then redis.call('HSET', KEYS[1], name, whole(tonumber(kept) + nanos)) end
  end
end

local function remember(kind, id, nanos, day, key, at)
  redis.call('HSET', KEYS[3], id, table.concat({kind, nanos, at, day, key}, '|'))
  redis.call('ZADD', kind == 'p' and KEYS[4] or KEYS[5], now, id)
end

-- Whether it is new: then it charges its accounts. The books' word stands above an API process's.
local function count(kind, id, nanos, day, key, at)
  redis.call('HDEL', KEYS[2], id)
  local known = redis.call('HGET', KEYS[3], id)
  if known then
    if kind == 's' and string.sub(known, 1, 1) == 'p' then
      local before = tonumber(string.match(known, '^p|(%d+)|'))
      if before ~= tonumber(nanos) then charge(tonumber(nanos) - before, day, key, at) end
      redis.call('ZREM', KEYS[4], id)
      remember(kind, id, nanos, day, key, at)
    end
    return false
  end
  charge(tonumber(nanos), day, key, at)
  remember(kind, id, nanos, day, key, at)
  return true
end

local function forget(key, before)
  local old = redis.call('ZRANGEBYSCORE', key, '-inf', before, 'LIMIT', 0, 200)
  for _, id in ipairs(old) do
    redis.call('HDEL', KEYS[3], id)
    redis.call('ZREM', key, id)
  end
end

local function tidy()
  forget(KEYS[4], now - PENDING_MS)
  forget(KEYS[5], now - STORED_MS)
  for _, key in ipairs({KEYS[3], KEYS[4], KEYS[5]}) do
    redis.call('PEXPIRE', key, PENDING_MS + STORED_MS)
  end
end
"""
)

# ARGV: lease ms (0: only look), keys, model, output tokens without a history, nanos an output
# token, number of budgets B, then of each: account, cap ('': credit's), whose key's ('': the whole
# tenant's); then of each sequence: event id, nanos of its prompt, its most output tokens.
# Returns {what, index, expected output tokens, then of each budget: spent ('': not known), cap,
# held}; `what` is 'held', 'refused' (by budget `index`) or 'unknown'.
ACQUIRE = (
    _NOW
    + f"""
local KEPT_MS, HOLD_MS_MAX = {KEPT_MS}, {HOLD_MS_MAX}
"""
    + """
local lease_ms, keys, model = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local budgets = tonumber(ARGV[6])
local first = 7 + 3 * budgets

-- Sent again after its connection broke, it does not stand in its own way.
local own = {}
for i = first, #ARGV, 3 do own[ARGV[i]] = true end

-- By currency, a bar and a key; without a key, of the whole tenant.
local held_of = {}
local function place_of(each)
  return string.sub(ARGV[4 + 3 * each], -3) .. '|' .. ARGV[6 + 3 * each]
end
for each = 1, budgets do held_of[place_of(each)] = 0 end
local function hold(place, nanos)
  if held_of[place] then held_of[place] = held_of[place] + nanos end
end
local holds = redis.call('HGETALL', KEYS[2])
for i = 1, #holds, 2 do
  local until_ms, nanos, currency, of =
    string.match(holds[i + 1], '^(%d+)|(%d+)|(%u%u%u)|(.*)$')
  if not until_ms or tonumber(until_ms) <= now or tonumber(until_ms) > now + HOLD_MS_MAX
    or #nanos > 18 then
    redis.call('HDEL', KEYS[2], holds[i])
  elseif not own[holds[i]] then
    hold(currency .. '|', nanos)
    for key in string.gmatch(of, '[^,]+') do hold(currency .. '|' .. key, nanos) end
  end
end

-- The most that it has used lately: two standard deviations above the mean. Few are no history.
local expected = tonumber(ARGV[4])
local history = redis.call('HGET', KEYS[6], model)
if history then
  local seen, mean, variance = string.match(history, '^(%d+)|([^|]+)|([^|]+)$')
  local likely = math.ceil(mean + 2 * math.sqrt(variance))
  local is_sane = likely >= 0 and likely < 1e9
  if is_sane and (tonumber(seen) >= 8 or likely > expected) then expected = likely end
end

local wanted, amounts = 0, {}
for i = first, #ARGV, 3 do
  local tokens = math.min(tonumber(ARGV[i + 2]), expected)
  local nanos = math.ceil(ARGV[i + 1] + tokens * ARGV[5])
  wanted = wanted + nanos
  table.insert(amounts, whole(nanos))
end

local what, index, found = 'held', 0, {}
for each = 1, budgets do
  local at = 4 + 3 * each
  local spent, cap = counter(ARGV[at]), ARGV[at + 1]
  if cap == '' then
    local currency = string.sub(ARGV[at], -3)
    cap = counter('credit_cap:' .. currency)
    local ends = tonumber(counter('credit_until:' .. currency) or '0')
    if not cap or now >= ends then spent = nil end
  end
  table.insert(found, spent or '')
  table.insert(found, cap or '')
  table.insert(found, whole(held_of[place_of(each)]))
  if not spent then
    what = 'unknown'
  elseif what == 'held' and lease_ms > 0 then
    local held = held_of[place_of(each)]
    spent, cap = tonumber(spent), tonumber(cap)
    if spent >= cap or spent + held + wanted > cap then what, index = 'refused', each end
  end
end

if what == 'held' and lease_ms > 0 then
  for i = first, #ARGV, 3 do
    local nanos = amounts[(i - first) / 3 + 1]
    redis.call('HSET', KEYS[2], ARGV[i], whole(now + lease_ms) .. '|' .. nanos .. '|' .. keys)
  end
  redis.call('PEXPIRE', KEYS[2], 2 * lease_ms)
  redis.call('PEXPIRE', KEYS[1], KEPT_MS)
end
return {what, index, whole(expected), unpack(found)}
"""
)

# ARGV: model ('': the books tell, not an API process), number of events, then of each: id, nanos,
# day, keys, at ms, output tokens; then ids of holds that are released.
# Returns how many were new.
COUNT = (
    _COUNT
    + f"""
local LENGTHS_KEPT_MS = {LENGTHS_KEPT_MS}
"""
    + """
local model, events = ARGV[1], tonumber(ARGV[2])
local kind = model == '' and 's' or 'p'

-- An exponential mean and variance, of all alike at first, then of some twenty (West, 1979).
local function learn(tokens)
  local seen, mean, variance = 0, 0, 0
  local history = redis.call('HGET', KEYS[6], model)
  if history then seen, mean, variance = string.match(history, '^(%d+)|([^|]+)|([^|]+)$') end
  seen = seen + 1
  local part = math.max(1 / seen, 0.05)
  local off = tokens - mean
  mean, variance = mean + part * off, (1 - part) * (variance + part * off * off)
  redis.call('HSET', KEYS[6], model, string.format('%d|%.6f|%.6f', seen, mean, variance))
  redis.call('PEXPIRE', KEYS[6], LENGTHS_KEPT_MS)
end

local new = 0
for i = 3, 2 + 6 * events, 6 do
  if count(kind, ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]) then
    new = new + 1
    if kind == 'p' then learn(tonumber(ARGV[i + 5])) end
  end
end
for i = 3 + 6 * events, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end
tidy()
return new
"""
)

# From here on whatever the books tell is kept, also for accounts that are not known yet.
# Returns {now ms, ids of pending events...}
OPEN = (
    _NOW
    + f"""
redis.call('HSET', KEYS[1], 'open', 1)
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], {KEPT_MS}) end
local pending = redis.call('ZRANGE', KEYS[4], 0, -1)
table.insert(pending, 1, whole(now))
return pending
"""
)

# What the database said in one snapshot. ARGV: '1' to put right what is known already, ms of
# before the snapshot, oldest day and month to keep, number of credits, then of each: currency, cap,
# since and until; number of accounts, then of each: account, nanos; then the events that the
# snapshot held and that somebody may still tell of: id, nanos, day, keys, at ms.
# Returns {account, before, now, ...} of those that were known and wrong.
SEED = (
    _COUNT
    + f"""
local KEPT_MS = {KEPT_MS}
"""
    + """
local mend, since_ms = ARGV[1] == '1', tonumber(ARGV[2])
local oldest_day, oldest_month = ARGV[3], ARGV[4]
local begin = 6 + 4 * tonumber(ARGV[5])
for i = 6, begin - 1, 4 do
  redis.call('HSET', KEYS[1], 'credit_cap:' .. ARGV[i], ARGV[i + 1],
    'credit_since:' .. ARGV[i], ARGV[i + 2], 'credit_until:' .. ARGV[i], ARGV[i + 3])
end
local accounts = tonumber(ARGV[begin])
local first = begin + 1 + 2 * accounts

local in_books = {}
for i = first, #ARGV, 5 do
  in_books[ARGV[i]] = true
  count('s', ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end

-- Counted, and not in the snapshot: by an API process alone, or stored while it was read.
local beside = {}
local function add_beside(ids)
  for _, id in ipairs(ids) do
    local known = not in_books[id] and redis.call('HGET', KEYS[3], id)
    if known then
      local nanos, at, day, key = string.match(known, '^%a|(%d+)|(%d+)|([^|]*)|(.*)$')
      for _, name in ipairs(names_of(day, key, at)) do
        beside[name] = (beside[name] or 0) + nanos
      end
    end
  end
end
add_beside(redis.call('ZRANGE', KEYS[4], 0, -1))
add_beside(redis.call('ZRANGEBYSCORE', KEYS[5], since_ms, '+inf'))

local wrong = {}
for i = begin + 1, first - 1, 2 do
  local name = ARGV[i]
  local right = whole(ARGV[i + 1] + (beside[name] or 0))
  local kept = counter(name)
  if not kept or (mend and kept ~= right) then redis.call('HSET', KEYS[1], name, right) end
  if kept and mend and kept ~= right then
    table.insert(wrong, name); table.insert(wrong, kept); table.insert(wrong, right)
  end
end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local day, month = string.match(name, 'd:([%d-]+):?%u*$'), string.match(name, 'm:([%d-]+):?%u*$')
  if (day and day < oldest_day) or (month and month < oldest_month) then
    redis.call('HDEL', KEYS[1], name)
  end
end
if not mend or redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], KEPT_MS) end
tidy()
return wrong
"""
)

# ARGV: lease ms, then ids of holds. Returns those that are not there: counted, released, run out.
RENEW = (
    _NOW
    + """
local missing = {}
for i = 2, #ARGV do
  local held = redis.call('HGET', KEYS[2], ARGV[i])
  if held then
    local rest = string.match(held, '^%d+(|.*)$')
    redis.call('HSET', KEYS[2], ARGV[i], whole(now + ARGV[1]) .. rest)
  else
    table.insert(missing, ARGV[i])
  end
end
redis.call('PEXPIRE', KEYS[2], 2 * ARGV[1])
return missing
"""
)

# ARGV: lease ms, then of each: id, "nanos|keys": hold again what has run out though it still
# runs; never what has been counted.
RETAKE = (
    _NOW
    + """
for i = 2, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[3], ARGV[i]) == 0 then
    redis.call('HSET', KEYS[2], ARGV[i], whole(now + ARGV[1]) .. '|' .. ARGV[i + 1])
  end
end
redis.call('PEXPIRE', KEYS[2], 2 * ARGV[1])
return 0
"""
)
