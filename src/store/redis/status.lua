-- Reads everything that may be shown about K; writes nothing.
-- KEYS: K rec held line due asked waits fence   ARGV: token or nothing
if kind ~= "none" and (not value or redis.call("PTTL", K) == -1) then return {"odd", kind} end
local waiters = {}
for _, w in ipairs(redis.call("ZRANGE", LINE, 0, -1)) do
  local since, limit, owner = string.match(redis.call("HGET", WAITS, w) or "", "^(%d+) (%w+) (.*)$")
  if since and tonumber(redis.call("ZSCORE", DUE, w) or "0") >= now_ms then
    waiters[#waiters + 1] = {owner, math.max(0, now_ms - tonumber(since)), limit}
  end
end
-- The place of this token among the holders, from 0.
local own = false
if value == ARGV[1] and value ~= MARK then own = 0 end
for i, token in ipairs(redis.call("ZRANGEBYSCORE", HELD, now_ms, "+inf")) do
  if token == ARGV[1] and (not value or value == MARK) then own = i - 1 end
end
local all = holders(1000000)
if alien then return {"alien", alien} end
return {"ok", all, own, redis.call("GET", KEYS[8]), waiters}
