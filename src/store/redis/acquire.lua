-- Grants K, or says who has it and keeps a place in the line.
-- KEYS: K rec held line due asked waits fence ticket wake
-- ARGV: token ttl queue parent keeping limit owner
local FENCE, TICKET, WAKE = KEYS[8], KEYS[9], KEYS[10]
local token, ttl, queue, parent, limit = ARGV[1], tonumber(ARGV[2]), ARGV[3] == "1", ARGV[4], ARGV[6]
local exclusive = limit == "x"

local function granted(slot)
  local fence = int(math.max(tonumber(redis.call("GET", FENCE) or "0") + 1, now_us))
  redis.call("SET", FENCE, fence, "PX", MONTH)
  if exclusive then redis.call("DEL", REC, HELD) end
  keep(token, {keeping = ARGV[5], limit = limit, slot = slot, fence = fence, since = int(now_us), heard = int(now_us),
    owner = ARGV[7], broken = ""})
  return fence
end

local function leave()
  if drop_waiter(token) then redis.call("DEL", WAKE) end
end

-- Granted before: the answer got lost, or came too late. The lease begins again.
local function again(r)
  leave()
  r.heard = int(now_us)
  keep(token, r)
  return {"granted", r.fence, r.slot, false, first(), third()}
end

if kind ~= "none" and (not value or redis.call("PTTL", K) == -1) then return {"odd", kind} end

if exclusive and value == token and value ~= MARK then
  redis.call("PEXPIRE", K, int(ttl))
  local r = record(token)
  if alien then return {"alien", alien} end
  local answer = r and again(r) or {"granted", granted("-1"), "-1", false, first(), third()}
  redis.call("PEXPIRE", REC, int(ttl))
  leave()
  return answer
end

for _, gone in ipairs(redis.call("ZRANGEBYSCORE", HELD, "-inf", "(" .. int(now_ms))) do
  redis.call("ZREM", HELD, gone)
  redis.call("HDEL", REC, gone)
end
local sharing = sharers()
local count, most, slots = #sharing / 2, fits_so_many(limit), {}
for i = 1, #sharing, 2 do
  local r = record(sharing[i])
  if r then
    most = math.min(most, fits_so_many(r.limit))
    slots[r.slot] = true
  end
end
if value and value ~= MARK then record(value) end
if alien then return {"alien", alien} end

if not exclusive and value == MARK and share_of(token) and record(token) then
  redis.call("ZADD", HELD, int(now_ms + ttl), token)
  settle()
  return again(record(token))
end

-- Everybody was told when to ask again; who has not, by far, is gone. Who does not wait does not wait for
-- the dead either: it minds only whom the last three seconds have seen.
for _, w in ipairs(redis.call("ZRANGEBYSCORE", DUE, "-inf", "(" .. int(now_ms))) do forget_waiter(w) end
local head = first()
local in_turn = not head or head == token
if not in_turn and not queue then in_turn = redis.call("ZCOUNT", ASKED, now_ms - 3000, "+inf") == 0 end
local fits
if exclusive then fits = not value and count == 0 else fits = (not value or value == MARK and count > 0) and count < most end

if fits and in_turn and exclusive then
  local fence = granted("-1") -- first: what may be refused by an ACL must not leave a key without a record
  redis.call("PEXPIRE", REC, int(ttl))
  redis.call("SET", K, token, "NX", "PX", int(ttl))
  leave()
  return {"granted", fence, "-1", false, first(), third()}
elseif fits and in_turn then
  local slot = -1
  if limit ~= "0" then
    repeat slot = slot + 1 until not slots[int(slot)]
  end
  local fence = granted(int(slot))
  redis.call("ZADD", HELD, int(now_ms + ttl), token)
  settle()
  leave()
  return {"granted", fence, int(slot), next_up(count + 1, most), first(), third()}
end

local own_parent = 0
if parent ~= "" and (value == parent or share_of(parent)) then own_parent = 1 end
local ahead = redis.call("ZRANK", LINE, token) or redis.call("ZCARD", LINE)
local near = ahead < 3
if queue and own_parent == 0 then
  if redis.call("HEXISTS", WAITS, token) == 0 then
    local ticket = redis.call("INCR", TICKET)
    redis.call("PEXPIRE", TICKET, MONTH)
    redis.call("ZADD", LINE, ticket, token)
    redis.call("HSET", WAITS, token, int(now_ms) .. " " .. limit .. " " .. ARGV[7])
  end
  redis.call("ZADD", DUE, int(now_ms + (near and 3000 or 45000)), token)
  redis.call("ZADD", ASKED, int(now_ms), token)
  for _, key in ipairs({LINE, DUE, ASKED, WAITS}) do redis.call("PEXPIRE", key, 60000) end
end
local retry = near and 1000 or 15000
if exclusive and value then
  retry = math.min(retry, redis.call("PTTL", K) + 1)
elseif not exclusive and sharing[2] then
  retry = math.min(retry, tonumber(sharing[2]) - now_ms + 1)
end
-- Free, and the turn of one who does not come: until its place lapses.
if fits and head then retry = math.min(retry, tonumber(redis.call("ZSCORE", DUE, head)) - now_ms + 1) end
return {"busy", holders(100), redis.call("ZCARD", LINE), math.max(1, retry), own_parent}
