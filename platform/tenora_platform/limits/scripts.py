"""The Lua of the limits. Each script is one atomic step on a tenant and, where it has limits of its
own, one of its keys. A window is a hash of slots of 250 ms, each with its requests (`r<slot>`) and
tokens (`t<slot>`), and their sums; the sequences that run are a sorted set of leases, whose ids end
in their number. What a hold has reserved is kept under its id until it is settled, so that every
step may be sent again."""

from __future__ import annotations

SLOT_MS = 250
SLOTS = 241
"""A slot counts until the whole of it has left the minute: in no window of 60 s, wherever it
begins, is there more than the limit."""
WINDOW_MS = SLOT_MS * SLOTS
PACE_KEPT_MS = 3_600_000
"""So long a tenant's pace, and what was reserved, is remembered after its last request."""

SERVER_CLOCK = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

# KEYS: holds, late, then of each scope (the tenant, perhaps its key) window, leases.
_COMMON = f"""
local SLOT_MS, SLOTS, WINDOW_MS, KEPT_MS = {SLOT_MS}, {SLOTS}, {WINDOW_MS}, {PACE_KEPT_MS}
local HEAD, CELL = 7 * 8, 2 * 8  -- bytes
local slot = math.floor(now / SLOT_MS)
local first = slot - SLOTS + 1  -- the oldest slot that counts
local holds, late = KEYS[1], KEYS[2]

local function offset_of(at) return HEAD + at % SLOTS * CELL end

-- The cells of these slots, one after the other; what was never written is 0.
local function cells_of(window, from, to)
  local begins, ends = offset_of(from), offset_of(to) + CELL - 1
  if begins < ends then
    return redis.call('GETRANGE', window.key, begins, ends)
  end
  local raw = redis.call('GETRANGE', window.key, begins, HEAD + SLOTS * CELL - 1)
  raw = raw .. string.rep('\\0', HEAD + SLOTS * CELL - begins - #raw)
  return raw .. redis.call('GETRANGE', window.key, HEAD, ends)
end

-- A number as we write them: whatever else lies there counts as nothing.
local function is_sane(number) return number >= 0 and number < 1e15 end

local function counts_at(raw, index)
  if #raw < (index + 1) * CELL then return 0, 0 end
  local r, t = struct.unpack('<dd', raw, index * CELL + 1)
  return is_sane(r) and r or 0, is_sane(t) and t or 0
end

-- The slot up to which, on the way from one to another, there is so much of a kind; nil: nowhere.
local function slot_with(window, kind, enough, from, to)
  if window[kind] == 0 then return nil end
  local step, found = from <= to and 1 or -1, 0
  local oldest = math.min(from, to)
  local raw = cells_of(window, oldest, math.max(from, to))
  for at = from, to, step do
    local r, t = counts_at(raw, at - oldest)
    found = found + (kind == 'r' and r or t)
    if found >= enough then return at end
  end
end

local function new_window(key)
  return {{key = key, r = 0, t = 0, r_last = slot, t_last = slot, oldest = slot, places = 0,
          leases = -1}}
end

local function forget(window, to)
  local raw = cells_of(window, window.oldest, to)
  for index = 0, to - window.oldest do
    local r, t = counts_at(raw, index)
    window.r, window.t = window.r - r, window.t - t
  end
  local begins, ends = offset_of(window.oldest), offset_of(to) + CELL
  local there = begins < ends and ends or HEAD + SLOTS * CELL
  redis.call('SETRANGE', window.key, begins, string.rep('\\0', there - begins))
  if there > ends then redis.call('SETRANGE', window.key, HEAD, string.rep('\\0', ends - HEAD)) end
  window.oldest, window.changed = to + 1, true
end

-- Loops go from `oldest` on, so that it must be near. Not a number is not equal to itself.
local function is_ours(window, last)
  return is_sane(window.r) and is_sane(window.t) and window.r_last == math.floor(window.r_last)
    and window.t_last == math.floor(window.t_last) and window.oldest == math.floor(window.oldest)
    and window.oldest > last - 2 * SLOTS and window.oldest <= last + SLOTS
    and (window.r == 0 or window.r_last >= window.oldest)
    and (window.t == 0 or window.t_last >= window.oldest)
    and math.abs(window.places) < 1e9 and math.abs(window.leases) < 1e9
end

-- As it is now: what has left the minute is forgotten. `keep` it if it has `changed`.
local function window_of(key)
  local window = new_window(key)
  local head = redis.call('GETRANGE', key, 0, HEAD - 1)
  if #head < HEAD then return window end
  window.r, window.t, window.r_last, window.t_last, window.oldest, window.places, window.leases
    = struct.unpack('<ddddddd', head)
  local last = math.max(window.r_last, window.t_last)
  -- All has left, or the server's clock was set back, or it is none of ours.
  local is_current = last >= first and last < slot + SLOTS
  if not (is_current and is_ours(window, last)) then
    redis.call('DEL', key)
    return new_window(key)
  end
  if window.oldest < first then forget(window, first - 1) end
  return window
end

local function keep(window)
  if not window.changed then return end
  redis.call('SETRANGE', window.key, 0, struct.pack('<ddddddd', window.r, window.t, window.r_last,
             window.t_last, window.oldest, window.places, window.leases))
  redis.call('PEXPIRE', window.key, WINDOW_MS + 1000)
end

local function add(window, at, r, t)
  local there_r, there_t = counts_at(cells_of(window, at, at), 0)
  r, t = math.max(r, -there_r), math.max(t, -there_t)
  redis.call('SETRANGE', window.key, offset_of(at), struct.pack('<dd', there_r + r, there_t + t))
  window.r, window.t, window.changed = window.r + r, window.t + t, true
  return there_r + r, there_t + t
end

local function charge(window, at, r, t)
  local last = math.max(window.r_last, window.t_last)
  if at < first or at <= last - SLOTS or r + t == 0 then return end
  window.oldest = math.min(window.oldest, at)
  if r > 0 and (window.r == 0 or window.r_last < at) then window.r_last = at end
  if t > 0 and (window.t == 0 or window.t_last < at) then window.t_last = at end
  add(window, at, r, t)
end

local function give_back(window, at, r, t)
  if at < window.oldest or at > slot or r + t == 0 then return end
  local left_r, left_t = add(window, at, -r, -t)
  if left_r == 0 and at == window.r_last then
    window.r_last = slot_with(window, 'r', 1, at, window.oldest) or at
  end
  if left_t == 0 and at == window.t_last then
    window.t_last = slot_with(window, 't', 1, at, window.oldest) or at
  end
end

local function sequences_of(lease)
  return tonumber(string.match(lease, ':(%d+)$') or 1)  -- a version before wrote no number
end
"""

