-- Reads everything that may be shown about K; writes nothing.
-- KEYS: K rec line seen fence   ARGV: token or nothing
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
    "acquired_at_us", "heartbeat_us", "fence", "broken_by")
  return {pttl, f[1] or "", f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9]}
end

local kind = redis.call("TYPE", K).ok
local value = false
if kind == "string" then value = redis.call("GET", K) end
if kind ~= "none" and (not value or redis.call("PTTL", K) == -1) then return {"odd", kind} end
local waiters = {}
for _, w in ipairs(redis.call("ZRANGE", LINE, 0, -1)) do
  local due, since, who = string.match(redis.call("HGET", SEEN, w) or "", "^(%d+) (%d+) (.*)$")
  if due and tonumber(due) >= now_ms then
    waiters[#waiters + 1] = {who, math.max(0, now_ms - tonumber(since))}
  end
end
local held = (value and value == ARGV[1]) and 1 or 0
return {"ok", value and holder(value) or false, held, redis.call("GET", KEYS[5]), waiters}
