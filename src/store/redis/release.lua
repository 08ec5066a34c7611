-- Ends the lease if the token owns it, leaves the line, and names whom to wake: the next,
-- and who comes near. What a `run` keeps is
-- released by that run alone.
-- KEYS: K rec held line due asked waits wake   ARGV: token keeping
local token = ARGV[1]
local owns = value == token and value ~= MARK
local shares = not owns and share_of(token) ~= nil
local r = (owns or shares) and record(token)
if alien then return {"alien", alien} end
if r and r.keeping == "process" and ARGV[2] ~= "process" then return {"kept", false, false, {told(0, r)}} end
if drop_waiter(token) then redis.call("DEL", KEYS[8]) end
if no_lock() then return {"odd", kind} end
if owns then
  redis.call("DEL", K, REC, HELD)
  return {"freed", next_up(0, math.huge), third()}
end
if shares then
  redis.call("ZREM", HELD, token)
  redis.call("HDEL", REC, token)
end
if shares and value == MARK then
  settle()
  return {"freed", next_up(redis.call("ZCARD", HELD), math.huge), third()}
end
if kind == "none" then return {"absent", next_up(redis.call("ZCARD", HELD), math.huge), third()} end
-- Who left the line may have been in the way of others.
return {"foreign", value == MARK and next_up(redis.call("ZCARD", HELD), math.huge), third(), holders(1)}
