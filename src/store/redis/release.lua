-- Ends the lease if the token owns it, leaves the line, and names whom to wake: the next, and who comes
-- near. What a `run` keeps is released by that run alone.
-- KEYS: K rec held line due asked waits wake, wake of ARGV[3]
-- ARGV: token keeping, who is thought to be next
local token = ARGV[1]

-- Wakes the next at once where its wake list was among the KEYS; else the caller does.
local function up(left)
  local next = next_up(left, math.huge)
  -- An ACL may forbid it; the release goes on.
  if not next or next ~= ARGV[3] or type(redis.pcall("RPUSH", KEYS[9], "1")) ~= "number" then return next end
  redis.pcall("PEXPIRE", KEYS[9], 5000)
  return false
end

local owns = value == token and value ~= MARK
local shares = not owns and share_of(token) ~= nil
local r = (owns or shares) and record(token)
if alien then return {"alien", alien} end
if r and r.keeping == "process" and ARGV[2] ~= "process" then return {"kept", false, false, {told(0, r)}} end
if drop_waiter(token) then redis.call("DEL", KEYS[8]) end
if no_lock() then return {"odd", kind} end
if owns then
  redis.call("DEL", K, REC, HELD)
  return {"freed", up(0), third()}
end
if shares then
  redis.call("ZREM", HELD, token)
  redis.call("HDEL", REC, token)
end
if shares and value == MARK then
  settle()
  return {"freed", up(redis.call("ZCARD", HELD)), third()}
end
if kind == "none" then return {"absent", up(redis.call("ZCARD", HELD)), third()} end
-- Who left the line may have been in the way of others.
return {"foreign", value == MARK and up(redis.call("ZCARD", HELD)), third(), holders(1)}
