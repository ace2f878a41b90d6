-- What RMQ.PARSEERR is measured against: the peer's handle_parse_error does not compile, asks for HEXPIRE with the
-- wrong arguments, breaks its JSON on a quote, and trims only now and then. This one writes the same record as the
-- command, expires it rightly, trims exactly, and keeps an id once in the queue. JSON strings are made by cjson, the
-- fastest that a script has. It does not look for records that expired by themselves, which the command does.
-- KEYS: parse_error_map parse_error_queue processing expire_monitor payload_map
-- ARGV: id payload topic error timestamp [expire_days [max_count [supports_hexpire]]]
local map, queue, processing, monitor, payloads = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, payload, topic, message, timestamp = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local expire_days, max_count, supports_hexpire = ARGV[6], ARGV[7], ARGV[8]

local function cut(text, limit)
    if #text > limit then
        return string.sub(text, 1, limit) .. '...[truncated]'
    end
    return text
end

local record = '{"original_payload":' .. cjson.encode(cut(payload, 4096))
    .. ',"error_type":"parse_error","error_message":' .. cjson.encode(cut(message, 256))
    .. ',"topic":' .. cjson.encode(topic)
    .. ',"timestamp":' .. cjson.encode(timestamp)
    .. ',"message_id":' .. cjson.encode(id)
    .. ',"original_payload_bytes":' .. #payload .. '}'

if redis.call('HSET', map, id, record) == 0 then
    redis.call('LREM', queue, 1, id)
end
redis.call('LPUSH', queue, id)

if expire_days and expire_days ~= '' then
    local seconds = tonumber(expire_days) * 86400
    if supports_hexpire == '1' then
        redis.call('HEXPIRE', map, seconds, 'FIELDS', 1, id)
    elseif redis.call('TTL', map) == -1 then
        redis.call('EXPIRE', map, seconds)
    end
end

if max_count and max_count ~= '' then
    local excess = redis.call('LLEN', queue) - tonumber(max_count)
    if excess > 0 then
        local oldest = redis.call('RPOP', queue, excess)
        for first = 1, #oldest, 1000 do
            redis.call('HDEL', map, unpack(oldest, first, math.min(first + 999, #oldest)))
        end
    end
end

redis.call('LREM', processing, 1, id)
redis.call('ZREM', monitor, id)
redis.call('HDEL', payloads, id, id .. ':queue')
return 'OK'