# ARGV: requests, tokens, lease id ('': none), lease ms, sequences, whether it is counted whatever
# the limits (1: it has been served already), its age in ms, the slot in which its request has been
# counted before (-1: none; a refused hold gives it back), then of each scope requests/min,
# tokens/min, parallel (-1: no limit). Returns {number of the scope that refuses (0: none), by what,
# retry ms, slot, then of each scope requests, ms until none, tokens, ms until none, sequences}.
_TAKE = """
local requests, tokens = tonumber(ARGV[1]), tonumber(ARGV[2])
local lease, lease_ms, sequences = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local served, admitted = ARGV[6] == '1', tonumber(ARGV[8])
local at = math.floor((now - tonumber(ARGV[7])) / SLOT_MS)
local is_new = lease == '' or redis.call('HEXISTS', holds, lease) == 0

-- What ran out of its lease is late: its places are free, what it reserved is still known.
local function count_places(window, leases)
  redis.call('ZREMRANGEBYSCORE', leases, now + 2 * lease_ms, '+inf')  -- no lease is so long
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now)) do
    redis.call('ZREM', leases, dead)
    redis.call('ZADD', late, now + 2 * WINDOW_MS, dead)
  end
  local count = redis.call('ZCARD', leases)
  if count ~= window.leases then  -- changed by a renewal, or by a version before
    window.leases, window.places, window.changed = count, 0, true
    for _, each in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
      window.places = window.places + sequences_of(each)
    end
  end
end

local function until_free(window, kind, count)
  local at = slot_with(window, kind, count, window.oldest, window[kind .. '_last'])
  return at and (at + SLOTS) * SLOT_MS - now or 60000
end

-- Until enough of what runs should have ended. What is late is given as long again.
local function until_places(window, leases, most)
  local pace = redis.call('HGET', holds, 'pace')
  local running = redis.call('ZRANGE', leases, 0, 199)
  if not pace or #running == 0 then return 500 end
  local kept, ending = redis.call('HMGET', holds, unpack(running)), {}
  for i, each in ipairs(running) do
    local ends = tonumber(string.match(kept[i] or '', ':(%d+)$') or now)
    ending[i] = {math.abs(ends - now), sequences_of(each)}
  end
  table.sort(ending, function(one, other) return one[1] < other[1] end)
  local left, wait_ms = window.places, 60000
  for _, each in ipairs(ending) do
    if left + sequences > most then left, wait_ms = left - each[2], each[1] end
  end
  return math.min(60000, math.max(50, math.ceil(wait_ms)))
end

local refused_by, refused, retry_ms = 0, '', 0
local function refuse(number, what, wait_ms)
  if refused_by == 0 or wait_ms > retry_ms then
    refused_by, refused, retry_ms = number, what, wait_ms
  end
end

local function check(number, window, leases)
  local rpm, tpm, most = unpack(ARGV, 6 + 3 * number, 8 + 3 * number)
  rpm, tpm, most = tonumber(rpm), tonumber(tpm), tonumber(most)
  if requests > 0 and rpm >= 0 and window.r + requests > rpm then
    refuse(number, 'requests', until_free(window, 'r', window.r + requests - rpm))
  end
  if lease == '' then return end
  if tpm >= 0 and (tpm == 0 or window.t + tokens > tpm) then
    refuse(number, 'tokens', until_free(window, 't', window.t + tokens - tpm))
  end
  if most >= 0 and window.places + sequences > most then
    refuse(number, 'parallel_requests', until_places(window, leases, most))
  end
end

local windows = {}
for number = 1, #KEYS / 2 - 1 do
  local window, leases = window_of(KEYS[1 + 2 * number]), KEYS[2 + 2 * number]
  windows[number] = window
  if lease ~= '' or requests == 0 then count_places(window, leases) end
  if is_new and not served then check(number, window, leases) end
end

for number, window in ipairs(windows) do
  if refused_by > 0 and admitted >= 0 then
    give_back(window, admitted, 1, 0)
  elseif refused_by == 0 and is_new and (requests > 0 or lease ~= '') then
    charge(window, at, requests, tokens)
    if sequences > 0 then
      redis.call('ZADD', KEYS[2 + 2 * number], now + lease_ms, lease)
      redis.call('PEXPIRE', KEYS[2 + 2 * number], KEPT_MS)
      window.places, window.leases = window.places + sequences, window.leases + 1
      window.changed = true
    end
  end
  keep(window)
end
if refused_by == 0 and is_new and lease ~= '' then
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', late, '-inf', now)) do
    redis.call('ZREM', late, dead)
    redis.call('HDEL', holds, dead)
  end
  local pace = redis.call('HGET', holds, 'pace') or 0
  local counted = requests > 0 and at or math.max(admitted, 0)
  local held = string.format('%.0f:%.0f:%.0f:%.0f', at, counted, tokens, now + tokens * pace)
  redis.call('HSET', holds, lease, held)
  redis.call('PEXPIRE', holds, KEPT_MS)
  if sequences == 0 then
    redis.call('ZADD', late, now + 2 * WINDOW_MS, lease)
    redis.call('PEXPIRE', late, KEPT_MS)
  end
end

local answer = {refused_by, refused, retry_ms, at}
for _, window in ipairs(windows) do
  for _, kind in ipairs({'r', 't'}) do
    answer[#answer + 1] = window[kind]
    local last = window[kind .. '_last']
    answer[#answer + 1] = window[kind] > 0 and (last + SLOTS) * SLOT_MS - now or 0
  end
  answer[#answer + 1] = window.places
end
return answer
"""

