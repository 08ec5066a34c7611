-- Renews K if the token still owns it and nobody broke it; never creates anything.
-- KEYS: K rec line seen   ARGV: token ttl
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
    "acquired_at_us", "heartbeat_us", "fence", "broken_by")
  return {pttl, f[1] or "", f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9]}
end

local kind = redis.call("TYPE", K).ok
local value = false
if kind == "string" then value = redis.call("GET", K) end
if kind == "none" then return {"absent"} end
if value ~= ARGV[1] then return {"foreign", holder(value)} end
if redis.call("HGET", REC, "token") == value then
  local by = redis.call("HGET", REC, "broken_by")
  if by then return {"broken", by} end
  redis.call("HSET", REC, "heartbeat_us", int(now_us))
  redis.call("PEXPIRE", REC, ARGV[2])
end
redis.call("PEXPIRE", K, ARGV[2])
return {"kept"}
