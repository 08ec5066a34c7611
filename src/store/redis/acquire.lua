-- Grants K, or says who has it and keeps a place in the line.
-- KEYS: K rec line seen fence ticket wake
-- ARGV: token ttl queue parent keeping user host pid program label owner-json
local FENCE, TICKET, WAKE = KEYS[5], KEYS[6], KEYS[7]
local token, ttl, queue, parent = ARGV[1], ARGV[2], ARGV[3] == "1", ARGV[4]
local MONTH = 30 * 86400 * 1000

local function leave()
  redis.call("ZREM", LINE, token)
  redis.call("HDEL", SEEN, token)
  redis.call("DEL", WAKE)
end

local function record()
  local fence = math.max(tonumber(redis.call("GET", FENCE) or "0") + 1, now_us)
  redis.call("SET", FENCE, int(fence), "PX", MONTH)
  redis.call("DEL", REC)
  redis.call("HMSET", REC, "token", token, "keeping", ARGV[5], "mode", "exclusive", "user", ARGV[6],
    "host", ARGV[7], "pid", ARGV[8], "program", ARGV[9], "fence", int(fence),
    "acquired_at_us", int(now_us), "heartbeat_us", int(now_us))
  if ARGV[10] ~= "" then redis.call("HSET", REC, "label", ARGV[10]) end
  redis.call("PEXPIRE", REC, ttl)
  return int(fence)
end

if kind ~= "none" and (not value or redis.call("PTTL", K) == -1) then return {"odd", kind} end

if value == token then
  redis.call("PEXPIRE", K, ttl)
  leave()
  if redis.call("HGET", REC, "token") ~= token then return {"granted", record()} end
  redis.call("HSET", REC, "heartbeat_us", int(now_us))
  redis.call("PEXPIRE", REC, ttl)
  return {"granted", redis.call("HGET", REC, "fence")}
end

-- Everybody was told when to ask again; who has not, by far, is gone. The limit is the one that held
-- when the waiter last asked: one that moved up since still follows the old, slow rhythm. Who does not
-- wait does not wait for the dead either: it minds only whom the last three seconds have seen.
local line, lively = {}, {}
for _, w in ipairs(redis.call("ZRANGE", LINE, 0, -1)) do
  local due, asked = string.match(redis.call("HGET", SEEN, w) or "", "^(%d+) %d+ (%d+) ")
  if due and tonumber(due) >= now_ms then
    line[#line + 1] = w
    if tonumber(asked) >= now_ms - 3000 then lively[#lively + 1] = w end
  else
    redis.call("ZREM", LINE, w)
    redis.call("HDEL", SEEN, w)
  end
end

local ahead = queue and line or lively
if not value and (ahead[1] == nil or ahead[1] == token) then
  local fence = record() -- first: what may be refused by an ACL must not leave a key without a record
  redis.call("SET", K, token, "NX", "PX", ttl)
  leave()
  return {"granted", fence}
end

local own_parent = 0
if value and parent ~= "" and value == parent then own_parent = 1 end
local place = #line
for i, w in ipairs(line) do
  if w == token then place = i - 1 end
end
local near = place < 2
if queue and own_parent == 0 then
  local since = now_ms
  if place == #line then
    local ticket = redis.call("INCR", TICKET)
    redis.call("PEXPIRE", TICKET, MONTH)
    redis.call("ZADD", LINE, ticket, token)
    line[#line + 1] = token
  else
    since = tonumber(string.match(redis.call("HGET", SEEN, token), "^%d+ (%d+) "))
  end
  local due = int(now_ms + (near and 3000 or 45000))
  redis.call("HSET", SEEN, token, due .. " " .. int(since) .. " " .. int(now_ms) .. " " .. ARGV[11])
  redis.call("PEXPIRE", LINE, 60000)
  redis.call("PEXPIRE", SEEN, 60000)
end
local retry = near and 1000 or 15000
if value then retry = math.min(retry, redis.call("PTTL", K) + 1) end
return {"busy", value and holder(value) or false, #line, retry, own_parent}