# ARGV: lease id, tokens used (-1: it never ran, and its request is given back too), ms per reserved
# token that it took (-1: says nothing). Returns 1, or 0 if it was settled before.
_SETTLE = """
local lease, used, took = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.call('HGET', holds, lease)
if not held then return 0 end
redis.call('HDEL', holds, lease)
redis.call('ZREM', late, lease)
local at, counted, tokens = string.match(held, '^(%d+):(%d+):(%d+):')
at, counted, tokens = tonumber(at), tonumber(counted), tonumber(tokens)
for number = 1, #KEYS / 2 - 1 do
  local window = window_of(KEYS[1 + 2 * number])
  if redis.call('ZREM', KEYS[2 + 2 * number], lease) == 1 then
    window.places, window.leases = window.places - sequences_of(lease), window.leases - 1
    window.changed = true
  end
  give_back(window, at, 0, math.max(0, tokens - math.max(used, 0)))
  charge(window, slot, 0, math.max(0, used - tokens))  -- more than was reserved: it came since
  if used < 0 then give_back(window, counted, 1, 0) end
  keep(window)
end
if took >= 0 then
  local pace = tonumber(redis.call('HGET', holds, 'pace') or took)
  redis.call('HSET', holds, 'pace', string.format('%.6f', 0.8 * pace + 0.2 * took))
end
return 1
"""

