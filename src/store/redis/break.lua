-- Ends leases that nothing renews; marks those that a process keeps, which then ends itself. All of
-- them, or the one with this fencing token.
-- KEYS: K rec held line due asked waits   ARGV: owner of who breaks it, fence or nothing
if no_lock() then return {"odd", kind} end
local broken, freed = {}, false
local function end_one(token, left)
  local r = record(token)
  if ARGV[2] ~= "" and (not r or r.fence ~= ARGV[2]) then return false end
  broken[#broken + 1] = told(left, r)
  if r and r.keeping == "process" then
    r.broken = ARGV[1]
    keep(token, r)
    return false
  end
  freed = true
  return not alien
end
if value and value ~= MARK then
  if end_one(value, redis.call("PTTL", K)) then redis.call("DEL", K, REC) end
else
  local all = sharers()
  for i = 1, #all, 2 do
    if end_one(all[i], tonumber(all[i + 1]) - now_ms) then
      redis.call("ZREM", HELD, all[i])
      redis.call("HDEL", REC, all[i])
    end
  end
  -- A MARK of which nothing is left.
  if #all == 0 and value and ARGV[2] == "" then
    broken[1], freed = {redis.call("PTTL", K)}, true
  end
  if freed then settle() end
end
if alien then return {"alien", alien} end
return {"broken", freed and next_up(redis.call("ZCARD", HELD), math.huge), broken}
