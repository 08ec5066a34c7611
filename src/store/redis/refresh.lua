-- Renews the lease if the token still owns it and nobody broke it; never creates anything. A job that
-- renews the `run` that it is in must not shorten what that run counts on.
-- KEYS: K rec held line due asked waits   ARGV: token ttl
local token, ttl = ARGV[1], tonumber(ARGV[2])
if kind == "none" then return {"absent"} end
if no_lock() then return {"odd", kind} end
local shares = value == MARK
if shares and not share_of(token) then
  if redis.call("ZCARD", HELD) == 0 then return {"absent"} end
  return {"foreign", holders(1)}
elseif not shares and value ~= token then
  return {"foreign", holders(1)}
end
local r = record(token)
if alien then return {"alien", alien} end
if r then
  if r.broken ~= "" then return {"broken", r.broken} end
  r.heard = int(now_us)
  keep(token, r)
end
if shares then
  local until_ms = now_ms + ttl
  if r and r.keeping == "process" then until_ms = math.max(until_ms, share_of(token)) end
  redis.call("ZADD", HELD, int(until_ms), token)
  settle()
else
  if r and r.keeping == "process" then ttl = math.max(ttl, redis.call("PTTL", K)) end
  redis.call("PEXPIRE", REC, int(ttl))
  redis.call("PEXPIRE", K, int(ttl))
end
return {"kept", first(), third()}
