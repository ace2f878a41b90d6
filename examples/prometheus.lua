-- RMQ's figures for redis_exporter: prometheus-redis-exporter -script prometheus.lua
-- Replies with names and values in turn. A name is 'rmq_…', or 'rmq_…,namespace' or 'rmq_…,namespace,queue'.
local NAMESPACES = { 'app' } -- yours

local values = {}
local function add(name, value)
    if type(value) == 'number' then
        values[#values + 1] = name
        values[#values + 1] = tostring(value)
    end
end

for name, value in redis.call('INFO', 'rmq'):gmatch('(rmq_[%w_]+):(%d+)') do
    add(name, tonumber(value))
end
for _, namespace in ipairs(NAMESPACES) do
    -- In a cluster a namespace of another node is an error, and is left out here.
    local stats = redis.pcall('RMQ.STATS', namespace)
    for field = 1, #stats, 2 do
        add('rmq_ns_' .. stats[field] .. ',' .. namespace, stats[field + 1])
    end
    local queues = stats[#stats] or {}
    for queue = 1, #queues, 2 do
        for field = 1, #queues[queue + 1], 2 do
            local figures = queues[queue + 1]
            add('rmq_queue_' .. figures[field] .. ',' .. namespace .. ',' .. queues[queue], figures[field + 1])
        end
    end
end
return values
