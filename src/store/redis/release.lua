-- Deletes K if the token owns it, leaves the line, and names whom to wake. What a `run` keeps is
-- released by that run alone.
-- KEYS: K rec line seen wake   ARGV: token keeping
local f = redis.call("HMGET", REC, "token", "keeping")
if value == ARGV[1] and f[1] == value and f[2] == "process" and ARGV[2] ~= "process" then
  return {"kept", false, holder(value)}
end
redis.call("ZREM", LINE, ARGV[1])
redis.call("HDEL", SEEN, ARGV[1])
redis.call("DEL", KEYS[5])
if no_lock(f[1]) then return {"odd", kind} end
if value == ARGV[1] then
  redis.call("DEL", K, REC)
  return {"freed", first_waiter()}
end
if kind == "none" then return {"absent", first_waiter()} end
return {"foreign", false, holder(value)}
