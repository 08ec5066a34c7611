-- Ends the lease if the token owns it, leaves the line, and names whom to wake: the next, and who comes
-- near. What a `run` keeps is released by that run alone.
-- KEYS: K rec held line due asked waits wake, wake of ARGV[3], wake of ARGV[4]
-- ARGV: token keeping, who is thought to be next, who to be third
local token = ARGV[1]

-- Pushes at once to the wake list of a waiter if it is the one among the KEYS; else the caller does, to
-- whom it is named.
local function pushed(waiter, at, what)
  -- An ACL may forbid it; the release goes on.
  if not waiter or waiter ~= ARGV[at - 6] or type(redis.pcall("RPUSH", KEYS[at], what)) ~= "number" then return waiter end
  redis.pcall("PEXPIRE", KEYS[at], 5000)
  return false
end

local function up(left) return pushed(next_up(left, math.huge), 9, "1") end
local function near() return pushed(third(), 10, "2") end

local owns = value == token and value ~= MARK
local shares = not owns and share_of(token) ~= nil
local r = (owns or shares) and record(token)
if alien then return {"alien", alien} end
if r and r.keeping == "process" and ARGV[2] ~= "process" then return {"kept", false, false, {told(0, r)}} end
if drop_waiter(token) then redis.call("DEL", KEYS[8]) end
if no_lock() then return {"odd", kind} end
if owns then
  redis.call("DEL", K, REC, HELD)
  return {"freed", up(0), near()}
end
if shares then
  redis.call("ZREM", HELD, token)
  redis.call("HDEL", REC, token)
end
if shares and value == MARK then
  settle()
  return {"freed", up(redis.call("ZCARD", HELD)), near()}
end
if kind == "none" then return {"absent", up(redis.call("ZCARD", HELD)), near()} end
-- Who left the line may have been in the way of others.
return {"foreign", value == MARK and up(redis.call("ZCARD", HELD)), near(), holders(1)}
