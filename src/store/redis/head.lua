-- What every script begins with: its keys, the time, the value of K, and how a holder is told.
if redis.replicate_commands then redis.replicate_commands() end
local K, REC, LINE, SEEN = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local t = redis.call("TIME")
local now_us = tonumber(t[1]) * 1000000 + tonumber(t[2])
local now_ms = math.floor(now_us / 1000)
local function int(n) return string.format("%.0f", n) end

-- The holder without its token; a record left beside a foreign value is not its record.
local function holder(value)
  local pttl = redis.call("PTTL", K)
  if not value or redis.call("HGET", REC, "token") ~= value then return {pttl} end
  local f = redis.call("HMGET", REC, "user", "host", "pid", "program", "label",
    "acquired_at_us", "heartbeat_us", "fence", "broken_by", "keeping")
  return {pttl, f[1] or "", f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10]}
end

local kind = redis.call("TYPE", K).ok
local value = false
if kind == "string" then value = redis.call("GET", K) end

-- Another type, or a string without a TTL and without a record, is somebody's data, even if it reads as
-- the token does.
local function no_lock(recorded)
  return kind ~= "none" and (not value or recorded ~= value and redis.call("PTTL", K) == -1)
end

-- Names the first live waiter; its wake list is in no KEYS, so the caller pushes to it. A waiter that
-- was woken has three seconds to ask, however rarely it was told to ask before.
local function first_waiter()
  for _, w in ipairs(redis.call("ZRANGE", LINE, 0, -1)) do
    local due, since, who = string.match(redis.call("HGET", SEEN, w) or "", "^(%d+) (%d+ %d+) (.*)$")
    if due and tonumber(due) >= now_ms then
      redis.call("HSET", SEEN, w, int(math.min(tonumber(due), now_ms + 3000)) .. " " .. since .. " " .. who)
      return w
    end
    redis.call("ZREM", LINE, w)
    redis.call("HDEL", SEEN, w)
  end
  return false
end