# ARGV: lease ms, lease ids. What was settled meanwhile stays settled. Returns those that are not
# known: settled, or lost with all that the server knew.
_RENEW = """
local missing = {}
for i = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    for scope = 4, #KEYS, 2 do redis.call('ZADD', KEYS[scope], now + ARGV[1], ARGV[i]) end
    redis.call('ZREM', KEYS[2], ARGV[i])
  else
    missing[#missing + 1] = ARGV[i]
  end
end
for scope = 4, #KEYS, 2 do redis.call('PEXPIRE', KEYS[scope], KEPT_MS) end
redis.call('PEXPIRE', KEYS[1], KEPT_MS)
return missing
"""

# ARGV: lease ms, then of each its id and the tokens it reserved: take again what is not known
# though it does still run. Its tokens were counted where they are forgotten now (slot 0).
_RETAKE = """
for i = 2, #ARGV, 2 do
  redis.call('HSETNX', KEYS[1], ARGV[i], '0:0:' .. ARGV[i + 1] .. ':' .. string.format('%.0f', now))
  for scope = 4, #KEYS, 2 do redis.call('ZADD', KEYS[scope], now + ARGV[1], ARGV[i]) end
end
for scope = 4, #KEYS, 2 do redis.call('PEXPIRE', KEYS[scope], KEPT_MS) end
redis.call('PEXPIRE', KEYS[1], KEPT_MS)
return 0
"""


def take_script(clock: str = SERVER_CLOCK) -> str:
    return clock + _COMMON + _TAKE


def settle_script(clock: str = SERVER_CLOCK) -> str:
    return clock + _COMMON + _SETTLE


def renew_script(clock: str = SERVER_CLOCK) -> str:
    return clock + _COMMON + _RENEW


def retake_script(clock: str = SERVER_CLOCK) -> str:
    return clock + _COMMON + _RETAKE
