-- Ends a lease that nothing renews; marks one that a process keeps, which then ends itself.
-- KEYS: K rec line seen   ARGV: owner-json of who breaks it
if kind == "none" then return {"none"} end
if not value or redis.call("PTTL", K) == -1 then return {"odd", kind} end
local f = redis.call("HMGET", REC, "token", "keeping")
if f[1] == value and f[2] == "process" then
  redis.call("HSET", REC, "broken_by", ARGV[1])
  return {"broken", false, holder(value)}
end
local was = holder(value)
redis.call("DEL", K, REC)
return {"broken", first_waiter(), was}
