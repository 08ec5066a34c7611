-- What every script begins with: its keys, the time, what K holds, records, and the line.
--
-- K      the token of an exclusive holder, or MARK while others share: other libraries see it as taken
-- rec    hash: token → record, one field for each holder
-- held   sorted set: tokens of the holders that share, by their deadlines in ms
-- line   sorted set: tokens of the waiters, by their tickets
-- due    the same by the moment in ms at which a waiter that has not asked again is taken for gone
-- asked  the same by the moment in ms at which it asked last
-- waits  hash: token → since when in ms, what for, who
--
-- A record is `LAYOUT KEEPING LIMIT SLOT FENCE SINCE HEARTBEAT\nOWNER\nBROKEN-BY`, with "x" as the limit
-- of an exclusive holder, 0 of a shared one; -1 is no slot; both owners are JSON, which has no line ends.
if redis.replicate_commands then redis.replicate_commands() end
local K, REC, HELD, LINE, DUE, ASKED, WAITS = unpack(KEYS, 1, 7)
local MARK, LAYOUT, MONTH = "dlock:shared", "2", 30 * 86400 * 1000
local t = redis.call("TIME")
local now_us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local now_ms = math.floor(now_us / 1000)
local function int(n) return string.format("%.0f", n) end

local kind = redis.call("TYPE", K).ok
local value = false
if kind == "string" then value = redis.call("GET", K) end

-- Set where a record was found that another version of dlock has written.
local alien = false

local function record(token)
  local text = redis.call("HGET", REC, token)
  if not text then return nil end
  if string.match(text, "^(%d+) ") ~= LAYOUT then
    alien = string.match(text, "^(%d+) ") or "?"
    return nil
  end
  local r = {}
  r.keeping, r.limit, r.slot, r.fence, r.since, r.heard, r.owner, r.broken =
    string.match(text, "^%d+ (%a+) (%w+) (%-?%d+) (%d+) (%d+) (%d+)\n([^\n]*)\n([^\n]*)$")
  return r.keeping and r or nil
end

local function keep(token, r)
  redis.call("HSET", REC, token, table.concat({LAYOUT, r.keeping, r.limit, r.slot, r.fence, r.since, r.heard}, " ")
    .. "\n" .. r.owner .. "\n" .. r.broken)
end

-- Those that share and whose deadline has not passed, the earliest first, with their deadlines.
local function sharers()
  return redis.call("ZRANGEBYSCORE", HELD, now_ms, "+inf", "WITHSCORES")
end

-- A holder as it is told: what is left of its lease, and its record; never its token.
local function told(left, r)
  if not r then return {left} end
  return {left, r.owner, r.since, r.heard, r.fence, r.broken, r.keeping, r.limit, r.slot}
end

-- At most so many of the holders. What is left beside a foreign value is not its record, and a MARK of
-- which nothing is left is believed for as long as it lasts.
local function holders(most)
  local found = {}
  if value and value ~= MARK then return {told(redis.call("PTTL", K), record(value))} end
  local all = sharers()
  for i = 1, math.min(#all, 2 * most), 2 do
    found[#found + 1] = told(math.max(0, tonumber(all[i + 1]) - now_ms), record(all[i]))
  end
  if #found == 0 and value then return {{redis.call("PTTL", K)}} end
  return found
end

-- The deadline of one that shares; nil where there is none, or it has passed.
local function share_of(token)
  local deadline = tonumber(redis.call("ZSCORE", HELD, token) or nil)
  return deadline and deadline >= now_ms and deadline or nil
end

-- Lets the keys of those that share end with the latest of their deadlines.
local function settle()
  local last = redis.call("ZREVRANGE", HELD, 0, 0, "WITHSCORES")[2]
  if last then
    redis.call("SET", K, MARK)
    for _, key in ipairs({K, REC, HELD}) do redis.call("PEXPIREAT", key, int(tonumber(last))) end
  else
    if value == MARK then redis.call("DEL", K) end
    redis.call("DEL", REC, HELD)
  end
end

-- Another type, or a string without a TTL and without a record, is somebody's data, even if it reads as
-- the token does.
local function no_lock()
  if kind == "none" then return false end
  if not value then return true end
  return redis.call("PTTL", K) == -1 and (value == MARK or not redis.call("HGET", REC, value))
end

-- How many holders, the asker among them, one that asks with this limit would be content with.
local function fits_so_many(limit)
  local most = tonumber(limit) or 1
  return most > 0 and most or math.huge
end

-- One that has lapsed, whatever is left of it.
local function forget_waiter(token)
  redis.call("HDEL", WAITS, token)
  for _, key in ipairs({LINE, DUE, ASKED}) do redis.call("ZREM", key, token) end
end

local function drop_waiter(token)
  if redis.call("HDEL", WAITS, token) == 0 then return false end
  for _, key in ipairs({LINE, DUE, ASKED}) do redis.call("ZREM", key, token) end
  return true
end

-- Names who is first in line: who is granted now may wake that one within its release.
local function first()
  return redis.call("ZRANGE", LINE, 0, 0)[1] or false
end

-- Names who is third in line: it is told that it has come near, and looks as often as those in front.
local function third()
  return redis.call("ZRANGE", LINE, 2, 2)[1] or false
end

-- Names the first in line, if it could be granted with so many holders left, of which at most so many are
-- allowed; its wake list is in no KEYS, so the caller pushes to it. Who is woken has a second and a half to ask, however rarely it was
-- told to ask before.
local function next_up(left, most)
  for _, w in ipairs(redis.call("ZRANGEBYSCORE", DUE, "-inf", "(" .. int(now_ms))) do forget_waiter(w) end
  local head = first()
  if not head then return false end
  local limit = string.match(redis.call("HGET", WAITS, head) or "", "^%d+ (%w+) ")
  if left > 0 and limit == "x" or left >= math.min(most, fits_so_many(limit)) then return false end
  local due = tonumber(redis.call("ZSCORE", DUE, head) or "0")
  redis.call("ZADD", DUE, int(math.min(due, now_ms + 1500)), head)
  return head
end

