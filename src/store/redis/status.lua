-- Reads everything that may be shown about K; writes nothing.
-- KEYS: K rec line seen fence   ARGV: token or nothing
if kind ~= "none" and (not value or redis.call("PTTL", K) == -1) then return {"odd", kind} end
local waiters = {}
for _, w in ipairs(redis.call("ZRANGE", LINE, 0, -1)) do
  local due, since, who = string.match(redis.call("HGET", SEEN, w) or "", "^(%d+) (%d+) %d+ (.*)$")
  if due and tonumber(due) >= now_ms then
    waiters[#waiters + 1] = {who, math.max(0, now_ms - tonumber(since))}
  end
end
local held = (value and value == ARGV[1]) and 1 or 0
return {"ok", value and holder(value) or false, held, redis.call("GET", KEYS[5]), waiters}
