-- Renews K if the token still owns it and nobody broke it; never creates anything. A job that renews
-- the `run` that it is in must not shorten what that run counts on.
-- KEYS: K rec line seen   ARGV: token ttl
if kind == "none" then return {"absent"} end
local ttl = tonumber(ARGV[2])
local f = redis.call("HMGET", REC, "token", "broken_by", "keeping")
if no_lock(f[1]) then return {"odd", kind} end
if value ~= ARGV[1] then return {"foreign", holder(value)} end
if f[1] == value then
  if f[2] then return {"broken", f[2]} end
  if f[3] == "process" then ttl = math.max(ttl, redis.call("PTTL", K)) end
  redis.call("HSET", REC, "heartbeat_us", int(now_us))
  redis.call("PEXPIRE", REC, int(ttl))
end
redis.call("PEXPIRE", K, int(ttl))
return {"kept"}
